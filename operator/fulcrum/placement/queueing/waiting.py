"""Waiting in a pool of servers that serve in batches, behind a router that joins the shortest queue.

Three known results are put together, and checked against a simulation (`benchmarks/queueing.py`):

- How many are in the pool is a birth-death process: below one per server each has its own (as in M/G/infinite and
  M/M/k); above, a server's next step takes what waits for it, so that its constant is shared and it gets faster.
- A request waits when no server is idle. With one common queue that is Erlang's C. A router that counts requests and
  then commits behaves between that and a loss system that carries the same load (Erlang's B), whose blocked arrivals
  prolong the busy periods they join; the geometric mean of the two is within a few points of simulated pools of 1
  to 64.
- A request that waits, waits for what is left of the step under way (its residual life) and, in heavy traffic, for the
  backlog of the whole pool, which spreads with (1 + cv^2)/2 (Lee and Longton 1959; Allen and Cunneen). Where
  one step serves everything that waits, requests behind one's own hold it up as well: half as much again
  (exact for one server: (1 + 2 rho)/(1 + rho)).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, isfinite, sqrt

import numpy as np

from fulcrum.placement.queueing.lengths import Floats
from fulcrum.placement.queueing.tuning import TUNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a pool of alike servers does with one request."""

    constant: float
    """Seconds of a step, shared by all requests in it."""
    own: float
    """Mean seconds that a request adds to a step."""
    cv2: float
    """Squared coefficient of variation of `constant + own`."""
    most_sharing: float
    """Most requests that share one step's constant, on average; at least 1."""
    held_up: float
    """By how much the backlog counts more because requests behind one's own are in the same step: 1 (none) to 1.5."""

    @property
    def alone(self) -> float:
        """Mean seconds of a request that has a step for itself."""
        return self.constant + self.own


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How long a request waits beyond its own service."""

    chance: float
    """Probability that it waits at all."""
    residual: float
    """Factor on a size-biased service times a uniform variable: the residual of the step under way."""
    backlog_chance: float
    """Probability that a request that waits finds a backlog, too."""
    backlog: float
    """Mean seconds of that backlog, exponentially distributed; infinite in overload."""
    load: float = 0.0
    """Share of the servers' time that is taken."""
    burst_chance: float = 0.0
    """Probability that more came with it, or just before it, than idle servers take."""
    burst: float = 0.0
    """Mean seconds that it then waits for those, exponentially distributed."""

    def missed(self, rooms: Floats, services: Floats, weights: Floats) -> Floats:
        """Return the probability of waiting longer than each of `rooms` (seconds, not negative).

        `services` and `weights` are the service times of those under way: points and probabilities.
        """
        if self.backlog == inf or self.chance <= 0.0:
            return np.full_like(rooms, self.chance)
        biased = weights * services
        longest = np.maximum(self.residual * services, 1e-12)
        room = rooms[:, None]
        backlog = max(self.backlog, 1e-12)
        # The residual is uniform below `longest`, so that both integrals over it are closed.
        late = np.maximum(1.0 - room / longest, 0.0)
        gone = np.exp(-np.maximum(room - longest, 0.0) / backlog) - np.exp(-room / backlog)
        late += self.backlog_chance * (backlog / longest) * gone
        missed = np.asarray(self.chance * (late @ (biased / biased.sum())))
        if self.burst > 0.0:
            missed = missed + (1.0 - missed) * self.burst_chance * np.exp(-rooms / self.burst)
        return missed


def turned_away(missed: Floats, load: float) -> Floats:
    """Return the share that has to be turned away at arrival so that all others are in time.

    `missed` is the share that would be late if no request was turned away (at a `load` below 1): their work delays
    others, too. Exact for M/M/c, and an approximation for M/G/c (Boots and Tijms 1999).
    """
    return np.asarray((1.0 - load) * missed / (1.0 - load * missed)) if load < 1.0 else missed


def waiting(rate: float, servers: int, service: Service, *, dispersion: float = 1.0) -> Waiting:
    """Return the waiting of `rate` requests/s in a pool of `servers` alike servers; all wait for ever in overload.

    Arrivals with an index of dispersion I above 1 come in bursts of (I + 1)/2 on average. A request then also waits for
    (I - 1)/2 others that came before it, at the speed that the pool has left (exact for the mean in M^X/M/1).
    """
    if rate <= 1e-9 or service.alone <= 0.0:
        return Waiting(chance=0.0, residual=1.0, backlog_chance=0.0, backlog=0.0)
    alone = service.alone
    load = rate * alone
    best = service.constant / service.most_sharing + service.own
    if rate * best >= servers:
        return Waiting(chance=1.0, residual=1.0, backlog_chance=1.0, backlog=inf, load=rate * best / servers)
    # Above one request per server, in cells that grow; within one, the odds of one more stay the same. They do for ever
    # in the last one, where as many share a step as can.
    cell = np.arange(TUNING.cells)
    most = TUNING.found_per_sharing * service.most_sharing
    starts: Floats = np.maximum(cell, servers * (most ** (cell / cell[-1]) - 1.0))
    widths = np.full_like(starts, inf)
    np.subtract(starts[1:], starts[:-1], out=widths[:-1])
    found = (servers + starts + widths / 2) / servers
    sharing = np.minimum(np.maximum(found / TUNING.found_per_sharing, 1.0), service.most_sharing)
    rates = servers * sharing / (service.constant + sharing * service.own)
    odds = rate / rates
    odds = np.where(np.abs(odds - 1.0) < 1e-9, 1.0 - 1e-9, odds)
    logs = np.cumsum(widths * np.log(odds))
    peak = max(float(logs.max()), 0.0)
    bounds = np.concatenate(([exp(-peak)], np.exp(logs - peak)))
    mass = (bounds[1:] - bounds[:-1]) / (odds - 1.0)
    above = float(mass.sum())
    below = (inverse_erlang_b(servers, load) - 1.0) * exp(-peak)
    if not isfinite(below):
        return Waiting(chance=0.0, residual=1.0, backlog_chance=0.0, backlog=0.0)
    common = above / (above + below)
    inside = np.minimum((widths - 1.0) / 2, np.where(odds < 1.0, odds / np.abs(1.0 - odds), inf))
    queued = float(mass @ (starts + inside)) / above
    flow = float(mass @ rates) / (above + below)
    busy = max(0.0, alone * (rate - flow)) + servers * common
    busy = min(busy / servers, 1.0 - 1e-9)
    chance = sqrt(common * _blocking_at(servers, busy * servers))
    spread = (1.0 + service.cv2) / 2
    more = (max(dispersion, 1.0) - 1.0) / 2
    spare = servers - rate * best
    return Waiting(
        load=rate * best / servers,
        burst_chance=(more / (1.0 + more)) ** max(servers - rate * alone, 1.0),
        burst=service.held_up * more * best / spare,
        chance=chance,
        residual=spread ** (TUNING.residual_power - 1.0),
        backlog_chance=busy,
        backlog=service.held_up * spread * min(chance / busy, 1.0) * queued / rate,
    )


@lru_cache(maxsize=64)
def _falling(servers: int) -> Floats:
    return np.arange(servers, 0, -1, dtype=float)


def inverse_erlang_b(servers: int, load: float) -> float:
    """Return 1 / (Erlang's blocking probability) of `load` erlangs; may be infinite. Sum over the states below."""
    with np.errstate(over="ignore"):
        return 1.0 + float(np.add.reduce(np.multiply.accumulate(_falling(servers) / load)))


def _blocking_at(servers: int, carried: float) -> float:
    """Return the blocking probability of a loss system that carries `carried` erlangs (below `servers`). Newton."""
    # Of many servers all but servers / (offered - carried) are busy: two steps from here are enough.
    offered = carried + servers / max(servers - carried, 1e-12 * servers)
    low, high = carried, inf
    blocking = 0.0
    for _ in range(50):
        blocking = 1.0 / inverse_erlang_b(servers, offered)
        excess = offered * (1.0 - blocking) - carried
        if excess < 0.0:
            low = offered
        else:
            high = offered
        slope = 1.0 - blocking - offered * blocking * (servers / offered - 1.0 + blocking)
        step = offered - excess / slope if slope > 0.0 else inf
        if not low <= step <= high or step == inf:
            step = (low + high) / 2 if high < inf else 2.0 * low
        if abs(step - offered) < 1e-3 * offered:
            break
        offered = step
    return blocking
