"""What a host tier costs where it does not pay: prompts that never come back, an idle engine, a load under way.

    python benchmarks/kv_cost.py [--rounds 5] [--prompts 8] [--policy load]

Two real engines, one with a host tier, one without, get the same new prompts by turns. Prints the median of the rounds'
ratios: in requests/s; in CPU seconds of the thread that runs the engine's steps, which bounds its throughput and which
other work on the machine disturbs less; in CPU seconds of all the engine's processes. Then the share of one core that
both engines use when idle, and the one with a tier while a slow link loads a prefix.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worker_image.tiered_engine import TieredEngine, bytes_per_token, tiered_engine

PROMPT_TOKENS, ANSWER_TOKENS, TOGETHER = 500, 32, 2
LOADED_TOKENS, LOAD_SECONDS, IDLE_SECONDS = 2016, 8.0, 8.0


def cpu_seconds(engine: TieredEngine) -> float:
    """CPU time of the engine's processes so far."""
    main = psutil.Process(engine.process.pid)
    times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def step_seconds(engine: TieredEngine) -> float:
    """CPU time so far of the one thread that runs the engine's steps, which bounds its throughput."""
    times = [
        thread.user_time + thread.system_time
        for process in psutil.Process(engine.process.pid).children(recursive=True)
        for thread in process.threads()
        if thread.id == process.pid
    ]
    return float(max(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What something took."""

    seconds: float
    cpu_seconds: float
    """Of all the engine's processes."""
    step_seconds: float
    """CPU time of the thread that runs the engine's steps."""


def spent(engine: TieredEngine, what: Callable[[], object]) -> Spent:
    """Return what the engine takes while `what` goes on."""
    cpu, step, began = cpu_seconds(engine), step_seconds(engine), time.monotonic()
    what()
    return Spent(
        seconds=time.monotonic() - began,
        cpu_seconds=cpu_seconds(engine) - cpu,
        step_seconds=step_seconds(engine) - step,
    )


def serve(engine: TieredEngine, prompts: Sequence[list[int]]) -> None:
    """Ask all of them, a few at a time."""
    with ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(lambda prompt: engine.ask(prompt, max_tokens=ANSWER_TOKENS), prompts))


def never_hit(tiered: TieredEngine, plain: TieredEngine, rounds: int, count: int) -> None:
    """Print throughput and CPU time with a tier against those without; the first round is not counted."""
    pairs = []
    for number in range(rounds + 1):
        prompts = [plain.prompt(PROMPT_TOKENS) for _ in range(count)]
        both = [tiered, plain] if number % 2 else [plain, tiered]
        used = {id(engine): spent(engine, partial(serve, engine, prompts)) for engine in both}
        if number:
            pairs.append((used[id(tiered)], used[id(plain)]))
    hits = tiered.metric("vllm:prompt_tokens_cached_by_source_total", source="host")
    rates = [without.seconds / having.seconds for having, without in pairs]
    steps = [without.step_seconds / having.step_seconds for having, without in pairs]
    costs = [having.cpu_seconds / without.cpu_seconds for having, without in pairs]
    print(
        f"{rounds} rounds of {count} new prompts, {hits:.0f} tokens from host memory: throughput {median(rates):.1%} "
        f"of that without a tier ({min(rates):.1%} to {max(rates):.1%}), by the CPU time of the thread that runs the "
        f"steps {median(steps):.1%} ({min(steps):.1%} to {max(steps):.1%}); CPU time of all {median(costs):.1%}",
        flush=True,
    )


def idle(engine: TieredEngine, name: str) -> None:
    """Print the share of a core that an engine uses when nothing is asked."""
    used = spent(engine, lambda: time.sleep(IDLE_SECONDS))  # a duration to measure over
    print(f"idle, {name}: {used.cpu_seconds / used.seconds:.1%} of a core", flush=True)


def loading(engine: TieredEngine) -> None:
    """Print the share of a core while a prefix comes over a slow link."""
    prompt = engine.prompt(LOADED_TOKENS)
    for _ in range(2):  # the second one gives the copy to host memory time to end
        engine.ask(prompt)
    engine.forget()
    rate = LOADED_TOKENS * bytes_per_token("bf16") / LOAD_SECONDS
    engine.set(split="load", bytes_per_second=rate)
    used = spent(engine, lambda: engine.ask(prompt, max_tokens=1))
    print(f"loading for {used.seconds:.1f} s: {used.cpu_seconds / used.seconds:.1%} of a core", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--policy", choices=("partialRecompute", "load"), default="partialRecompute")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / each for each in ("tiered", "plain")]
        for each in folders:
            each.mkdir()
        with (
            tiered_engine(folders[0], policy=asked.policy) as tiered,
            tiered_engine(folders[1], tier=False) as plain,
        ):
            never_hit(tiered, plain, asked.rounds, asked.prompts)
            idle(plain, "no tier")
            idle(tiered, "host tier")
            loading(tiered)


if __name__ == "__main__":
    main()
