"""Partial recomputation on a real engine: a prefix that left the device comes back over a link of a set speed.

    python benchmarks/kv_restore.py [--factors 0.5 1 2] [--repeat 2]

Prints the time to the first token for the link at each factor of parity (where loading takes as long as computing):
all loaded, all recomputed, eight fixed splits, and the split that the engine chose, with what it predicted, and what
the simulator makes of the speeds that the engine knew. Then a link that becomes 20 times slower once an eighth of the
prefix came over it. Then, at parity, the TPOT of a batch that decodes while the prefix comes back, for each of these
ways. The last line is the simulator's median error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worker_image.agents import wait_until
from tests.worker_image.tiered_engine import (
    BLOCK_TOKENS,
    ROOM_TOKENS,
    Answer,
    TieredEngine,
    bytes_per_token,
    tiered_engine,
)

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel, PoolModel
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.kv_tiers import KvTiers
from fulcrum.simulation.policies import Aggregated
from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS
from fulcrum.simulation.workload import Workload

LEARNT_FROM = (100, 150, 400, 800, 1200, 1600, 2000)
"""Prompts from which the engine learns its speed before anything is measured; the first one is slow."""
BATCH, BATCH_TOKENS = 2, 192
"""Answers that decode meanwhile, and their tokens: what the device's cache holds beside the prompt."""
PROMPT_TOKENS = 4 * PREFIX_BLOCK_TOKENS + BLOCK_TOKENS // 2
"""The engine and the simulator, whose blocks are larger, find the same 2,048 tokens of it."""


def simulated_seconds(known: dict[str, Any]) -> float:
    """Return the simulated TTFT of a prompt whose KV is in host memory, from what the engine knew when it decided."""
    speed = WorkerSpeed(coefficients=msgspec.convert(known["speed"], SpeedCoefficients), kv_capacity_tokens=ROOM_TOKENS)
    tiers = KvTiers(
        host_tokens=4 * PROMPT_TOKENS,
        host_link=TransferCost(base_seconds=0.0, seconds_per_token=known["seconds_per_token"]),
    )
    cluster = ClusterModel(pools=(PoolModel(name="p", speed=speed),), kv_tiers=tiers, block_tokens=BLOCK_TOKENS)
    first, other = tuple(range(4)), tuple(range(4, 8))
    load = Workload(
        arrival_seconds=np.array([0.0, 100.0, 200.0]),
        prompt_tokens=np.full(3, PROMPT_TOKENS, dtype=np.int32),
        output_tokens=np.ones(3, dtype=np.int32),
        qos_class=np.zeros(3, dtype=np.int16),
        prefix_ids=(first, other, first),
    )
    hurry = LatencyTargets(ttft_seconds=1e-3, tpot_seconds=1.0, attainment=0.95)
    return float(simulate(load, cluster, Aggregated(pool="p", workers=1), slo=hurry).ttft_seconds[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt whose KV is in host memory."""

    engine: TieredEngine
    prompt: list[int]
    answers: set[tuple[int, ...]]
    """Its cold answer, and that with its prefix on the device: other chunks round otherwise, so they may differ."""
    repeat: int

    @property
    def matched(self) -> int:
        """Tokens in whole blocks before the last token."""
        return (len(self.prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def least(self, *, repeat: int | None = None, **link: Any) -> float:
        """The least time to the first token of some runs, with nothing on the device before each."""
        self.engine.set(**link)
        seconds = []
        for _ in range(repeat or self.repeat):
            self.engine.forget()
            answer = self.engine.ask(self.prompt)
            if answer.tokens not in self.answers:
                print(f"  other tokens than cold, or with the prefix on the device: {link}", flush=True)
            seconds.append(answer.ttft_seconds)
        return min(seconds)

    def at(self, factor: float, rate: float) -> float:
        """Print one line: the link at `rate` bytes per second; returns the simulator's relative error."""
        load = self.least(repeat=1, split="load", bytes_per_second=rate)
        recompute = self.least(split="none", bytes_per_second=rate)
        splits = [round(self.matched * part / 9 / BLOCK_TOKENS) * BLOCK_TOKENS for part in range(1, 9)]
        fixed = {split: self.least(repeat=1, split=split, bytes_per_second=rate) for split in splits}
        best = min(fixed, key=lambda split: fixed[split])
        chosen = self.least(split="auto", bytes_per_second=rate)
        way = self.engine.decision()["way"]
        predicted, simulated = way["predicted_seconds"], simulated_seconds(self.engine.decision())
        print(
            f"{factor:>4g} x parity: load {load:.2f} s, recompute {recompute:.2f} s, best of 8 splits {fixed[best]:.2f}"
            f" s (at {best}), chosen {chosen:.2f} s (at {way['recompute_tokens']}): {chosen / min(load, recompute):.2f}"
            f" of the better of both, {chosen / fixed[best]:.2f} of the best split; predicted {predicted:.2f} s"
            f" ({predicted / chosen - 1:+.0%}), simulated {simulated:.2f} s ({simulated / chosen - 1:+.0%})",
            flush=True,
        )
        return simulated / chosen - 1

    def turns_slow(self, rate: float) -> None:
        """Print the last line."""
        recompute = self.least(split="none")
        self.least(repeat=1, split="load", bytes_per_second=rate)
        before = self.matched // BLOCK_TOKENS // 8
        slow = self.least(
            repeat=1, split="auto", bytes_per_second=rate, then_bytes_per_second=rate / 20, blocks_before=before
        )
        print(f"20 times slower in mid-load: {slow:.2f} s, {slow / recompute:.2f} of recomputing ({recompute:.2f} s)")

    def beside(self, rate: float) -> None:
        """Print the TPOT of a batch that decodes meanwhile, for each way to restore, beside that of the batch alone."""
        self.engine.set(bytes_per_second=rate)
        alone = min((self._decode(restores=False) for _ in range(self.repeat)), key=_tpot)
        print(
            f"{BATCH} answers of {BATCH_TOKENS} tokens alone: TPOT {_tpot(alone) * 1e3:.1f} ms, longest gap "
            f"{_longest(alone):.2f} s",
            flush=True,
        )
        for way, name in (("load", "load"), ("auto", "chosen"), ("none", "recompute")):
            self.engine.set(split=way, bytes_per_second=rate)
            met = min((self._decode(restores=True) for _ in range(self.repeat)), key=_tpot)
            print(
                f"  beside a prefix that comes back, {name}: TPOT {_tpot(met) * 1e3:.1f} ms, "
                f"{_tpot(met) / _tpot(alone):.2f} of alone, longest gap {_longest(met):.2f} s",
                flush=True,
            )

    def _decode(self, *, restores: bool) -> list[Answer]:
        """The answers of a batch; the prompt is asked once all of them decode."""
        self.engine.forget()
        prompts = [self.engine.prompt(BLOCK_TOKENS // 2) for _ in range(BATCH)]
        with ThreadPoolExecutor(BATCH) as threads:
            batch = [threads.submit(self.engine.ask, each, max_tokens=BATCH_TOKENS) for each in prompts]
            wait_until(
                lambda: self.engine.metric("vllm:num_requests_running") == BATCH, seconds=60, what="the batch decodes"
            )
            if restores:
                self.engine.ask(self.prompt)
                assert not any(each.done() for each in batch), "the batch decodes all the while"
            return [each.result() for each in batch]


def _tpot(answers: Sequence[Answer]) -> float:
    """Mean seconds per output token."""
    return mean(gap for each in answers for gap in each.gaps)


def _longest(answers: Sequence[Answer]) -> float:
    return max(gap for each in answers for gap in each.gaps)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument(
        "--repeat", type=int, default=2, help="runs of recomputing and of the chosen split; least counts"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tiered_engine(Path(folder)) as engine:
        for tokens in LEARNT_FROM:
            engine.ask(engine.prompt(tokens), max_tokens=1)
        prompt = engine.prompt(PROMPT_TOKENS)
        answers = {engine.ask(prompt).tokens for _ in range(2)}
        case = Case(engine=engine, prompt=prompt, answers=answers, repeat=asked.repeat)
        recompute = case.least(split="none")
        parity = case.matched * bytes_per_token("bf16") / recompute
        print(f"{case.matched} tokens recomputed in {recompute:.2f} s: parity at {parity / 1e6:.1f} MB/s", flush=True)
        errors = [case.at(factor, factor * parity) for factor in asked.factors]
        case.turns_slow(parity)
        case.beside(parity)
    print(f"simulated against measured: median error {median(map(abs, errors)):.0%}")


if __name__ == "__main__":
    main()
