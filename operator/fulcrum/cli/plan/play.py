"""The finalists of `fulcrum plan`, played by the simulator with production's admission and routing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypedDict

from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.performance.eligible import length_at
from fulcrum.placement.estimates import FluidEstimates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fulcrum.placement.finalists import Play, Workers
    from fulcrum.placement.performance import Performance
    from fulcrum.simulation.cluster import ClusterModel
    from fulcrum.simulation.workload import Workload

_JUDGED_REQUESTS: Final = 1_500
"""Of one play, after it has begun: the share inside a promise of 95 % is then known to 0.6 points."""
_WARM_REQUESTS: Final = 2_000
"""Most requests of one play that are not judged, because decode batches are not yet full."""
_MOST_WARM_REQUESTS: Final = 10_000
"""The same where one worker of each pool carries more: half for each part of the promise. A play then takes seconds."""
_WARM_ANSWERS: Final = 1.5
"""A play is not judged while it has lasted less than so many mean answers at the promised pace."""
_BLOCK: Final = 250
"""Requests that have the spread of all of them."""
_SEED: Final = 1


class Judges(TypedDict):
    """What placements are judged by, as `placement.search.Request` takes it."""

    performance: Performance
    play: Play


def judges(demand: Demand, slo: LatencyTargets, trace: Workload | None) -> Judges:
    """Return estimates, and the simulation of the best placements."""
    return Judges(
        performance=FluidEstimates(demand, slo, turns_away=True), play=Player(demand=demand, slo=slo, trace=trace)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Plays workers of fixed roles. Requests come at random, with the lengths of a trace or of a demand."""

    demand: Demand
    slo: LatencyTargets
    trace: Workload | None = None
    """Its requests are drawn from; None: lengths are log-normal."""

    @property
    def most_rate(self) -> float:
        """Return the requests/s of one play at most, but where one worker of each pool carries more."""
        return _WARM_REQUESTS / (self.slo.ttft_seconds + self._answers_seconds)

    def share(self, workers: Workers, rate: float) -> float:
        """Return the share of `rate` requests/s that the workers keep inside the promise."""
        from fulcrum.simulation.engine import simulate
        from fulcrum.simulation.policies import Fixed

        cluster, roles = _cluster_of(workers)
        load, slo = self._load(rate), self._promise(rate)
        played = simulate(load, cluster, Fixed(roles, admission=AdmissionPolicy.PREDICTIVE), slo=slo)
        inside = played.within(slo)[load.arrival_seconds >= self._warm_seconds(rate)]
        return float(inside.mean()) if len(inside) else 1.0

    def _promise(self, rate: float) -> LatencyTargets:
        """Return what is promised in a play.

        Where thousands could wait for their first token it would take as many requests until they do. A shorter
        promise is then played: whoever keeps it keeps the longer one, and nearly as many do.
        """
        most_seconds = _MOST_WARM_REQUESTS / 2 / rate
        return replace(self.slo, ttft_seconds=min(self.slo.ttft_seconds, most_seconds))

    def _warm_seconds(self, rate: float) -> float:
        """Return how long a play lasts before it is judged."""
        answers_seconds = min(self._answers_seconds, _MOST_WARM_REQUESTS / 2 / rate)
        return self._promise(rate).ttft_seconds + answers_seconds

    @property
    def _answers_seconds(self) -> float:
        return _WARM_ANSWERS * self.demand.osl_tokens * self.slo.tpot_seconds

    def _load(self, rate: float) -> Workload:
        """Return the requests of a play: at every rate the same ones, nearer to each other."""
        import numpy as np

        from fulcrum.simulation.workload import Workload

        random, demand = np.random.default_rng(_SEED), self.demand
        count = int(rate * self._warm_seconds(rate)) + _JUDGED_REQUESTS
        arrivals = np.cumsum(random.exponential(1.0, size=count)) / rate
        if self.trace is not None:
            rounds = [random.permutation(len(self.trace)) for _ in range(-(-count // len(self.trace)))]
            drawn = np.concatenate(rounds)[:count]
            prompts, outputs = self.trace.prompt_tokens[drawn], self.trace.output_tokens[drawn]
        else:
            prompts = _lengths(demand.isl_tokens, demand.isl_cv2, count, random)
            outputs = _lengths(demand.osl_tokens, demand.osl_cv2, count, random)
        return Workload(
            arrival_seconds=arrivals,
            prompt_tokens=prompts,
            output_tokens=outputs,
            qos_class=np.zeros(count, dtype=np.int16),
            prefix_ids=self._prefixes(prompts, random) if demand.prefix_hit > 0 else None,
        )

    def _prefixes(self, prompts: NDArray[np.int32], random: np.random.Generator) -> tuple[tuple[int, ...], ...]:
        """Return prompts of whose blocks the first `prefix_hit` are those of all others, on average."""
        from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS

        blocks = prompts // PREFIX_BLOCK_TOKENS
        common = (self.demand.prefix_hit * prompts / PREFIX_BLOCK_TOKENS + random.random(len(prompts))).astype(int)
        own = int(blocks.max()) + 1
        found = []
        for held, shared in zip(blocks.tolist(), common.tolist(), strict=True):
            cached = min(shared, held)
            found.append((*range(cached), *range(own, own + held - cached)))
            own += held - cached
        return tuple(found)


def _lengths(mean: float, cv2: float, count: int, random: np.random.Generator) -> NDArray[np.int32]:
    """Return log-normal lengths; each block of them has one of every quantile, so that few have the spread of many."""
    import numpy as np

    blocks = -(-count // _BLOCK)
    places = np.concatenate([random.permutation(_BLOCK) for _ in range(blocks)]) + random.random(blocks * _BLOCK)
    shares = (places / _BLOCK).clip(1e-9, 1 - 1e-9).tolist()
    tokens = np.array([length_at(share, mean, cv2) for share in shares])
    return np.maximum(np.round(tokens), 1.0).astype(np.int32)[:count]


def _cluster_of(workers: Workers) -> tuple[ClusterModel, list[tuple[str, Role]]]:
    """Return pools of alike workers, and pool and role of each worker."""
    from fulcrum.simulation.cluster import ClusterModel, PoolModel

    speeds = dict.fromkeys(speed for stations in workers.values() for speed, _ in stations)
    names = {speed: f"pool-{number}" for number, speed in enumerate(speeds)}
    pools = tuple(PoolModel(name=name, speed=speed, ranks=speed.ranks) for speed, name in names.items())
    roles = [
        (names[speed], role) for role, stations in workers.items() for speed, count in stations for _ in range(count)
    ]
    return ClusterModel(pools=pools), roles
