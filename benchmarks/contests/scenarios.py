"""Random clusters, promises and loads, each a function of a seed and a number: what decisions are judged by.

Nothing here is tuned to what any policy does well. Rates are shares of a fluid capacity (`capacity_per_second`): a load
of 1 is about what the workers can do. Where more than `MOST_REQUESTS` would come, all workers are slowed down alike, as
slices of an accelerator or a CPU are, so that a simulation takes seconds; promises and rates follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count as count_from
from itertools import islice, permutations, product
from math import ceil
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.decode_curve import scaled
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import worker_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets, promised
from fulcrum.simulation.arrivals import arrivals, constant
from fulcrum.simulation.cluster import ClusterModel, Links, PoolModel
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS
from fulcrum.simulation.workload import Workload, merged

Floats = NDArray[np.float64]

PROMPT_TOKENS: Final = (100.0, 30_000.0)
OUTPUT_TOKENS: Final = (1.0, 2_000.0)
KV_REQUESTS: Final = (2.0, 4_000.0)
"""Requests of mean length that a worker's KV cache holds, before the accelerator's memory bounds it."""
LOADS: Final = (0.4, 1.5)
TTFT_PREFILLS: Final = (2.0, 15.0)
"""Promised TTFT over that of a lonely request of the longest phase: prefill, hand-over and first step."""
TPOT_STEPS: Final = (1.3, 4.0)
"""Promised TPOT over the decode step of a lonely request of the longest phase."""
WORKERS: Final = (2, 3, 4, 4, 6, 6, 8, 8, 12, 16)
"""Of all pools together; small clusters are drawn more often, as a run of all static splits grows with their square."""
MOST_CV: Final = 4.0
MOST_REQUESTS: Final = 1_500
FEWEST_REQUESTS: Final = 150
MOST_SLOWDOWN: Final = 16.0
START_SECONDS: Final = 45.0
"""From the creation of a Pod to its readiness, where Pods come and go."""
EVERY: Final = 20
"""One scenario in so many has a slow link between two unlike pools, and one has workers that share their cores."""
_SLOW_LINK, _SHARED_CORES = 9, 18
"""Which ones: the rest of their number divided by `EVERY`."""
LINK_PREFILLS: Final = (1.0, 10.0)
"""How long the hand-over of the longest phase's prompt takes over such a link, over the prefill of the slower pool."""
CROWDED: Final = (1.3, 3.0)
"""How much longer a step takes while all workers compute that share their cores."""
KINDS: Final = ("fixed", "phases", "moving", "all")
_DRAWN: Final = 2_000
"""Lengths that the capacity for a phase is estimated with."""
_MOST_LAYOUTS: Final = 12

HARDWARE: Final[Mapping[str, tuple[tuple[str, int, Precision], ...]]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (
        ("H200-SXM-141GB", 1, Precision.BF16),
        ("L40S-48GB", 1, Precision.BF16),
        ("A10-24GB", 1, Precision.BF16),
    ),
    "Qwen/Qwen2.5-32B-Instruct": (("A100-SXM-80GB", 2, Precision.BF16), ("L40S-48GB", 2, Precision.FP8)),
    "meta-llama/Llama-3.1-70B-Instruct": (
        ("H100-SXM-80GB", 2, Precision.FP8),
        ("H200-SXM-141GB", 2, Precision.FP8),
        ("A100-SXM-80GB", 4, Precision.BF16),
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (
        ("H100-SXM-80GB", 2, Precision.BF16),
        ("A100-SXM-80GB", 2, Precision.BF16),
    ),
    "meta-llama/Llama-3.1-405B-Instruct": (("H100-SXM-80GB", 8, Precision.FP8), ("H200-SXM-141GB", 8, Precision.FP8)),
}
"""(accelerator, tensor parallelism, weights) by model; the weights fit each."""
_CLASSES: Final = (
    ({"name": "premium", "priority": 100, "reserved": 0.1, "match": {"header": "x-tier", "value": "premium"}}, 0.2),
    ({"name": "standard", "priority": 50, "reserved": 0.2, "match": {"header": "x-tier", "value": "standard"}}, 0.3),
    ({"name": "free", "priority": 10}, 0.5),
)
"""A class of the spec, and its share of the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPhase:
    """A stretch of time with one mix and one rate."""

    seconds: float
    prompt_tokens: float
    output_tokens: float
    load: float
    """Rate over the fluid capacity of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPool:
    """Workers that are alike."""

    name: str
    accelerator: str
    tensor: int
    weights: Precision
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One cluster with its promise and its load."""

    seed: int
    number: int
    model: str
    pools: tuple[ScenarioPool, ...]
    phases: tuple[ScenarioPhase, ...]
    prompt_spread: float
    output_spread: float
    cv: float
    """Coefficient of variation of the gaps between arrivals; 0: a clock."""
    kv_requests: float
    ttft_prefills: float
    tpot_steps: float
    prefixes: int
    """Different prompts' beginnings that requests share; 0: none."""
    prefix_share: float
    """Part of a mean prompt that such a beginning is."""
    classes: int
    gateways: int
    moving: bool
    """Pods come and go between 2 and all workers; else all are there all the time."""
    link_prefills: float = 0.0
    """What the hand-over of a long prompt between pools takes, over its prefill; 0: what the pools' own links say."""
    crowded: float = 1.0
    """How much longer steps take while all workers compute; 1: each has its machine to itself."""
    slowdown: float = 1.0

    @property
    def workers(self) -> int:
        """Return the most workers of all pools together."""
        return sum(pool.workers for pool in self.pools)

    def features(self) -> frozenset[str]:
        """Return what is special about it, for a count of what a set of scenarios covers."""
        found = {
            "few prompts in KV": self.kv_requests < 8,
            "very long prompts": max(phase.prompt_tokens for phase in self.phases) > 10_000,
            "long answers": max(phase.output_tokens for phase in self.phases) > 1_000,
            "bursts": self.cv > 1.5,
            "clock": self.cv == 0,
            "phases": len(self.phases) > 1,
            "3 phases or more": len(self.phases) >= 3,
            "shared prefixes": self.prefixes > 0,
            "classes": self.classes > 1,
            "gateways": self.gateways > 1,
            "mixed pools": len(self.pools) > 1,
            "moving workers": self.moving,
            "slow link": self.link_prefills > 0,
            "shared cores": self.crowded > 1,
            "overload": max(phase.load for phase in self.phases) > 1,
        }
        return frozenset(name for name, true in found.items() if true)

    def speeds(self) -> dict[str, WorkerSpeed]:
        """Return how fast the workers of each pool are."""
        longest = max(phase.prompt_tokens + phase.output_tokens for phase in self.phases)
        found = {}
        for pool in self.pools:
            speed = worker_speed(
                known_model(self.model), accelerator(pool.accelerator), tensor=pool.tensor, weights=pool.weights
            )
            held = min(int(self.kv_requests * longest), speed.kv_capacity_tokens)
            found[pool.name] = _slowed(replace(speed, kv_capacity_tokens=held), self.slowdown)
        return found

    def slo(self) -> LatencyTargets:
        """Return the promise, as the spec has it."""
        return promised(self.spec())

    def cluster(self) -> ClusterModel:
        """Return what is simulated."""
        speeds = self.speeds()
        return ClusterModel(
            pools=tuple(
                PoolModel(
                    name=pool.name,
                    speed=speeds[pool.name],
                    gpus_per_worker=pool.tensor,
                    start_seconds=START_SECONDS if self.moving else 0.0,
                )
                for pool in self.pools
            ),
            gateways=self.gateways,
            links=Links(pairs=self._slow_pairs()),
            crowding=(self.crowded - 1) / (self.workers - 1) if self.crowded > 1 else 0.0,
        )

    def spec(self) -> InferenceClusterSpec:
        """Return the InferenceCluster's spec."""
        ttft_seconds, tpot_seconds = self._promised_seconds()
        admission: dict[str, Any] = {"policy": "Predictive"}
        if self.classes > 1:
            admission["classes"] = [each for each, _ in _CLASSES[-self.classes :]]
        document = {
            "model": {"name": self.model},
            "slo": {"ttft": f"{ceil(ttft_seconds * 1e3) / 1e3}s", "tpot": f"{ceil(tpot_seconds * 1e3) / 1e3}s"},
            "pools": [
                {
                    "name": pool.name,
                    "accelerator": pool.accelerator,
                    "parallelism": {"tensor": pool.tensor},
                    "workers": {"min": min(2, pool.workers) if self.moving else pool.workers, "max": pool.workers},
                }
                for pool in self.pools
            ],
            "balance": {"mode": "Auto"},
            "admission": admission,
        }
        return msgspec.convert(document, InferenceClusterSpec)

    def workload(self) -> Workload:
        """Return the requests; the same every time."""
        parts, begin_seconds, prefix_ids = [], 0.0, _PrefixIds(self)
        for number, phase in enumerate(self.phases):
            random = np.random.default_rng([self.seed, self.number, 1 + number])
            rate = phase.load * self._capacity(phase)
            times = arrivals(constant(rate), seconds=phase.seconds, random=random, cv=self.cv)
            prompts, outputs = self._lengths(phase, len(times), random)
            qos, names = self._classes_of(len(times), random)
            part = Workload(
                arrival_seconds=times + begin_seconds,
                prompt_tokens=prompts,
                output_tokens=outputs,
                qos_class=qos,
                classes=names,
                prefix_ids=prefix_ids.draw(prompts, random) if self.prefixes else None,
            )
            parts.append(part)
            begin_seconds += phase.seconds
        return merged(parts)

    def expected_requests(self) -> float:
        """Return how many requests are to come, on average."""
        return sum(phase.seconds * phase.load * self._capacity(phase) for phase in self.phases)

    def describe(self) -> str:
        """Return the scenario in one line."""
        pools = " + ".join(f"{pool.workers}x{pool.accelerator}/{pool.tensor}" for pool in self.pools)
        phases = " ".join(f"{p.prompt_tokens:.0f}+{p.output_tokens:.0f}@{p.load:.2f}" for p in self.phases)
        promise = self.slo()
        extras = [
            f"KV {self.kv_requests:.0f}" if self.kv_requests < KV_REQUESTS[1] / 10 else "",
            f"{self.prefixes} prefixes of {self.prefix_share:.0%}" if self.prefixes else "",
            f"{self.classes} classes" if self.classes > 1 else "",
            f"{self.gateways} gateways" if self.gateways > 1 else "",
            "moving" if self.moving else "",
            f"hand-over {self.link_prefills:.1f} prefills" if self.link_prefills else "",
            f"shared cores {self.crowded:.1f}x" if self.crowded > 1 else "",
        ]
        return (
            f"{self.model.split('/')[-1]} {pools}, {phases}, spread {self.prompt_spread:.1f}/{self.output_spread:.1f}, "
            f"CV {self.cv:.1f}, {promise.ttft_seconds:.2f} s/{promise.tpot_seconds * 1e3:.0f} ms "
            f"({self.ttft_prefills:.1f}x/{self.tpot_steps:.1f}x)" + "".join(f", {each}" for each in extras if each)
        )

    def _slow_pairs(self) -> dict[tuple[str, str], TransferCost]:
        """Hand-over between the pools, where the link between them is slow."""
        if not self.link_prefills:
            return {}
        prompt = max(phase.prompt_tokens for phase in self.phases)
        prefill_seconds = max(speed.prefill_seconds(prompt, prompt**2) for speed in self.speeds().values())
        cost = TransferCost(base_seconds=0.0, seconds_per_token=self.link_prefills * prefill_seconds / prompt)
        return {(one.name, other.name): cost for one, other in permutations(self.pools, 2)}

    def _promised_seconds(self) -> tuple[float, float]:
        """TTFT and TPOT: of the pool that is slowest at each, so that every worker could keep them when alone."""
        prompt = max(phase.prompt_tokens for phase in self.phases)
        context = max(phase.prompt_tokens + phase.output_tokens / 2 for phase in self.phases)
        steps = [speed.decode_step_seconds(1, context) for speed in self.speeds().values()]
        first = [
            speed.prefill_seconds(prompt, prompt**2) + speed.transfer_seconds(prompt) + step
            for speed, step in zip(self.speeds().values(), steps, strict=True)
        ]
        return self.ttft_prefills * max(first), self.tpot_steps * max(steps)

    def _capacity(self, phase: ScenarioPhase) -> float:
        """Requests per second of a phase that all workers can do."""
        random = np.random.default_rng([self.seed, self.number, 0])
        prompts, outputs = self._lengths(phase, _DRAWN, random)
        cached = np.minimum(_PrefixIds(self).blocks * PREFIX_BLOCK_TOKENS, prompts - 1.0)
        tpot_seconds = self._promised_seconds()[1]
        speeds = self.speeds()
        alone = sum(
            pool.workers * capacity_per_second(speeds[pool.name], tpot_seconds, prompts, outputs, cached)
            for pool in self.pools
        )
        return alone / self.crowded

    def _lengths(
        self, phase: ScenarioPhase, count: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Lengths of which each request has room in the smallest KV cache."""
        drawn = LogNormalLengths(
            prompt_mean=phase.prompt_tokens,
            output_mean=phase.output_tokens,
            prompt_spread=self.prompt_spread,
            output_spread=self.output_spread,
        )
        prompts, outputs = drawn.draw(count, random)
        room = int(0.95 * min(speed.kv_capacity_tokens for speed in self.speeds().values()))
        outputs = np.minimum(outputs, max(1, room // 2)).astype(np.int32)
        return np.minimum(prompts, room - outputs).astype(np.int32), outputs

    def _classes_of(self, count: int, random: np.random.Generator) -> tuple[NDArray[np.int16], tuple[str | None, ...]]:
        if self.classes < 2:
            return np.zeros(count, dtype=np.int16), (None,)
        chosen = _CLASSES[-self.classes :]
        shares = np.array([share for _, share in chosen])
        drawn = random.choice(len(chosen), size=count, p=shares / shares.sum()).astype(np.int16)
        return drawn, tuple(str(each["name"]) for each, _ in chosen)


class _PrefixIds:
    """Ids of the blocks of prompts, of which the first are shared by all of a group."""

    def __init__(self, scenario: Scenario) -> None:
        self._groups = scenario.prefixes
        mean = min(phase.prompt_tokens for phase in scenario.phases)
        self.blocks = int(scenario.prefix_share * mean) // PREFIX_BLOCK_TOKENS if scenario.prefixes else 0
        """Shared ones."""
        self._next = self._groups * self.blocks

    def draw(self, prompts: NDArray[np.int32], random: np.random.Generator) -> tuple[tuple[int, ...], ...]:
        """Return the ids for each prompt."""
        found = []
        groups = random.integers(0, self._groups, len(prompts)).tolist()
        for prompt, group in zip(prompts.tolist(), groups, strict=True):
            whole = prompt // PREFIX_BLOCK_TOKENS
            shared = min(self.blocks, whole)
            own = range(self._next, self._next + whole - shared)
            self._next += len(own)
            found.append((*range(group * self.blocks, group * self.blocks + shared), *own))
        return tuple(found)


def capacity_per_second(
    speed: WorkerSpeed,
    tpot_seconds: float,
    prompts: NDArray[np.int32],
    outputs: NDArray[np.int32],
    cached: Floats | None = None,
) -> float:
    """Return the requests per second that one worker can do, were its time divided between both roles as needed.

    Prompts are prefilled one by one; decoding runs the largest batch that keeps the TPOT and has room in the KV cache.
    """
    k = speed.coefficients
    prompt, output = prompts.astype(np.float64), outputs.astype(np.float64)
    hits = np.zeros(len(prompt)) if cached is None else cached
    prefill = k.prefill_a + k.prefill_b * (prompt - hits) + k.prefill_c * (prompt**2 - hits**2)
    gaps = output - 1
    steps = float(gaps.mean())
    if steps <= 0:
        return 1 / float(prefill.mean())
    context = float((gaps * (prompt + output / 2)).sum() / gaps.sum())
    batch = max(1.0, min(speed.decode_batch(tpot_seconds, context), speed.kv_capacity_tokens / context))
    return 1 / (float(prefill.mean()) + steps * speed.decode_step_seconds(batch, batch * context) / batch)


def draw(seed: int, number: int) -> Scenario:
    """Return scenario `number` of `seed`, always the same, of a size that is simulated in seconds."""
    random = np.random.default_rng([seed, number])
    while True:
        scenario = _draw(seed, number, random)
        requests = scenario.expected_requests()
        if requests > MOST_REQUESTS:
            scenario = replace(scenario, slowdown=min(requests / MOST_REQUESTS, MOST_SLOWDOWN))
            requests = scenario.expected_requests()
        if FEWEST_REQUESTS <= requests <= MOST_REQUESTS * 1.2:
            return scenario


def draw_kind(seed: int, count: int, kind: str) -> list[Scenario]:
    """Return the first scenarios of a seed with `fixed` or `moving` workers, fixed ones of many `phases`, or `all`."""
    return list(islice((one for number in count_from() if _is_of(one := draw(seed, number), kind)), count))


def _is_of(scenario: Scenario, kind: str) -> bool:
    if kind == "phases":
        return not scenario.moving and len(scenario.phases) >= 3
    return kind == "all" or scenario.moving is (kind == "moving")


def layouts(scenario: Scenario) -> list[list[tuple[str, Role]]]:
    """Return what a fixed cluster could be: every split of each pool (some, where there are many), and all mixed."""
    counts = [range(pool.workers + 1) for pool in scenario.pools]
    splits = [each for each in product(*counts) if 0 < sum(each) < scenario.workers]
    step = ceil(len(splits) / _MOST_LAYOUTS)
    found = []
    for split in splits[::step]:
        workers: list[tuple[str, Role]] = []
        for pool, prefills in zip(scenario.pools, split, strict=True):
            workers += [(pool.name, Role.PREFILL)] * prefills
            workers += [(pool.name, Role.DECODE)] * (pool.workers - prefills)
        found.append(workers)
    return [*found, [(pool.name, Role.MIXED) for pool in scenario.pools for _ in range(pool.workers)]]


def _draw(seed: int, number: int, random: np.random.Generator) -> Scenario:
    model = str(random.choice(list(HARDWARE)))
    moving = random.random() < 0.2
    phases = int(random.choice([1, 1, 2, 3, 4, 5]))
    prompt, output, load = (_log_uniform(random, *bounds) for bounds in (PROMPT_TOKENS, OUTPUT_TOKENS, LOADS))
    sharing = random.random() < 0.4 and prompt > 4 * PREFIX_BLOCK_TOKENS
    several = random.random() < 0.3
    scenario = Scenario(
        seed=seed,
        number=number,
        model=model,
        pools=_pools(model, int(random.choice(WORKERS)), random, unlike=not moving and random.random() < 0.25),
        phases=_phases(phases, prompt, output, load, random),
        prompt_spread=float(random.choice([0.0, random.uniform(0.2, 1.3)])),
        output_spread=float(random.choice([0.0, random.uniform(0.2, 1.3)])),
        cv=float(random.choice([0.0, 1.0, 1.0, random.uniform(1.5, MOST_CV)])),
        kv_requests=_log_uniform(random, *KV_REQUESTS),
        ttft_prefills=_log_uniform(random, *TTFT_PREFILLS),
        tpot_steps=_log_uniform(random, *TPOT_STEPS),
        prefixes=int(random.integers(1, 20)) if sharing else 0,
        prefix_share=float(random.uniform(0.3, 0.9)),
        classes=int(random.integers(2, 4)) if several else 1,
        gateways=int(random.choice([1, 1, 2, 3])),
        moving=moving,
    )
    if number % EVERY == _SLOW_LINK:
        pools = _pools(model, max(2, scenario.workers), random, unlike=True)
        return replace(scenario, pools=pools, moving=False, link_prefills=_log_uniform(random, *LINK_PREFILLS))
    if number % EVERY == _SHARED_CORES:
        return replace(scenario, moving=False, crowded=_log_uniform(random, *CROWDED))
    return scenario


def _phases(
    count: int, prompt: float, output: float, load: float, random: np.random.Generator
) -> tuple[ScenarioPhase, ...]:
    """Return phases around a mix and a load; of one phase, exactly these."""
    if count == 1:
        seconds = float(random.uniform(300, 480))
        return (ScenarioPhase(seconds=seconds, prompt_tokens=prompt, output_tokens=output, load=load),)
    return tuple(
        ScenarioPhase(
            seconds=float(random.uniform(120, 200)),
            prompt_tokens=float(np.clip(prompt * _log_uniform(random, 0.25, 4), *PROMPT_TOKENS)),
            output_tokens=float(np.clip(output * _log_uniform(random, 0.25, 4), *OUTPUT_TOKENS)),
            load=float(np.clip(load * random.uniform(0.6, 1.4), *LOADS)),
        )
        for _ in range(count)
    )


def _pools(model: str, workers: int, random: np.random.Generator, *, unlike: bool) -> tuple[ScenarioPool, ...]:
    kinds = HARDWARE[model]
    if not unlike:
        return (_pool("a", kinds[int(random.integers(len(kinds)))], workers),)
    first, second = random.permutation(len(kinds))[:2]
    share = int(random.integers(1, workers))
    return (_pool("a", kinds[first], share), _pool("b", kinds[second], workers - share))


def _pool(name: str, kind: tuple[str, int, Precision], workers: int) -> ScenarioPool:
    return ScenarioPool(name=name, accelerator=kind[0], tensor=kind[1], weights=kind[2], workers=workers)


def _slowed(speed: WorkerSpeed, factor: float) -> WorkerSpeed:
    """Return a worker of which everything takes `factor` times as long."""
    k = scaled(speed.coefficients, factor=factor)
    prefill = {name: factor * getattr(k, name) for name in ("prefill_a", "prefill_b", "prefill_c")}
    return replace(
        speed,
        coefficients=msgspec.structs.replace(k, **prefill),
        transfer_base_seconds=speed.transfer_base_seconds * factor,
        transfer_seconds_per_token=speed.transfer_seconds_per_token * factor,
    )


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))
