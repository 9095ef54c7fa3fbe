"""DistServe's placements, searched with its published fits: parallelism of prefill and decode, goodput per GPU.

DistServe (arXiv 2401.09670) prints for ShareGPT (prefill TP,PP | decode TP,PP): OPT-13B 2,1|1,1, OPT-66B 4,1|2,2, with
90 % of the requests inside 200 and 400 ms to the first token, 100 ms per token. On one node of four A100 its simulator
finds 1.56 requests/s per GPU for 13B.

Prompts have the deciles of the requests in its repository, forward passes take what its fits say, KV memory is what it
published, tensor parallelism is a power of two. A pipeline of n stages takes a batch every n-th part of a forward pass,
and n of these for each prompt; a decode batch is cut into n parts. A run is as long at any rate.

Two searches are printed: the smallest node that holds both workers, against which the published ones are held, and
four nodes of eight, where pairs of up to 32 GPUs are candidates. The larger a pair is, the more it carries per GPU in
the simulator: weights leave more memory for KV, and one queue serves more GPUs.

Both placements of a node are then compared on the same eight draws of 300 requests, with what each phase carries alone
by its bound. OPT-66B: by the published fits a decode step of B requests takes 30.8 + 0.063 B ms on 4,1 and 48.3 +
0.064 B ms on 2,2 (and 4 % more for the context), and both hold 78,500 tokens of KV. So 4,1 decodes faster at any batch:
these fits cannot prefer the printed 2,2, however stages are priced.

The exit code is 1 when a published placement carries less than 90 % of the best one found on its node, or when the
search on 32 GPUs takes 10 s or more.

    python benchmarks/placement_distserve.py [--reference FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np
from distserve import synthetic
from distserve_model import REFERENCE, STEP_TOKENS, Fits, ShortestQueue, mean_gap
from numpy.typing import NDArray

from fulcrum.api.worker import DecodePoint, SpeedCoefficients
from fulcrum.capacity.profile import ProfileError, distserve_speed
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.placement.homogeneous import Found, Pairing, Phase, best_per_gpu, pairings, phases, replicated
from fulcrum.simulation.cluster import ClusterModel, FirstToken, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.workload import Workload

RUN_SECONDS = 100.0
CHAINED = 8
DRAWS = range(100, 108)
"""Seeds of the draws on which found and published placement are compared; the search uses others."""
CLOSE = 0.9
LIMIT_SECONDS = 10.0
GOLDEN_RATE = 1.56
SLACK = 1.1
"""On the bound of decoding: a tenth of the requests may see longer steps than promised."""
UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its promise, and the placement that DistServe prints."""

    model: str
    slo: LatencyTargets
    published: Pairing
    node_gpus: int


CASES = (
    Case(
        model="facebook/opt-13b",
        slo=LatencyTargets(ttft_seconds=0.2, tpot_seconds=0.1, attainment=0.9),
        published=Pairing(Phase(2, 1), Phase(1, 1)),
        node_gpus=4,
    ),
    Case(
        model="facebook/opt-66b",
        slo=LatencyTargets(ttft_seconds=0.4, tpot_seconds=0.1, attainment=0.9),
        published=Pairing(Phase(4, 1), Phase(2, 2)),
        node_gpus=8,
    ),
)


class Published(Fits):
    """DistServe's fits of any parallelism and model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._document = json.loads((folder / "distserve_profile_a100.json").read_bytes())

    def fits(self, model: str, phase: Phase) -> bool:
        """Report whether fit and KV memory of a parallelism were published; powers of two only."""
        return (
            phase.tensor & (phase.tensor - 1) == 0
            and (model, phase.tensor, phase.pipeline) in self._room
            and str(phase.tensor) in self._document[model]
        )

    def worker(self, model: str, phase: Phase) -> WorkerSpeed:
        """Return the worker: prefill is the time of one stage, a decode step passes all of them with a part each."""
        stages = phase.pipeline
        try:
            one = distserve_speed(
                self._document,
                model,
                tensor=phase.tensor,
                kv_capacity_tokens=self._room[model, phase.tensor, stages],
                max_batched_tokens=STEP_TOKENS,
                stage_seconds=0.0,
            )
        except KeyError as error:
            raise ProfileError(f"{model} {phase}: {error}") from None
        k = one.coefficients
        staged = SpeedCoefficients(
            prefill_a=k.prefill_a / stages + 1e-3 * stages,
            prefill_b=k.prefill_b / stages,
            prefill_c=k.prefill_c / stages,
            decode_a=k.decode_a,
            decode_b=k.decode_b / stages,
            decode_c=k.decode_c / stages,
            decode_curve=tuple(
                DecodePoint(
                    batch=each.batch * stages, seconds=each.seconds, seconds_per_token=each.seconds_per_token / stages
                )
                for each in k.decode_curve
            ),
        )
        return replace(one, coefficients=staged)


@dataclass(frozen=True, slots=True)
class Judge:
    """Bounds and simulated shares of one case."""

    case: Case
    fits: Published
    load: Workload

    def prefill_bound(self, phase: Phase) -> float:
        """Return requests/s with full steps, and 0 where most prompts alone are late."""
        speed = self.fits.worker(self.case.model, phase)
        lengths = self.load.prompt_tokens.astype(float)
        alone = speed.prefill_seconds(0.0, 0.0) + (
            speed.coefficients.prefill_b * lengths + speed.coefficients.prefill_c * lengths**2
        )
        if (alone * phase.pipeline <= self.case.slo.ttft_seconds).mean() < self.case.slo.attainment:
            return 0.0
        constant = speed.coefficients.prefill_a
        busy = float(alone.mean()) - constant * (1 - lengths.mean() / STEP_TOKENS)
        return 1 / busy

    def decode_bound(self, phase: Phase) -> float:
        """Return requests/s with the largest batch whose steps are no longer than promised."""
        speed = self.fits.worker(self.case.model, phase)
        prompts, outputs = self.load.prompt_tokens.astype(float), self.load.output_tokens.astype(float)
        context = float((outputs * (prompts + outputs / 2)).sum() / outputs.sum())
        most = min(speed.max_batch, speed.kv_capacity_tokens / context)
        batches = np.arange(1, int(most) + 1)
        steps = np.array([speed.decode_step_seconds(int(batch), float(batch) * context) for batch in batches])
        allowed = steps <= SLACK * self.case.slo.tpot_seconds
        return float((batches / steps)[allowed].max() / outputs.mean()) if allowed.any() else 0.0

    def bound(self, pair: Pairing) -> float:
        """Return what neither phase exceeds."""
        return min(self.prefill_bound(pair.prefill), self.decode_bound(pair.decode))

    def share(self, pair: Pairing, rate: float) -> float:
        """Simulate the pair."""
        return self._simulated(pair.prefill, pair.decode, rate, ttft=True, tpot=True)

    def prefill_share(self, phase: Phase, rate: float) -> float:
        """Simulate prefill alone: decoding takes no time."""
        return self._simulated(phase, None, rate, ttft=True, tpot=False)

    def decode_share(self, phase: Phase, rate: float) -> float:
        """Simulate decoding alone: prefill takes no time."""
        return self._simulated(None, phase, rate, ttft=False, tpot=True)

    def _simulated(self, prefill: Phase | None, decode: Phase | None, rate: float, *, ttft: bool, tpot: bool) -> float:
        free = replace(
            self.fits.worker(self.case.model, prefill or decode or Phase(1, 1)),
            coefficients=SpeedCoefficients(
                prefill_a=1e-9, prefill_b=0.0, prefill_c=0.0, decode_a=1e-9, decode_b=0.0, decode_c=0.0
            ),
            kv_capacity_tokens=UNBOUNDED,
        )
        speeds = [self.fits.worker(self.case.model, phase) if phase else free for phase in (prefill, decode)]
        names = ("prefill", "decode")
        cluster = ClusterModel(
            pools=tuple(PoolModel(name=name, speed=speed) for name, speed in zip(names, speeds, strict=True)),
            first_token=FirstToken.PREFILL,
        )
        policy = ShortestQueue(pool="prefill", prefill=1, decode=1, decode_pool="decode")
        load = self.load.at(np.arange(int(min(max(rate * RUN_SECONDS, 300), len(self.load)))))
        result = simulate(load.scaled(rate * mean_gap(self.load)), cluster, policy, slo=self.case.slo)
        late = np.zeros(len(load))
        if prefill is not None and prefill.pipeline > 1:
            # The worker is free again after one stage; the prompt still has to pass the others.
            lengths = load.prompt_tokens.astype(float)
            k = self.fits.worker(self.case.model, prefill).coefficients
            late = (prefill.pipeline - 1) * (k.prefill_a + k.prefill_b * lengths + k.prefill_c * lengths**2)
        first = result.ttft_seconds + late <= (self.case.slo.ttft_seconds if ttft else inf)
        others = ~(result.tpot_seconds > (self.case.slo.tpot_seconds if tpot else inf))
        return float((first & others).mean())


def searched(judge: Judge, *, node_gpus: int, nodes: int) -> Found[Pairing]:
    """Search low affinity."""
    candidates = pairings(node_gpus=node_gpus, nodes=nodes, fits=lambda phase: judge.fits.fits(judge.case.model, phase))
    return best_per_gpu(candidates, bound=judge.bound, share=judge.share, target=judge.case.slo.attainment)


def compared(judge: Judge, pairs: tuple[Pairing, ...]) -> None:
    """Print goodput per GPU of each pair on the same draws, and by how much the first one is better."""
    goodputs = np.empty((len(pairs), len(DRAWS)))
    for draw, seed in enumerate(DRAWS):
        each = replace(judge, load=synthetic(seed, None))
        for row, pair in enumerate(pairs):
            found = best_per_gpu([pair], bound=each.bound, share=each.share, target=judge.case.slo.attainment)
            goodputs[row, draw] = found.goodput_per_gpu
    for pair, row in zip(pairs, goodputs, strict=True):
        bounds = (judge.prefill_bound(pair.prefill) / pair.gpus, judge.decode_bound(pair.decode) / pair.gpus)
        print(f"  {pair}: {average(row)} on {len(DRAWS)} draws; bounds {bounds[0]:.2f} prefill, {bounds[1]:.2f} decode")
    if len(pairs) > 1:
        print(f"  the first is better by {average(goodputs[0] - goodputs[1])}")


def average(values: NDArray[np.float64]) -> str:
    """Return mean and standard error."""
    return f"{values.mean():.3f} +- {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def chained() -> Workload:
    """Return draws of the repository's requests one after the other, at about 3/s."""
    parts = [synthetic(seed, None) for seed in range(CHAINED)]
    starts = np.cumsum([0.0] + [part.duration_seconds + mean_gap(part) for part in parts[:-1]])
    return Workload(
        arrival_seconds=np.concatenate(
            [part.arrival_seconds + start for part, start in zip(parts, starts, strict=True)]
        ),
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        qos_class=np.concatenate([part.qos_class for part in parts]),
    )


def main() -> int:
    """Print the placements; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="folder of distserve_*.json and .csv")
    folder = parser.parse_args().reference
    if not (folder / "distserve_profile_a100.json").exists():
        print(f"skipped: {folder} has no distserve_profile_a100.json")
        return 0
    fits, missed, load = Published(folder), 0, chained()
    for case in CASES:
        judge = Judge(case, fits, load)
        found = searched(judge, node_gpus=case.node_gpus, nodes=1)
        target = case.slo.attainment
        published = best_per_gpu([case.published], bound=judge.bound, share=judge.share, target=target)
        close = published.goodput_per_gpu >= CLOSE * found.goodput_per_gpu
        golden = f" (DistServe: {GOLDEN_RATE})" if case is CASES[0] else ""
        print(
            f"{case.model} on {case.node_gpus} A100: {found.best} with {found.goodput_per_gpu:.2f} requests/s per GPU; "
            f"published {case.published} with {published.goodput_per_gpu:.2f}{golden} {'ok' if close else 'MISSED'}"
        )
        compared(judge, tuple(dict.fromkeys((found.best, case.published))))
        began = time.perf_counter()
        wide = searched(judge, node_gpus=8, nodes=4)
        seconds = time.perf_counter() - began
        print(
            f"  on 4 nodes of 8: {wide.best} with {wide.goodput_per_gpu:.2f}; {wide.simulated} of {wide.candidates} "
            f"simulated, {seconds:.1f} s {'ok' if seconds < LIMIT_SECONDS else 'TOO LONG'}"
        )
        missed += (not close) + (seconds >= LIMIT_SECONDS)
        alone = phases(node_gpus=8, nodes=1, fits=lambda phase, model=case.model: fits.fits(model, phase))
        placed = replicated(
            best_per_gpu(alone, bound=judge.prefill_bound, share=judge.prefill_share, target=target),
            best_per_gpu(alone, bound=judge.decode_bound, share=judge.decode_share, target=target),
            rate=10.0,
        )
        print(
            f"  each phase apart: {placed.prefill_workers} x {placed.prefill} and {placed.decode_workers} x "
            f"{placed.decode} for 10 requests/s, {10 / placed.gpus:.2f} per GPU"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
