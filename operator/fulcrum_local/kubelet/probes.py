"""Probes: what a container's probe says and what follows from a row of results. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class ProbeKind(StrEnum):
    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpec:
    """One probe with Kubernetes' defaults filled in; `handler` keeps httpGet, tcpSocket or exec as written."""

    kind: ProbeKind
    handler: Json
    initial_delay_seconds: float = 0.0
    period_seconds: float = 10.0
    timeout_seconds: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_seconds: int | None = None
    """The probe's own terminationGracePeriodSeconds."""

    @classmethod
    def of(cls, container: Json, kind: ProbeKind) -> ProbeSpec | None:
        """The container's probe of that kind, if it has one."""
        probe = container.get(f"{kind.value}Probe")
        if not probe:
            return None
        return cls(
            kind=kind,
            handler={key: probe[key] for key in ("httpGet", "tcpSocket", "exec", "grpc") if key in probe},
            initial_delay_seconds=float(probe.get("initialDelaySeconds") or 0),
            period_seconds=float(probe.get("periodSeconds") or 10),
            timeout_seconds=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
            grace_seconds=probe.get("terminationGracePeriodSeconds"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """Results in a row and the verdict that they led to."""

    verdict: bool | None = None
    """None until a threshold is reached for the first time."""
    run: int = 0
    """Equal results in a row."""
    last: bool | None = None

    def after(self, ok: bool, spec: ProbeSpec) -> ProbeState:
        """One more result: the verdict follows only when its threshold is reached."""
        run = self.run + 1 if self.last is ok else 1
        threshold = spec.success_threshold if ok else spec.failure_threshold
        state = replace(self, run=run, last=ok)
        return replace(state, verdict=ok) if run >= threshold else state
