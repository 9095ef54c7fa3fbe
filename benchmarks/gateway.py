"""CPU cost of the gateway, against PyPI's `vllm-router` (Rust) in its NIXL prefill/decode mode.

Same run, same engines (trivial, in a process of their own), same load (a process of its own), rounds alternating,
medians. The gateway runs twice: with the policy Off, and with Predictive, three classes, the speeds known and a
promise that holds, so that nobody is turned away; prefix affinity is always on. CPU is user plus system time of all
threads, from /proc/<pid>/stat. Streams have 200 chunks; in `burst` they reach the gateway together, in `paced` one by
one. Fails when the gateway with Predictive costs more than 0.6x the router per request or more than 0.5x per streamed
chunk (burst).

    python benchmarks/gateway.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent / "_loopback"
CHUNKS = 200
WHOLE_TARGET = 0.6
CHUNK_TARGET = 0.5
TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """One kind of load."""

    kind: str
    concurrency: int
    requests: int
    units: int
    """What one request counts as: 1, or its chunks."""


@dataclass
class Proxy:
    """A proxy under test and what was measured of it."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    cpu_microseconds: dict[str, list[float]] = field(default_factory=dict)
    p50: dict[str, list[float]] = field(default_factory=dict)
    p99: dict[str, list[float]] = field(default_factory=dict)
    failures: int = 0

    def pids(self) -> list[int]:
        found = [self.process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found.extend(int(child) for child in children)
        return found

    def cpu_seconds(self) -> float:
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total * TICK_SECONDS

    def resident_megabytes(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextlib.contextmanager
def started(command: list[str], port: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process, up once `port` answers a request (or it printed a line); stopped at the end."""
    output = subprocess.PIPE if port is None else subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
    try:
        if port is None:
            assert process.stdout is not None
            assert process.stdout.readline()
        else:
            wait_until_up(process, port)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_up(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{process.args!r} ended with {process.returncode}")
        with contextlib.suppress(OSError):
            result = load("whole", 1, 1, [port])
            if result["requests"] == 1:
                return
        time.sleep(0.2)
    sys.exit(f"{process.args!r} did not come up")


def load(kind: str, concurrency: int, requests: int, ports: list[int]) -> dict[str, float]:
    command = [sys.executable, str(HERE / "load.py"), kind, str(concurrency), str(requests), *map(str, ports)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        return {"requests": 0, "failures": concurrency, "p50": 0, "p99": 0}
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(proxy: Proxy, kind: Load) -> None:
    before = proxy.cpu_seconds()
    result = load(kind.kind, kind.concurrency, kind.requests, [proxy.port])
    cpu_seconds = proxy.cpu_seconds() - before
    proxy.failures += int(result["failures"])
    done = max(result["requests"], 1) * kind.units
    proxy.cpu_microseconds.setdefault(kind.kind, []).append(cpu_seconds * 1e6 / done)
    proxy.p50.setdefault(kind.kind, []).append(result["p50"])
    proxy.p99.setdefault(kind.kind, []).append(result["p99"])


def config(policy: str) -> str:
    """A gateway's configuration."""
    classes = [
        {"name": name, "priority": priority, "reserved": reserved, "match": {"header": "x-tier", "value": name}}
        for name, priority, reserved in (("premium", 100, 0.1), ("standard", 50, 0.3))
    ]
    document = {
        "cluster": "bench", "servedName": "bench", "model": "bench", "sloTtftSeconds": 60, "sloTpotSeconds": 10,
        "admission": {"policy": policy, "classes": [*classes, {"name": "free", "priority": 10}]},
    }  # fmt: skip
    return json.dumps(document)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less load")
    parser.add_argument("--alone", action="store_true", help="only the gateway; no target can fail")
    options = parser.parse_args()
    scale = 4 if options.quick else 1
    rounds = 3 if options.quick else 7
    loads = [
        Load("whole", 32, 12_000 // scale, 1),
        Load("burst", 32, 2_400 // scale, CHUNKS),
        Load("paced", 100, 400 // scale, CHUNKS),
    ]
    prefill, decode, off, predictive, theirs, prometheus = free_ports(6)
    gateway = [
        sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", "127.0.0.1", "--no-prewarm",
        "--lame-duck-seconds", "0", "--log-level", "WARNING",
        "--static-worker", f"prefill=http://127.0.0.1:{prefill}?agent={prefill}",
        "--static-worker", f"decode=http://127.0.0.1:{decode}?agent={decode}",
    ]  # fmt: skip
    script = Path(sys.executable).with_name("vllm-router")
    router = [
        str(script if script.exists() else shutil.which("vllm-router")), "--host", "127.0.0.1", "--port", str(theirs),
        "--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin", "--log-level", "error",
        "--prefill", f"http://127.0.0.1:{prefill}", "--decode", f"http://127.0.0.1:{decode}",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(prometheus),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(started([sys.executable, str(HERE / "engine.py"), str(prefill), str(decode)]))
        proxies = []
        for policy, port in (("Off", off), ("Predictive", predictive)):
            command = [*gateway, "--port", str(port), "--config", config(policy)]
            proxies.append(Proxy(f"fulcrum {policy}", port, stack.enter_context(started(command, port))))
        if not options.alone:
            proxies.append(Proxy("vllm-router", theirs, stack.enter_context(started(router, theirs))))
        direct = load("whole", 4, 2_000, [prefill, decode])
        for proxy in proxies:  # warm up
            for kind in loads[:2]:
                load(kind.kind, kind.concurrency, kind.requests // 8, [proxy.port])
        for number in range(rounds):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                for kind in loads:
                    measure(proxy, kind)
                light = load("whole", 4, 2_000, [proxy.port])
                proxy.p50.setdefault("light", []).append(light["p50"])
                proxy.p99.setdefault("light", []).append(light["p99"])
        return report(proxies, direct)


def report(proxies: list[Proxy], direct: dict[str, float]) -> int:
    columns = ("us/request", "us/chunk", "us/chunk", "added p50", "added p99", "RSS", "failed")
    kinds = ("not streamed", "burst", "paced", "us", "us", "MB", "")
    for line in (columns, kinds):
        print(" " * 18 + "".join(f"{column:>13}" for column in line))
    cost: list[dict[str, float]] = []
    for proxy in proxies:
        cost.append({kind: statistics.median(values) for kind, values in proxy.cpu_microseconds.items()})
        added = [
            statistics.median(values["light"]) - direct[name]
            for name, values in (("p50", proxy.p50), ("p99", proxy.p99))
        ]
        figures = (
            f"{cost[-1]['whole']:.1f}", f"{cost[-1]['burst']:.2f}", f"{cost[-1]['paced']:.2f}", f"{added[0]:.0f}",
            f"{added[1]:.0f}", f"{proxy.resident_megabytes():.0f}", str(proxy.failures),
        )  # fmt: skip
        print(f"{proxy.name:<18}" + "".join(f"{figure:>13}" for figure in figures))
    print(f"(added: two-leg request, 4 clients, minus the same two legs without a proxy: p50 {direct['p50']:.0f} us)")
    failed = sum(proxy.failures for proxy in proxies)
    ours = cost[1]
    if len(proxies) == 2:
        print(f"gateway: {ours['whole']:.1f} us/request, {ours['burst']:.2f} us/chunk, {failed} failed")
        return 1 if failed else 0
    ratio = {kind: ours[kind] / cost[2][kind] for kind in ours}
    lost = proxies[0].failures + proxies[1].failures
    good = ratio["whole"] <= WHOLE_TARGET and ratio["burst"] <= CHUNK_TARGET and not lost
    print(
        f"gateway: {'OK' if good else 'TARGET MISSED'}: {ratio['whole']:.2f}x vllm-router's CPU per request "
        f"(target <= {WHOLE_TARGET}), {ratio['burst']:.2f}x per streamed chunk (target <= {CHUNK_TARGET}), "
        f"{ratio['paced']:.2f}x per paced chunk, {lost} failed"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
