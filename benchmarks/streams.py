"""What one gateway bears: thousands of idle streams, and clients that do not read what they asked for.

Engines, clients and the gateway are processes of their own on loopback. An idle stream gets a token
every 8 s. Each takes two file descriptors of the gateway (the client's and the engine's), so the number is
bounded by `ulimit -Hn`; the run says so where it had to take fewer. Slow readers ask for 16 MiB in a stream (`mute`
reads nothing, `drip` a byte a second), for a whole answer of 4 MiB (`large`), or for the metrics a thousand times on
one connection (`pile`). Printed for each: the gateway's memory, what the kernel holds for all sockets of this machine,
the latency of ordinary two-leg requests meanwhile, and how much of what was asked is still held at the end.

    python benchmarks/streams.py [--quick] [--streams N] [--slow N]

Fails when an idle stream is lost or costs over 32 KiB, when slow readers take over 200 MB of the gateway, when any of
their streams still occupies an engine at the end, or when ordinary requests fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from _loopback.launch import HERE, free_ports, printed_line, started

PREFILL = [f"127.0.1.{number}" for number in range(1, 5)]
DECODE = [f"127.0.2.{number}" for number in range(1, 17)]
SPARE_FILES = 80
STREAM_KIB = 32.0
SLOW_MEGABYTES = 200.0
STALL_SECONDS = 60.0
"""Within this time the engines must be free of what slow readers asked for."""
TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """The gateway at one moment, and ordinary requests around it."""

    resident_megabytes: float
    kernel_megabytes: float
    p50_milliseconds: float
    p99_milliseconds: float
    failures: int


class Bench:
    """One gateway, its engines, and what is asked of them."""

    def __init__(
        self, gateway: subprocess.Popen[str], port: int, engines_port: int, inside_port: int, requests: int
    ) -> None:
        self.gateway = gateway
        self.port = port
        self.engines_port = engines_port
        self.inside_port = inside_port
        self.requests = requests
        self.failed: list[str] = []

    def resident_megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.gateway.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.gateway.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_SECONDS

    def cpu_share(self, seconds: float) -> float:
        """Share of a core that the gateway takes while nothing is asked of it."""
        before, began = self.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        return (self.cpu_seconds() - before) / (time.monotonic() - began)

    def sample(self) -> Sample:
        """Ordinary requests from four clients, and the memory while they run."""
        command = [sys.executable, str(HERE / "load.py"), "whole", "4", str(self.requests), str(self.port)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout)
        return Sample(
            self.resident_megabytes(), kernel_megabytes(), result["p50"] / 1e3, result["p99"] / 1e3, result["failures"]
        )

    def held(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://{DECODE[0]}:{self.engines_port}/held", timeout=30) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def clients(self) -> int:
        """Client connections that the gateway has open."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.inside_port}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("fulcrum_gateway_client_connections"):
                    return int(float(line.rsplit(" ", 1)[1]))
        return -1

    def check(self, good: bool, what: str) -> None:
        if not good:
            self.failed.append(what)


def kernel_megabytes() -> float:
    """What the kernel holds in buffers of TCP sockets, all of this machine's."""
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            return int(line.split()[-1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


def ask(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdin is not None
    process.stdin.write("\n")
    return told(process)


def told(process: subprocess.Popen[str]) -> dict[str, int]:
    found: dict[str, int] = json.loads(printed_line(process))
    return found


def held_load(kind: str, count: int, port: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return started([sys.executable, str(HERE / "held_load.py"), kind, str(count), str(port)])


def row(name: str, sample: Sample, more: str) -> None:
    print(
        f"{name:<24}{sample.resident_megabytes:>9.0f} MB{sample.kernel_megabytes:>9.0f} MB"
        f"{sample.p50_milliseconds:>9.2f} ms{sample.p99_milliseconds:>9.2f} ms{sample.failures:>8}  {more}"
    )


def idle(bench: Bench, before: Sample, wanted: int, count: int) -> None:
    with held_load("idle", count, bench.port) as clients:
        began = time.monotonic()
        opened = told(clients)
        seconds = time.monotonic() - began
        share = bench.cpu_share(3.0)
        resident = bench.resident_megabytes()  # once they are idle
        during = bench.sample()
        still, engines = ask(clients), bench.held()
        kib = (resident - before.resident_megabytes) * 1e6 / 1024 / max(opened["held"], 1)
        row(f"{count} idle streams", during, f"{kib:.1f} KiB each; opened in {seconds:.1f} s; {share:.1%} of a core")
        if count < wanted:
            needed = 2 * (wanted + SPARE_FILES)
            print(f"  ({wanted} streams need {needed} files of the gateway; `ulimit -Hn` here is {files()})")
        bench.check(still == {"held": count, "lost": 0, "refused": 0}, f"of {count} idle streams: {still}")
        bench.check(engines["open"] == count, f"engines hold {engines['open']} of {count} idle streams")
        bench.check(kib <= STREAM_KIB, f"an idle stream costs {kib:.1f} KiB")
        bench.check(during.failures == 0, f"{during.failures} ordinary requests failed beside idle streams")
    settle(bench, "idle", 20.0)


def slow(bench: Bench, kinds: list[str], count: int) -> None:
    name = "+".join(kinds)
    baseline = bench.resident_megabytes()
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            clients = stack.enter_context(held_load(kind, count, bench.port))
            told(clients)
        peak = bench.resident_megabytes()
        during = bench.sample()
        began = time.monotonic()
        while True:
            peak = max(peak, bench.resident_megabytes())
            engines, connections = bench.held()["open"], bench.clients()
            seconds = time.monotonic() - began
            if seconds > STALL_SECONDS or not (engines or connections):
                break
            time.sleep(0.25)
        row(
            f"{count} {name}", during,
            f"peak +{peak - baseline:.0f} MB; after {seconds:.0f} s: {engines} on engines, {connections} connected",
        )  # fmt: skip
        bench.check(peak - baseline <= SLOW_MEGABYTES, f"{name}: the gateway grew by {peak - baseline:.0f} MB")
        bench.check(engines == 0, f"{name}: {engines} streams still occupy engines after {seconds:.0f} s")
        bench.check(during.failures == 0, f"{during.failures} ordinary requests failed beside {name} readers")
    settle(bench, name, 20.0)


def settle(bench: Bench, kind: str, seconds: float) -> None:
    """Wait until nothing of it is left."""
    deadline = time.monotonic() + seconds
    while bench.clients() or bench.held()["open"]:
        if time.monotonic() > deadline:
            bench.check(False, f"{kind}: {bench.clients()} connections, {bench.held()['open']} streams are left over")
            return
        time.sleep(0.2)


def files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@contextlib.contextmanager
def serving(requests: int) -> Iterator[Bench]:
    """A gateway with its engines, warm."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files(), files()))
    port, engines_port, inside_port = free_ports(3)
    command = [sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", "127.0.0.1", "--port", str(port),
               "--metrics-port", str(inside_port), "--no-prewarm", "--lame-duck-seconds", "0",
               "--config", config()]  # fmt: skip
    for role, addresses in (("prefill", PREFILL), ("decode", DECODE)):
        for address in addresses:
            command += ["--static-worker", f"{role}=http://{address}:{engines_port}?agent={engines_port}"]
    with (
        started([sys.executable, str(HERE / "held_engine.py"), str(engines_port), *PREFILL, *DECODE]) as engines,
        started(command, silent=True) as gateway,
    ):
        printed_line(engines)
        bench = Bench(gateway, port, engines_port, inside_port, requests=requests)
        wait_until_up(gateway, port)
        bench.sample()
        yield bench


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="1,000 idle streams; 100 slow readers of each kind at once"
    )
    parser.add_argument("--streams", type=int, help="idle streams")
    parser.add_argument("--slow", type=int, help="slow readers of each kind")
    options = parser.parse_args()
    wanted = options.streams or (1_000 if options.quick else 10_000)
    readers = options.slow or (100 if options.quick else 500)
    with serving(2_000 if options.quick else 8_000) as bench:
        print(f"{'':<24}{'gateway':>12}{'kernel':>12}{'p50':>12}{'p99':>12}{'failed':>8}")
        before = bench.sample()
        row("nothing else", before, "")
        idle(bench, before, wanted, min(wanted, files() // 2 - SPARE_FILES))
        kinds = ["mute", "drip", "large", "pile"]
        for together in [kinds] if options.quick else [[kind] for kind in kinds]:
            slow(bench, together, readers)
        after = bench.sample()
        row("afterwards", after, "")
        bench.check(before.failures + after.failures == 0, "ordinary requests failed alone")
    for failure in bench.failed:
        print(f"streams: FAILED: {failure}")
    if not bench.failed:
        print("streams: OK: memory bounded, nothing lost, engines free again, ordinary requests served throughout")
    return 1 if bench.failed else 0


def config() -> str:
    """A gateway's configuration."""
    return json.dumps(
        {"cluster": "bench", "servedName": "bench", "model": "bench", "sloTtftSeconds": 60, "sloTpotSeconds": 10,
         "admission": {"policy": "Predictive"}}
    )  # fmt: skip


def wait_until_up(gateway: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if gateway.poll() is not None:
            sys.exit(f"the gateway ended with {gateway.returncode}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
            return
        time.sleep(0.1)
    sys.exit("the gateway did not come up")


if __name__ == "__main__":
    sys.exit(main())
