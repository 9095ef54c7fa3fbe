"""What hostile clients cost a gateway, and what the other clients notice of it.

One real gateway process (compiled, Predictive, two prefill and two decode workers) over engines that take 25 ms for a
leg. The other clients send 100 requests a second at random times. Each attack (its process, its pace and its
connections are said in _loopback/attacks.py) is on for a period and off for the next, several times; the order changes
from pair to pair, so that what else the machine does meets both alike. Printed for each attack:

- `CPU`: CPU seconds of the gateway per second of the attack, less what it takes when it is off.
- `p99`: of the other clients' whole answers, off and on, medians over the pairs; `ratio`: the median of the pairs'
  ratios.

`nothing` is no attack: what its two halves differ by is this machine's noise. Fails when an attack takes more than a
quarter of a core, makes a request of others fail, or raises their p99 by more than 20 % and the noise, twice in a row.

    python benchmarks/hostile.py [--quick] [--pure] [--only ATTACK]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from _loopback.attacks import ATTACKS
from _loopback.launch import HERE, free_ports, printed_line, started

from gateway import Proxy, compiled, config

RATE = 100.0
"""Requests a second of the other clients."""
PERIOD_SECONDS = 3.0
WARM_UP_SECONDS = 0.5
"""From the beginning of an attack until what others see counts: the connections have to be opened."""
SETTLE_SECONDS = 0.3
ONE_BY_ONE = tuple(name for name in ATTACKS if name not in ("nothing", "full_house"))
"""`full_house` is that of full_house.py."""
CPU_TARGET = 0.25
P99_TARGET = 1.2


@dataclass
class Outcome:
    """One attack."""

    warm_up_seconds: float = WARM_UP_SECONDS
    cpu: list[float] = field(default_factory=list)
    on: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    failures: int = 0
    connections: int = 0
    megabytes: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return statistics.median(on / off for on, off in zip(self.on, self.off, strict=True))

    @property
    def cpu_seconds(self) -> float:
        return statistics.median(self.cpu)

    def faults(self, noise: float) -> list[str]:
        """What is wrong with it."""
        found = []
        if self.cpu_seconds > CPU_TARGET:
            found.append(f"takes {self.cpu_seconds:.2f} of a core (<= {CPU_TARGET})")
        if self.ratio > P99_TARGET * noise:
            found.append(f"raises the p99 of others {self.ratio:.2f} times (<= {P99_TARGET * noise:.2f})")
        if self.failures:
            found.append(f"fails {self.failures} requests of others")
        return found


class Bench:
    """A gateway, its neighbours, and attackers."""

    def __init__(
        self, stack: contextlib.ExitStack, *, pure: bool, options: Sequence[str] = (), before: Sequence[str] = ()
    ) -> None:
        """`options` of the gateway's command, which stands behind the command `before`."""
        self._stack = stack
        *engines, self._port = free_ports(5)
        printed_line(stack.enter_context(started([sys.executable, script("patient_engine"), *map(str, engines)])))
        workers = []
        for role, port in zip(("prefill", "prefill", "decode", "decode"), engines, strict=True):
            workers += ["--static-worker", f"{role}=http://127.0.0.1:{port}?agent={port}"]
        command = [
            *before, sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", "127.0.0.1",
            "--port", str(self._port), "--no-prewarm", "--log-level", "WARNING", "--lame-duck-seconds", "0",
            "--config", config("Predictive"), *workers, *options,
        ]  # fmt: skip
        process = stack.enter_context(started(command, package=None if pure else compiled(), silent=True))
        self.gateway = Proxy("gateway", self._port, process)
        self._neighbours = stack.enter_context(started([sys.executable, script("neighbours"), str(self._port)]))
        deadline = time.monotonic() + 120
        while not self.period(2.0)["requests"]:
            if time.monotonic() > deadline or process.poll() is not None:
                sys.exit("the gateway did not come up")
        self.period(PERIOD_SECONDS)

    def period(self, seconds: float) -> dict[str, Any]:
        """What the other clients see in so many seconds, and the gateway's CPU time per second."""
        before, began = self.gateway.cpu_seconds(), time.monotonic()
        tell(self._neighbours, f"{RATE} {seconds}")
        seen: dict[str, Any] = json.loads(printed_line(self._neighbours))
        return seen | {"cpu": (self.gateway.cpu_seconds() - before) / (time.monotonic() - began)}

    def attack(
        self, name: str, pairs: int, sizes: Sequence[int] = (), warm_up_seconds: float = WARM_UP_SECONDS
    ) -> Outcome:
        """Pairs of periods with and without an attack.

        Attackers have machines of their own; here they get what CPU time the others leave.
        """
        outcome = Outcome(warm_up_seconds=warm_up_seconds)
        command = ["nice", "-n", "19", sys.executable, script("attacks"), name, str(self._port), *map(str, sizes)]
        with started(command) as attacker:
            printed_line(attacker)
            for number in range(pairs):
                periods = [self._on, self._off] if number % 2 else [self._off, self._on]
                cpu = sum(measure(attacker, outcome) for measure in periods)
                outcome.cpu.append(cpu)
        return outcome

    def _on(self, attacker: subprocess.Popen[str], outcome: Outcome) -> float:
        tell(attacker, str(outcome.warm_up_seconds + PERIOD_SECONDS + SETTLE_SECONDS))
        time.sleep(outcome.warm_up_seconds)
        seen = self.period(PERIOD_SECONDS)
        report = json.loads(printed_line(attacker))
        time.sleep(SETTLE_SECONDS)
        outcome.on.append(seen["p99"])
        outcome.failures += seen["failures"]
        outcome.connections += report["connections"]
        outcome.megabytes += report["megabytes"]
        for status, count in report["statuses"].items():
            outcome.statuses[status] = outcome.statuses.get(status, 0) + count
        return float(seen["cpu"])

    def _off(self, _: subprocess.Popen[str], outcome: Outcome) -> float:
        seen = self.period(PERIOD_SECONDS)
        outcome.off.append(seen["p99"])
        outcome.failures += seen["failures"]
        return -float(seen["cpu"])


def script(name: str) -> str:
    return str(HERE / f"{name}.py")


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def row(name: str, outcome: Outcome) -> str:
    off, on = statistics.median(outcome.off) / 1e3, statistics.median(outcome.on) / 1e3
    statuses = " ".join(f"{status}:{count}" for status, count in sorted(outcome.statuses.items()))
    return (
        f"{name:<16}{outcome.cpu_seconds:>8.3f}{off:>10.1f}{on:>10.1f}{outcome.ratio:>8.2f}{outcome.failures:>8}"
        f"{outcome.connections:>8}{outcome.megabytes:>9.1f}  {statuses}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    parser.add_argument("--pure", action="store_true", help="the gateway uncompiled")
    parser.add_argument("--only", action="append", choices=list(ONE_BY_ONE))
    options = parser.parse_args()
    pairs = 3 if options.quick else 8
    faults = []
    with contextlib.ExitStack() as stack:
        bench = Bench(stack, pure=options.pure)
        print(f"{'attack':<16}{'CPU':>8}{'p99 off':>10}{'p99 on':>10}{'ratio':>8}{'failed':>8}{'conns':>8}{'MB':>9}")
        print(f"{'':<16}{'s/s':>8}{'ms':>10}{'ms':>10}{'':>8}{'':>8}{'':>8}{'':>9}  answers")
        quiet = bench.attack("nothing", pairs)
        print(row("nothing", quiet), flush=True)
        noise = max(quiet.ratio, 1 / quiet.ratio)
        for name in options.only or list(ONE_BY_ONE):
            outcome = bench.attack(name, pairs)
            print(row(name, outcome), flush=True)
            if outcome.faults(noise):
                outcome = bench.attack(name, pairs)
                print(row("  again", outcome), flush=True)
                faults += [f"{name} {fault}" for fault in outcome.faults(noise)]
    print(f"noise: the p99 of two quiet periods differs by {noise - 1:.0%}")
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
