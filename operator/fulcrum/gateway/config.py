"""What a gateway is started with: the contract's JSON document, plus what belongs to one process."""

from __future__ import annotations

import resource
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from fulcrum.api import names
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.internal_token import ENV_GATEWAY
from fulcrum.api.names import Role
from fulcrum.api.serving_types import ModelTask
from fulcrum.api.telemetry_types import endpoint_problem
from fulcrum.gateway.api_formats.inference_request import ServedModel
from fulcrum.gateway.worker_record import WorkerRecord

_OWN_FILES: Final = 128
"""Open files that are not clients': the listener, the API server, agents, idle connections to engines."""

_Config = TypeVar("_Config")


class ConfigError(Exception):
    """The configuration cannot be used; the message says which part and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that one gateway process needs."""

    config: GatewayConfig
    host: str
    port: int = names.PORT_GATEWAY
    inside_port: int = 0
    """For metrics and the operator; 0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """What workers of the cluster ask for; None: nothing."""
    namespace: str = "default"
    pod_name: str = ""
    static_workers: tuple[WorkerRecord, ...] = ()
    """Instead of a Pod watch."""
    max_connections: int = 16_384
    """Open clients; fewer where the process may not open two files for each."""
    lame_duck_seconds: float = 3.0
    """After SIGTERM connections are still accepted for this long, until endpoints have forgotten this Pod."""
    access_log: bool = False
    prewarm: bool = True


def read_settings(
    environment: Mapping[str, str],
    *,
    config_json: str | None = None,
    host: str | None = None,
    port: int | None = None,
    inside_port: int | None = None,
    namespace: str | None = None,
    static_workers: tuple[str, ...] = (),
    served_name: str | None = None,
    max_connections: int = 16_384,
    lame_duck_seconds: float = 3.0,
    access_log: bool = False,
    prewarm: bool = True,
) -> Settings:
    """Settings from the environment; arguments that are not None win. Raises ConfigError."""
    document = config_json or environment.get(names.ENV_GATEWAY_CONFIG)
    if document:
        config = decode_config(GatewayConfig, names.ENV_GATEWAY_CONFIG, document)
        if config.tracing is not None and (problem := endpoint_problem(config.tracing.endpoint)) is not None:
            raise ConfigError(f"{names.ENV_GATEWAY_CONFIG}: tracing.endpoint: {problem}")
    elif static_workers and served_name:
        config = GatewayConfig(cluster="static", served_name=served_name, model=served_name)
    else:
        raise ConfigError(
            f"Set {names.ENV_GATEWAY_CONFIG}, or give --static-worker and --served-name to run without Kubernetes."
        )
    if served_name:
        config = msgspec.structs.replace(config, served_name=served_name)
    return Settings(
        config=config,
        host=host or listen_address(environment.get(names.ENV_POD_IP)),
        port=names.PORT_GATEWAY if port is None else port,
        inside_port=(0 if static_workers else names.PORT_GATEWAY_INSIDE) if inside_port is None else inside_port,
        token=_token(environment.get(ENV_GATEWAY)),
        namespace=namespace or environment.get(names.ENV_POD_NAMESPACE) or "default",
        pod_name=environment.get(names.ENV_POD_NAME, ""),
        static_workers=tuple(static_worker(text, number) for number, text in enumerate(static_workers)),
        max_connections=max_connections,
        lame_duck_seconds=lame_duck_seconds,
        access_log=access_log,
        prewarm=prewarm,
    )


def decode_config(kind: type[_Config], variable: str, document: str) -> _Config:
    """The configuration of a process, as the operator writes it to a variable. Raises ConfigError."""
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{variable}: {error}") from error


def required_config(kind: type[_Config], variable: str, environment: Mapping[str, str], given: str | None) -> _Config:
    """The same from `given`, or else from the environment. Raises ConfigError."""
    document = given or environment.get(variable)
    if not document:
        raise ConfigError(f"Set {variable}, or give --config.")
    return decode_config(kind, variable, document)


def served_model(config: GatewayConfig, adapters: Container[str]) -> ServedModel:
    """What requests are judged by. `adapters`: names of those that are served beside the model."""
    return ServedModel(
        name=config.served_name,
        max_model_len=config.max_model_len,
        adapters=adapters,
        media_urls=bool(config.media_domains),
        pools=config.task is ModelTask.POOLING,
    )


def _token(text: str | None) -> str | None:
    """The cluster's token. Raises ConfigError."""
    if not text:
        return None
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError(f"{ENV_GATEWAY}: cannot be sent in a header; write printable ASCII without blanks")
    return text


def listen_address(pod_ip: str | None) -> str:
    """Every address of a Pod, or `kubectl port-forward`, which comes by its loopback, would reach no listener.

    Pods of a process kubelet have a loopback address each and share the machine: no other address is theirs.
    """
    if not pod_ip or ip_address(pod_ip).is_loopback:
        return pod_ip or "127.0.0.1"
    return "::" if ":" in pod_ip else "0.0.0.0"  # noqa: S104  (all of the Pod's)


def static_worker(text: str, number: int) -> WorkerRecord:
    """A worker written as `role=http://host:port`, `?agent=PORT` behind it to ask its agent. Raises ConfigError."""
    role_text, _, url = text.partition("=")
    parts = urlsplit(url)
    try:
        role, port = Role(role_text), parts.port
        agent = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
        agent_port = int(agent.pop("agent")[0]) if "agent" in agent else None
    except ValueError as error:
        raise ConfigError(f"static worker {text!r}: {error}") from error
    if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/") or agent:
        raise ConfigError(f"static worker {text!r}: write it as prefill=http://127.0.0.1:8000")
    name = f"{role.value}-{number}"
    return WorkerRecord(name=name, role=role, host=parts.hostname, port=port, agent_port=agent_port)


def raise_file_limit() -> int:
    """Files that this process may open for its clients, after it has asked for all that it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(hard - _OWN_FILES, 2)
