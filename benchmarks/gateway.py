"""CPU cost of the gateway, against PyPI's `vllm-router` (Rust) in its NIXL prefill/decode mode.

Same run, same engines (trivial, in a process of their own), same load (a process of its own), rounds alternating;
ratios are medians over the rounds. The gateway runs with the policy Off, and with Predictive, three classes, the speeds
known and a promise that holds, so that no request is turned away; prefix affinity is always on. Routing and admission
are compiled (hatch_build.py), and so is the gateway's path; a third gateway shows what the same costs uncompiled.
CPU is the time of all threads on a core, from /proc/<pid>/task/*/schedstat. Prompts: see _loopback/load.py. Streams
have 200 chunks; in `burst` they reach the gateway together, in `paced` one by one.

`core` is decision, prefix keys and bookkeeping of one request alone (benchmarks/admission.py). `added p99` is at half
of the rate at which the gateway is saturated here, less what the same two legs take without a gateway at that rate.
`RSS` is with 1,000 streams open that were sent all but their last chunk.

Fails when the compiled gateway with Predictive misses a target: 0.6x the router's CPU per request, 0.3x per streamed
chunk (burst), 5 ms added at the 99th percentile, 150 MB.

With `--tracing` it measures instead what traces cost (gateway_tracing.py), with `--record` what the ring of requests
costs (gateway_record.py).

    python benchmarks/gateway.py [--quick] [--tracing | --record]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from _loopback.launch import HERE, environment, free_ports, printed_line, started

ROOT = Path(__file__).parents[1]
CHUNKS = 200
OPEN_STREAMS = 1000
WHOLE_TARGET = 0.6
CHUNK_TARGET = 0.3
P99_TARGET_MICROSECONDS = 5000.0
RSS_TARGET_MEGABYTES = 150.0


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
    process: subprocess.Popen[str]
    core_microseconds: float | None = None
    cpu_microseconds: dict[str, list[float]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    """Requests per second, not streamed, in each round."""
    added_p50: list[float] = field(default_factory=list)
    added_p99: list[float] = field(default_factory=list)
    resident_megabytes: float = 0.0
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
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    total += int((thread / "schedstat").read_text().split()[0])
        return total / 1e9

    def resident(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def wait_until_up(proxy: Proxy) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if proxy.process.poll() is not None:
            sys.exit(f"{proxy.name} ended with {proxy.process.returncode}")
        if load("whole", 1, 1, [proxy.port])["requests"] == 1:
            return
        time.sleep(0.2)
    sys.exit(f"{proxy.name} did not come up")


def load(kind: str, concurrency: int, requests: int, ports: list[int], *, rate: float = 0.0) -> dict[str, float]:
    numbers = [str(concurrency), str(requests), *map(str, ports), "--rate", str(rate)]
    done = subprocess.run(
        [sys.executable, str(HERE / "load.py"), kind, *numbers], check=False, capture_output=True, text=True
    )
    if done.returncode:
        return {"requests": 0, "failures": concurrency, "seconds": 1, "p50": 0, "p99": 0}
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(proxy: Proxy, kind: Load) -> None:
    before = proxy.cpu_seconds()
    result = load(kind.kind, kind.concurrency, kind.requests, [proxy.port])
    cpu_seconds = proxy.cpu_seconds() - before
    proxy.failures += int(result["failures"])
    done = max(result["requests"], 1) * kind.units
    proxy.cpu_microseconds.setdefault(kind.kind, []).append(cpu_seconds * 1e6 / done)
    if kind.kind == "whole":
        proxy.rates.append(result["requests"] / result["seconds"])


def measure_latency(proxy: Proxy, direct: list[int], requests: int) -> None:
    """What the proxy adds at half of its saturation."""
    rate = statistics.median(proxy.rates) / 2
    through = load("whole", 64, requests, [proxy.port], rate=rate)
    without = load("whole", 64, requests, direct, rate=rate)
    proxy.failures += int(through["failures"])
    proxy.added_p50.append(through["p50"] - without["p50"])
    proxy.added_p99.append(through["p99"] - without["p99"])


def measure_memory(proxy: Proxy) -> None:
    """Resident memory with many streams open."""
    command = [sys.executable, str(HERE / "load.py"), "held", str(OPEN_STREAMS), str(OPEN_STREAMS), str(proxy.port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    while process.poll() is None:
        proxy.resident_megabytes = max(proxy.resident_megabytes, proxy.resident())
        time.sleep(0.2)
    assert process.stdout is not None
    result = json.loads(process.stdout.read() or "{}")
    proxy.failures += OPEN_STREAMS - int(result.get("requests", 0))


def compiled() -> Path | None:
    """A compiled copy of the package; None where it cannot be made."""
    folder = ROOT / "build" / "compiled"
    done = subprocess.run(
        [sys.executable, str(ROOT / "hatch_build.py"), str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        print(f"(nothing is compiled: {done.stderr.strip().splitlines()[-1]})")
        return None
    return folder


def core_microseconds(path: Path | None) -> float:
    """Decision, prefix keys and bookkeeping of one request."""
    command = [sys.executable, str(Path(__file__).with_name("admission.py")), "--core"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(path))
    return float(done.stdout)


def config(policy: str, tracing: dict[str, object] | None = None) -> str:
    """A gateway's configuration."""
    classes = [
        {"name": name, "priority": priority, "reserved": reserved, "match": {"header": "x-tier", "value": name}}
        for name, priority, reserved in (("premium", 100, 0.1), ("standard", 50, 0.3))
    ]
    document = {
        "cluster": "bench", "servedName": "bench", "model": "bench", "sloTtftSeconds": 60, "sloTpotSeconds": 10,
        "admission": {"policy": policy, "classes": [*classes, {"name": "free", "priority": 10}]}, "tracing": tracing,
    }  # fmt: skip
    return json.dumps(document)


def gateway_command(prefill: int, decode: int) -> list[str]:
    """What starts a gateway before two engines."""
    return [
        sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", "127.0.0.1", "--no-prewarm",
        "--lame-duck-seconds", "0", "--log-level", "WARNING",
        "--static-worker", f"prefill=http://127.0.0.1:{prefill}?agent={prefill}",
        "--static-worker", f"decode=http://127.0.0.1:{decode}?agent={decode}",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less load")
    parser.add_argument("--tracing", action="store_true", help="what traces cost")
    parser.add_argument("--record", action="store_true", help="what the ring of requests costs")
    options = parser.parse_args()
    if options.record or options.tracing:
        from importlib import import_module

        beside = import_module("gateway_record" if options.record else "gateway_tracing")
        return int(beside.main(options.quick))
    scale = 3 if options.quick else 1
    rounds = 3 if options.quick else 7
    loads = [
        Load("whole", 32, 12_000 // scale, 1),
        Load("burst", 32, 2_400 // scale, CHUNKS),
        Load("paced", 100, 400 // scale, CHUNKS),
    ]
    prefill, decode, theirs, prometheus, *ours = free_ports(7)
    gateway = gateway_command(prefill, decode)
    script = Path(sys.executable).with_name("vllm-router")
    router = [
        str(script if script.exists() else shutil.which("vllm-router")), "--host", "127.0.0.1", "--port", str(theirs),
        "--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin", "--log-level", "error",
        "--prefill", f"http://127.0.0.1:{prefill}", "--decode", f"http://127.0.0.1:{decode}",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(prometheus),
    ]  # fmt: skip
    folder = compiled()
    with contextlib.ExitStack() as stack:
        printed_line(stack.enter_context(started([sys.executable, str(HERE / "engine.py"), str(prefill), str(decode)])))
        gateways = [
            ("Predictive", "Predictive", folder),
            ("Off", "Off", folder),
            ("Predictive, pure", "Predictive", None),
        ]
        proxies = []
        for (name, policy, path), port in zip(gateways, ours, strict=True):
            command = [*gateway, "--port", str(port), "--config", config(policy)]
            process = stack.enter_context(started(command, package=path, silent=True))
            proxies.append(Proxy(name, port, process))
            proxies[-1].core_microseconds = core_microseconds(path) if policy == "Predictive" else None
        proxies.append(Proxy("vllm-router", theirs, stack.enter_context(started(router, silent=True))))
        for proxy in proxies:
            wait_until_up(proxy)
        for proxy in proxies:  # warm up
            for kind in loads[:2]:
                load(kind.kind, kind.concurrency, kind.requests // 4, [proxy.port])
        for number in range(rounds):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                for kind in loads:
                    measure(proxy, kind)
        for number in range(5):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                measure_latency(proxy, [prefill, decode], 6_000 // scale)
        for proxy in proxies:
            measure_memory(proxy)
        return report(proxies)


def report(proxies: list[Proxy]) -> int:
    columns = ("core us", "us/request", "ratio", "us/chunk", "ratio", "us/chunk", "ratio", "p50 added", "p99 added",
               "RSS", "failed")  # fmt: skip
    kinds = ("", "not streamed", "", "burst", "", "paced", "", "us", "us", "MB", "")
    for line in (columns, kinds):
        print(" " * 17 + "".join(f"{column:>13}" for column in line))
    router = proxies[-1]
    ratios: dict[str, dict[str, float]] = {}
    for proxy in proxies:
        ratios[proxy.name] = ratio = {
            kind: statistics.median(
                ours / theirs for ours, theirs in zip(rounds, router.cpu_microseconds[kind], strict=True)
            )
            for kind, rounds in proxy.cpu_microseconds.items()
        }
        cost = {kind: statistics.median(values) for kind, values in proxy.cpu_microseconds.items()}
        figures = ["" if proxy.core_microseconds is None else f"{proxy.core_microseconds:.1f}"]
        for kind, digits in (("whole", 1), ("burst", 2), ("paced", 2)):
            figures += [f"{cost[kind]:.{digits}f}", f"{ratio[kind]:.2f}x"]
        figures += [f"{statistics.median(values):.0f}" for values in (proxy.added_p50, proxy.added_p99)]
        figures += [f"{proxy.resident_megabytes:.0f}", str(proxy.failures)]
        print(f"{proxy.name:<17}" + "".join(f"{figure:>13}" for figure in figures))
    best = proxies[0]
    ratio = ratios[best.name]
    p99 = statistics.median(best.added_p99)
    lost = sum(proxy.failures for proxy in proxies[:-1])
    checks = (
        (ratio["whole"] <= WHOLE_TARGET, f"{ratio['whole']:.2f}x vllm-router's CPU per request (<= {WHOLE_TARGET})"),
        (ratio["burst"] <= CHUNK_TARGET, f"{ratio['burst']:.2f}x per streamed chunk (<= {CHUNK_TARGET})"),
        (p99 < P99_TARGET_MICROSECONDS, f"{p99 / 1000:.1f} ms added p99 (< {P99_TARGET_MICROSECONDS / 1000:.0f})"),
        (
            best.resident_megabytes < RSS_TARGET_MEGABYTES,
            f"{best.resident_megabytes:.0f} MB with {OPEN_STREAMS} streams (< {RSS_TARGET_MEGABYTES:.0f})",
        ),
        (not lost, f"{lost} failed"),
    )
    good = all(kept for kept, _ in checks)
    print(f"gateway: {'OK' if good else 'TARGET MISSED'}: " + ", ".join(text for _, text in checks))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
