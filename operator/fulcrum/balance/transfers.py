"""Which workers cannot move KV to or from their peers, by what gateways' canaries found, and which are restarted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fulcrum.api.gateway import PairsReport
from fulcrum.api.names import PORT_NIXL, Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterStatus
from fulcrum.balance.faults import names_of, standing_fault
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
    due: tuple[Worker, ...] = ()
    """Culprits that may be restarted now."""
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
    ages = {name: now - (worker.created or now) for name, worker in serving.items()}
    culprits = sorted(blamed, key=lambda name: (-ages[name], name))
    fault = standing_fault(status)
    known = fault is not None and fault.reason is Reason.KV_TRANSFER_FAILING
    stood = now - datetime.fromisoformat(fault.last_transition_time) if fault is not None and known else timedelta()
    return TransferFaults(
        pairs=tuple(sorted(pairs)),
        culprits=tuple(serving[name] for name in culprits),
        # Each must have lived for half of the time for which the fault has stood: pauses double while restarts do not
        # help. These times are in the cluster, nothing else is remembered.
        due=tuple(serving[name] for name in culprits if ages[name] >= max(SETTLED, stood / 2)),
        recovering=_recovering(workers, status, now) if known else (),
    )


def transfer_fault(faults: TransferFaults) -> tuple[Reason, str] | None:
    """Return the fault as a condition says it; None while KV moves. Without figures: each change would be a write."""
    if faults.pairs:
        pairs = names_of([f"{prefill} -> {decode}" for prefill, decode in faults.pairs])
        names = names_of([worker.name for worker in faults.culprits])
        restarts = f" Restarted, one at a time and where its role stays served: {names}." if names else ""
        return Reason.KV_TRANSFER_FAILING, (
            f"No KV moves between {pairs} (prefill -> decode). Requests go around them.{restarts} See whether the "
            f"decode Pods reach port {PORT_NIXL} of the prefill Pods (NetworkPolicy, RDMA devices, UCX_TLS, attention "
            "backend), and fulcrum_worker_kv_failed_transfers_total."
        )
    if faults.recovering:
        return Reason.KV_TRANSFER_FAILING, (
            f"KV did not move between workers. It is watched whether it does now with {names_of([*faults.recovering])}."
        )
    return None


def _recovering(workers: Sequence[Worker], status: InferenceClusterStatus, now: datetime) -> tuple[str, ...]:
    """Return workers that are new, or drain for a restart: the fault is over when they have settled."""
    unsettled = sorted(
        worker.name
        for worker in workers
        if worker.restart_asked or worker.ready_since is None or now - worker.ready_since < SETTLED
    )
    missing = sum(role.desired for role in status.roles.values()) > len(workers)
    return (*unsettled, "a new worker") if missing else tuple(unsettled)


def _blamed(report: PairsReport, pairs: set[tuple[str, str]]) -> frozenset[str]:
    """Return the workers that work with no peer, and fail with several or with their only one."""
    sure = [pair for pair in report.failing if pair.failures >= SURE_FAILURES and (pair.prefill, pair.decode) in pairs]
    # Both sides of each pair: a worker in its role, and with how many other peers it works.
    pulls = [
        (((Role.PREFILL, pair.prefill), pair.prefill_works), ((Role.DECODE, pair.decode), pair.decode_works))
        for pair in sure
    ]
    failing = Counter(side for pull in pulls for side, _ in pull)
    return frozenset(
        side[1]
        for pull in pulls
        for (side, works), (peer, peer_works) in (pull, pull[::-1])
        if not works and (failing[side] > 1 or peer_works or failing[peer] == 1)
    )
