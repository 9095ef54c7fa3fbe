"""Which workers cannot move KV to or from their peers, by what gateways' canaries found, and which are restarted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.gateway import FailingPair, PairsReport
from fulcrum.api.names import PORT_NIXL
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Condition, ConditionStatus, ConditionType, InferenceClusterStatus
from fulcrum.balance.faults import names_of
from fulcrum.balance.snapshot import Worker

SURE_FAILURES: Final = 3
"""Canaries in a row that must have failed before a worker is restarted for it: a lost packet fails one."""
SETTLED: Final = timedelta(seconds=30)
"""A younger worker is not restarted: its handshakes may not be over. One that was restarted has been cured once it has
been ready for this long without a failing pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFaults:
    """Pairs between which no KV moves."""

    pairs: tuple[tuple[str, str], ...] = ()
    """Names of prefill and decode worker; requests are routed around them."""
    culprits: tuple[Worker, ...] = ()
    """Workers that fail with several peers, or with their only one: a restart may cure them. The oldest comes first."""
    recovering: tuple[str, ...] = ()
    """Workers on their way through a restart; the fault may come back with them."""


def transfer_faults(
    workers: Sequence[Worker], reports: Sequence[PairsReport], status: InferenceClusterStatus, now: datetime
) -> TransferFaults:
    """Return what is known of failing pairs; workers that do not serve are left out. `status` is the last one."""
    serving = {worker.name: worker for worker in workers if worker.serving}
    pairs = {
        (pair.prefill, pair.decode)
        for report in reports
        for pair in report.failing
        if pair.prefill in serving and pair.decode in serving
    }
    # Each gateway that answered must see the same: one that is cut off itself would restart all workers.
    blamed = frozenset.intersection(*(_blamed(report, pairs) for report in reports)) if reports else frozenset()
    return TransferFaults(
        pairs=tuple(sorted(pairs)),
        culprits=tuple(sorted((serving[name] for name in blamed), key=lambda one: (-_age(one, now), one.name))),
        recovering=_recovering(workers, status, now),
    )


def may_restart(worker: Worker, status: InferenceClusterStatus, now: datetime) -> bool:
    """Report whether a culprit is to be restarted now, by times that are in the cluster: nothing else is remembered.

    It must have lived for half of the time for which the fault has stood, so pauses double while restarts do not help.
    """
    fault = _fault_condition(status)
    stood = now - datetime.fromisoformat(fault.last_transition_time) if fault is not None else timedelta()
    return _age(worker, now) >= max(SETTLED, stood / 2)


def transfer_fault(faults: TransferFaults) -> tuple[Reason, str] | None:
    """Return the fault as a condition says it; None while KV moves. Without figures: each change would be a write."""
    if not faults.pairs and not faults.recovering:
        return None
    if not faults.pairs:
        return Reason.KV_TRANSFER_FAILING, (
            f"KV did not move between workers. It is watched whether it does now with {names_of([*faults.recovering])}."
        )
    pairs = names_of([f"{prefill} -> {decode}" for prefill, decode in faults.pairs])
    restarts = ""
    if faults.culprits:
        names = names_of([worker.name for worker in faults.culprits])
        restarts = f" Restarted, one at a time and where its role stays served: {names}."
    return Reason.KV_TRANSFER_FAILING, (
        f"No KV moves between {pairs} (prefill -> decode). Requests go around them.{restarts} See whether the decode "
        f"Pods reach port {PORT_NIXL} of the prefill Pods (NetworkPolicy, RDMA devices, UCX_TLS, attention backend), "
        "and fulcrum_worker_kv_failed_transfers_total."
    )


def _fault_condition(status: InferenceClusterStatus) -> Condition | None:
    degraded = next((c for c in status.conditions if c.type is ConditionType.DEGRADED), None)
    stands = (ConditionStatus.TRUE, Reason.KV_TRANSFER_FAILING)
    return degraded if degraded is not None and (degraded.status, degraded.reason) == stands else None


def _recovering(workers: Sequence[Worker], status: InferenceClusterStatus, now: datetime) -> tuple[str, ...]:
    """Workers that are new, or drain for a restart, while the fault stands: it is over when they have settled."""
    if _fault_condition(status) is None:
        return ()
    unsettled = [
        worker.name
        for worker in workers
        if worker.restart_asked or worker.ready_since is None or now - worker.ready_since < SETTLED
    ]
    missing = sum(role.desired for role in status.roles.values()) > len(workers)
    return (*sorted(unsettled), "a new worker") if missing else tuple(sorted(unsettled))


def _blamed(report: PairsReport, pairs: set[tuple[str, str]]) -> frozenset[str]:
    sure = [pair for pair in report.failing if pair.failures >= SURE_FAILURES and (pair.prefill, pair.decode) in pairs]
    return frozenset(
        {pair.prefill for pair in sure if _is_culprit(pair, sure, prefill=True)}
        | {pair.decode for pair in sure if _is_culprit(pair, sure, prefill=False)}
    )


def _is_culprit(pair: FailingPair, sure: list[FailingPair], *, prefill: bool) -> bool:
    """A side that works with some peer is no culprit; one that fails with several, or with its only one, is."""
    works = pair.prefill_works if prefill else pair.decode_works
    if works:
        return False
    name = pair.prefill if prefill else pair.decode
    failing = sum(name == (other.prefill if prefill else other.decode) for other in sure)
    peer_fails = sum(
        (pair.decode if prefill else pair.prefill) == (other.decode if prefill else other.prefill) for other in sure
    )
    peer_works = pair.decode_works if prefill else pair.prefill_works
    return failing > 1 or peer_works > 0 or peer_fails == 1


def _age(worker: Worker, now: datetime) -> timedelta:
    return now - worker.created if worker.created is not None else timedelta()
