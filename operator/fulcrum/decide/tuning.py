"""Every number that shapes what the balance decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Default, unit and reason of each; `benchmarks/ablation.py` prints what they buy."""

    resync_seconds: float = 300.0
    """Watches can lose an event; a cluster is looked at this often even when nothing happens."""
    tick_seconds: float = 2.0
    """How often a cluster is looked at while something moves: the load, a worker that starts, an action whose event may
    be lost, KV that did not move between workers. An idle worker drains for so long before it is deleted."""
    drain_poll_seconds: float = 0.5
    """How often a draining worker is asked whether it is idle: its GPUs wait for that."""
    clock_skew_seconds: float = 60.0
    """Most that the clocks of two machines are taken to differ; a time further ahead is unknown."""
    deadline_margin_seconds: float = 180.0
    """Beyond `engine.startTimeout`: the agent and the kubelet give up first, and what they say is more precise."""
    sure_failures: int = 3
    """Canaries in a row that must have failed before a worker is restarted for it: a lost packet fails one."""
    settled_seconds: float = 30.0
    """A younger worker is not restarted: its handshakes may not be over. One that was restarted has been cured once it
    has been ready for this long without a failing pair."""
    route_change: float = 0.05
    """Share by which a KV route must change to be written: each is a write, and gateways average over more."""
    noise_sigmas: float = 2.0
    """Standard errors beyond which a difference of what was measured counts as one: 1 in 40 by chance."""
    start_seconds: float = 120.0
    """How long a Pod takes to serve until it was measured."""
    spared_misses: float = 0.5
    """Hysteresis: workers are given back only if those that stay leave this share of the misses unused that the promise
    allows."""
    rejections_end: float = 0.2
    """A Degraded condition for rejections ends below this share of the misses that the SLO allows."""
    rejections_least: float = 20.0
    """Arrivals in the window below which a share of rejections says little."""
    silent_seconds: float = 60.0
    """How long a gateway may be silent before a cluster that sleeps is woken: it may hold requests that nobody hears
    of. A restart of the operator or of a gateway takes less."""
    expected_change_seconds: float = 300.0
    """Change of the time at which load is expected that is written to the status; workers start by the exact time."""
    unmade_seconds: float = 30.0
    """How long after waking began without any Pod the condition says that none can be made: a quota, most often."""


TUNING: Final = Tuning()
