"""Whether a cluster's pools are still right for its load: a new plan for the same GPUs, searched in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fulcrum.api.durations import seconds
from fulcrum.api.quantities import three_digits
from fulcrum.api.status import timestamp
from fulcrum.api.types import AdmissionPolicy, InferenceClusterSpec, Recommendation, RecommendedPool
from fulcrum.capacity.accelerators import CPU, UnknownAcceleratorError, accelerator
from fulcrum.capacity.engine import EngineShapeError
from fulcrum.capacity.kv_dtype import kv_precision
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.speed import MAX_BATCH, WorkerSpeed
from fulcrum.decide.measurements import Drift
from fulcrum.load.demand import Demand, promised
from fulcrum.load.traffic import Traffic

if TYPE_CHECKING:
    from fulcrum.placement.drift import Comparison, PoolForm
    from fulcrum.telemetry.turns import Turns

logger = logging.getLogger(__name__)

_LOOKS: Final = 4
"""Comparisons within one stabilization. The load is averaged over two of them, and two in a row must agree: the second
of these comes within the stabilization, whenever the load moved."""
_AGREE: Final = 2
_SAMPLES: Final = 64
"""Of the load, within the time over which it is averaged."""
_FEWEST_REQUESTS: Final = 30.0
"""Below so many requests their mean lengths say little."""
_GONE: Final = 0.5
"""A recommendation goes below this share of the threshold, so that a gain near the threshold does not blink."""
_MOST_POOLS: Final = 32
"""Bound of `status.recommendation.pools`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementQuestion:
    """What a comparison is made from; comparing takes a thread, so it is all values."""

    spec: InferenceClusterSpec
    model: ModelFacts
    generation: int
    demand: Demand
    max_batch: int


def mean_demand(samples: Iterable[Traffic]) -> Demand | None:
    """Return the mean lengths of what came, each sample by its rate; None while too few requests were seen."""
    known = [each for each in samples if each.rate > 0 and each.isl_tokens and each.osl_tokens]
    rate = sum(each.rate for each in known)
    if not known or sum(each.rate * each.window_seconds for each in known) < _FEWEST_REQUESTS:
        return None

    def mean(figure: Callable[[Traffic], float]) -> float:
        return sum(each.rate * figure(each) for each in known) / rate

    isl, osl = mean(lambda each: each.isl_tokens or 0.0), mean(lambda each: each.osl_tokens or 0.0)
    isl_square = mean(lambda each: (each.isl_tokens or 0.0) ** 2 * (1 + _spread(each.isl_cv2)))
    osl_square = mean(lambda each: (each.osl_tokens or 0.0) ** 2 * (1 + _spread(each.osl_cv2)))
    return Demand(
        rate=rate / len(known),
        isl_tokens=max(isl, 1.0),
        osl_tokens=max(osl, 1.0),
        isl_cv2=max(isl_square / isl**2 - 1, 0.0),
        osl_cv2=max(osl_square / osl**2 - 1, 0.0),
        prefix_hit=min(max(mean(lambda each: each.prefix_hit or 0.0), 0.0), 1.0),
    )


def compared(question: PlacementQuestion) -> Comparison | None:
    """Return the comparison; None where model or accelerators are not known, or there is no plan. A second at most."""
    # scipy and HiGHS: half of the operators' memory, where nothing is ever compared.
    from fulcrum.placement.drift import compare
    from fulcrum.placement.errors import PlacementError
    from fulcrum.placement.estimates import FluidEstimates
    from fulcrum.placement.parallelism import Engine

    spec, model, demand = question.spec, question.model, question.demand
    if model.dimensions is None:
        return None
    try:
        engine = Engine(
            model=model.dimensions,
            kv=kv_precision(spec, model.kind),
            max_batch=question.max_batch,
            max_model_tokens=spec.model.max_model_len or 0,
        )
        forms = _forms(spec)
        performance = FluidEstimates(
            demand, promised(spec), turns_away=spec.admission.policy is not AdmissionPolicy.OFF
        )
        return compare(forms, engine, performance, prompt_tokens=demand.isl_tokens) if forms else None
    except (UnknownAcceleratorError, EngineShapeError, PlacementError) as error:
        logger.debug("placement_not_compared why=%r", str(error))
        return None


def _forms(spec: InferenceClusterSpec) -> list[PoolForm]:
    """Return the pools on GPUs; none where a worker spans nodes, which no plan does."""
    from fulcrum.placement.drift import PoolForm

    if any(pool.gpu.per_node is not None for pool in spec.pools):
        return []
    forms = [
        PoolForm(
            name=pool.name,
            accelerator=accelerator(pool.accelerator),
            tensor=pool.parallelism.tensor,
            pipeline=pool.parallelism.pipeline,
            data=pool.parallelism.data,
            workers=pool.workers.max,
            roles=frozenset(pool.roles),
            price_per_gpu_hour=pool.price_per_hour or 0.0,
        )
        for pool in spec.pools
        if pool.workers.max > 0
    ]
    return [form for form in forms if form.accelerator is not CPU]


class PlacementDrift:
    """One cluster's recommendation. What it remembers may be lost: the status keeps what was recommended."""

    def __init__(self, clock: Callable[[], float], unix_time: Callable[[], float]) -> None:
        self._clock = clock
        self._unix_time = unix_time
        self._samples: deque[tuple[float, Traffic]] = deque()
        self._begun_at: float | None = None
        self._due_at = 0.0
        self._generation: int | None = None
        self._gains: deque[float] = deque(maxlen=_AGREE)
        self._known: Drift | None = None

    @property
    def drift(self) -> Drift | None:
        """What is known."""
        return self._known

    def see(self, traffic: Traffic, *, spec: InferenceClusterSpec, generation: int) -> None:
        """Take in what was measured now."""
        now, span_seconds = self._clock(), seconds(spec.balance.recommend.stabilization) * _AGREE / _LOOKS
        if generation != self._generation:
            self._generation, self._known = generation, None
            self._gains.clear()
        if self._begun_at is None:
            self._begun_at, self._due_at = now, now + span_seconds
        if not self._samples or now - self._samples[-1][0] >= span_seconds / _SAMPLES:
            self._samples.append((now, traffic))
        while self._samples and now - self._samples[0][0] > span_seconds:
            self._samples.popleft()

    def question(
        self, spec: InferenceClusterSpec, model: ModelFacts, generation: int, speeds: Mapping[str, WorkerSpeed]
    ) -> PlacementQuestion | None:
        """Return what is to be compared now; None while nothing is due."""
        if self._begun_at is None or self._clock() < self._due_at:
            return None
        self._due_at = self._clock() + seconds(spec.balance.recommend.stabilization) / _LOOKS
        demand = mean_demand(traffic for _, traffic in self._samples)
        if demand is None:
            return None
        max_batch = max((speed.max_batch for speed in speeds.values()), default=MAX_BATCH)
        return PlacementQuestion(spec=spec, model=model, generation=generation, demand=demand, max_batch=max_batch)

    def take(
        self, question: PlacementQuestion, found: Comparison | None, *, published: Recommendation | None = None
    ) -> bool:
        """Take in a comparison; returns whether the recommendation changed. `published` stands in the status."""
        if question.generation != self._generation or found is None:
            return False
        before, wanted = self._known, question.spec.balance.recommend
        self._gains.append(found.gain)
        if len(self._gains) < _AGREE:
            return False
        recommended = published if before is None else before.recommendation
        if recommended is not None and recommended.generation != question.generation:
            recommended = None
        if max(self._gains) < _GONE * wanted.threshold:
            recommended = None
        elif recommended is None and min(self._gains) > wanted.threshold:
            moment = datetime.fromtimestamp(self._unix_time(), UTC)
            recommended = recommendation(question, found, since=timestamp(moment))
        self._known = Drift(recommendation=recommended)
        return self._known != before


def recommendation(question: PlacementQuestion, found: Comparison, *, since: str) -> Recommendation:
    """Return what the status says of a comparison."""
    return Recommendation(
        gain=round(found.gain, 2),
        goodput=three_digits(found.plan.goodput),
        current_goodput=three_digits(found.held_goodput),
        input_tokens=three_digits(question.demand.isl_tokens),
        output_tokens=three_digits(question.demand.osl_tokens),
        pools=tuple(
            RecommendedPool(
                accelerator=pool.option.kind.accelerator.name,
                tensor=pool.option.tensor,
                pipeline=pool.option.pipeline,
                data=pool.option.data,
                role=pool.role,
                workers=pool.workers,
            )
            for pool in found.plan.pools[:_MOST_POOLS]
        ),
        generation=question.generation,
        since=since,
    )


def _spread(cv2: float | None) -> float:
    return 1.0 if cv2 is None else cv2


async def compare_in_background(question: PlacementQuestion, turns: Turns, caller: str) -> Comparison | None:
    """Return the comparison from a thread; `turns` bounds how many searches run at once, callers in turn."""
    async with turns.of(caller):
        return await asyncio.to_thread(compared, question)
