"""What probes and other clients notice when a gateway is full of clients that say nothing.

The gateway of hostile.py, under 512 MiB (RLIMIT_DATA), is filled with as many idle connections as it takes here, which
half of the file limit bounds, and with 2,000 heads that never end; what it closes comes again. That is on for a period
and off for the next, several times. Printed: the most connections at once, what the others' p99 is on and off, the
probes that were asked meanwhile, and the gateway's peak memory.

Fails when a probe is not answered with 200, a request of the others fails, their p99 is raised by more than 20 % and
the noise of two quiet periods, or the gateway takes more than 512 MiB.

    python benchmarks/full_house.py [--quick] [--pure] [--connections N] [--heads 2000]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from _loopback.launch import free_ports
from hostile import P99_TARGET, Bench, Outcome

MEMORY_BYTES = 512 << 20
PROBE_SECONDS = 0.2
"""Pause between two probes; a kubelet's is a second."""
WARM_UP_SECONDS = 6.0
"""Until all connections are open: 5,000 a second."""
METRIC = "fulcrum_gateway_client_connections"


class Prober:
    """Asks the internal port for the probes of a kubelet, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked = 0
        self.failed: list[str] = []
        self.most_connections = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def metric(self, name: str) -> float:
        """A gauge of the gateway."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"{name}{{"))

    def _run(self) -> None:
        while not self._stop.wait(PROBE_SECONDS):
            for path in ("/health", "/ready"):
                self.asked += 1
                try:
                    with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
                        assert answer.status == 200
                except OSError as error:  # what is not 200 is one, too
                    self.failed.append(f"{path}: {error}")
            with contextlib.suppress(OSError):
                self.most_connections = max(self.most_connections, self.metric(METRIC))


@dataclass
class Report:
    """What was found."""

    limit: int
    """Most connections at once."""
    held: int
    """Most of them that were seen open."""
    probes: int
    probes_failed: list[str]
    quiet: Outcome
    full: Outcome
    peak_bytes: int

    @property
    def noise(self) -> float:
        return max(self.quiet.ratio, 1 / self.quiet.ratio)

    def faults(self) -> list[str]:
        """What is wrong."""
        found = [f"probe {each}" for each in self.probes_failed[:5]]
        if self.full.failures:
            found.append(f"{self.full.failures} requests of others failed")
        if self.full.ratio > P99_TARGET * self.noise:
            found.append(f"p99 of others {self.full.ratio:.2f} times (<= {P99_TARGET * self.noise:.2f})")
        if self.peak_bytes > MEMORY_BYTES:
            found.append(f"the gateway took {self.peak_bytes >> 20} MiB (<= {MEMORY_BYTES >> 20})")
        if self.held < self.limit:
            found.append(f"only {self.held} of {self.limit} connections were open")
        return found


def measure(*, pairs: int, heads: int, connections: int | None = None, pure: bool = False) -> Report:
    """Run it; `connections`: the gateway's limit, by default its own."""
    (inside,) = free_ports(1)
    options = ["--metrics-port", str(inside)]
    if connections is not None:
        options += ["--max-connections", str(connections)]
    with contextlib.ExitStack() as stack:
        bench = Bench(stack, pure=pure, options=options, before=["prlimit", f"--data={MEMORY_BYTES}"])
        limit = int(Prober(inside).metric(f"{METRIC}_limit"))
        quiet = bench.attack("nothing", pairs)
        with Prober(inside) as prober:
            full = bench.attack("full_house", pairs, (limit, heads), WARM_UP_SECONDS)
        return Report(
            limit=limit,
            held=int(prober.most_connections),
            probes=prober.asked,
            probes_failed=prober.failed,
            quiet=quiet,
            full=full,
            peak_bytes=peak_bytes(bench.gateway.process.pid),
        )


def peak_bytes(pid: int) -> int:
    """Most memory that was resident at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    parser.add_argument("--pure", action="store_true", help="the gateway uncompiled")
    parser.add_argument("--connections", type=int, help="the gateway's limit")
    parser.add_argument("--heads", type=int, default=2_000)
    options = parser.parse_args()
    report = measure(
        pairs=3 if options.quick else 8, heads=options.heads, connections=options.connections, pure=options.pure
    )
    print(f"connections at once: {report.limit} (seen open: {report.held}), and {options.heads} unfinished heads")
    print(f"probes: {report.probes}, of these not 200: {len(report.probes_failed)}")
    for name, outcome in (("quiet", report.quiet), ("full", report.full)):
        on, off = sorted(outcome.on)[len(outcome.on) // 2] / 1e3, sorted(outcome.off)[len(outcome.off) // 2] / 1e3
        print(
            f"others' p99, {name}: {off:.1f} ms off, {on:.1f} on, ratio {outcome.ratio:.2f}, failed {outcome.failures}"
        )
    print(f"CPU of the gateway for it: {report.full.cpu_seconds:.3f} s/s; peak memory {report.peak_bytes >> 20} MiB")
    for fault in report.faults():
        print(f"FAILED: {fault}")
    return 1 if report.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
