"""The ports of a worker: what a pool sets, and how everyone reads them from the worker's Pod.

Ports are a worker's own: while a pool gets others, its workers of the revision before still listen on theirs. So they
are read from the Pod, never from the spec. A Pod says them in an annotation, and says nothing where all are the usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec import Meta

from fulcrum.api.base import ApiStruct, Rules, rule
from fulcrum.api.names import ANNOTATION_PORTS, PORT_AGENT, PORT_ENGINE, PORT_NIXL, PORT_RANKS

_Port = Annotated[int, Meta(ge=1024, le=65535)]
"""Ports below 1024 are for root alone."""


class Ports(ApiStruct, frozen=True, kw_only=True):
    """Ports that a worker listens on."""

    engine: Annotated[_Port, Meta(description="The engine's API (vLLM).")] = PORT_ENGINE
    agent: Annotated[_Port, Meta(description="The agent: load, role, probes.")] = PORT_AGENT
    nixl: Annotated[_Port, Meta(description="NIXL's side channel: handshakes of engines that exchange KV.")] = PORT_NIXL
    ranks: Annotated[
        _Port, Meta(description="Where the ranks of a worker on several nodes find each other; unused on one node.")
    ] = PORT_RANKS

    rules: ClassVar[Rules] = (
        rule(
            "self.engine != self.agent && self.engine != self.nixl && self.engine != self.ranks &&"
            " self.agent != self.nixl && self.agent != self.ranks && self.nixl != self.ranks",
            "ports: engine, agent, nixl and ranks must be four different ports",
        ),
    )


USUAL_PORTS: Final = Ports()


class AgentAddress(NamedTuple):
    """Where an agent answers."""

    host: str
    port: int = PORT_AGENT

    def __str__(self) -> str:
        """Return it as it stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def ports_of(annotations: Mapping[str, str] | None) -> Ports | None:
    """Return the ports that a worker Pod with these annotations has; None: it says none that could be."""
    said = annotations.get(ANNOTATION_PORTS) if annotations else None
    return USUAL_PORTS if said is None else _read(said)


@lru_cache(maxsize=256)
def _read(said: str) -> Ports | None:
    try:
        return msgspec.json.decode(said, type=Ports)
    except (msgspec.DecodeError, ValueError, RecursionError):  # not written by an operator
        return None


def agent_of(pod: Mapping[str, Any]) -> AgentAddress | None:
    """Return where the agent of a worker Pod answers; None while it has no address, or says no port that could be."""
    host = (pod.get("status") or {}).get("podIP")
    ports = ports_of(pod["metadata"].get("annotations"))
    return AgentAddress(host, ports.agent) if host and ports is not None else None
