"""What a front is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fulcrum.api import names
from fulcrum.api.front import FrontConfig
from fulcrum.gateway.config import listen_address, required_config


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """Everything that one front needs."""

    config: FrontConfig
    host: str
    port: int = names.PORT_GATEWAY
    inside_port: int = names.PORT_GATEWAY_INSIDE
    """For metrics and probes; 0 takes a free one."""
    namespace: str = "default"
    pod_name: str = ""
    max_connections: int = 16_384
    lame_duck_seconds: float = 3.0
    """After SIGTERM connections are still accepted for this long, until endpoints have forgotten this Pod."""


def read_front_settings(
    environment: Mapping[str, str],
    *,
    config_json: str | None = None,
    host: str | None = None,
    port: int | None = None,
    inside_port: int | None = None,
    max_connections: int = 16_384,
    lame_duck_seconds: float = 3.0,
) -> FrontSettings:
    """Settings from the environment; arguments that are not None win. Raises ConfigError."""
    config = required_config(FrontConfig, names.ENV_FRONT_CONFIG, environment, config_json)
    return FrontSettings(
        config=config,
        host=host or listen_address(environment.get(names.ENV_POD_IP)),
        port=names.PORT_GATEWAY if port is None else port,
        inside_port=names.PORT_GATEWAY_INSIDE if inside_port is None else inside_port,
        namespace=environment.get(names.ENV_POD_NAMESPACE) or "default",
        pod_name=environment.get(names.ENV_POD_NAME, ""),
        max_connections=max_connections,
        lame_duck_seconds=lame_duck_seconds,
    )
