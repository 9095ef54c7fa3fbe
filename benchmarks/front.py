"""CPU cost of the hop through a front of an InferenceGateway, beside that of a gateway, in the same run.

Trivial engines in a process of their own, the load in another, rounds alternating (as benchmarks/gateway.py). The front
passes to the engines directly, so that its CPU is that of the hop alone: it reads `model`, finds the conversation,
writes the cluster's `servedName` into the body, and passes the answer back. CPU is the time of all threads on a core,
from /proc/<pid>/task/*/schedstat. Front and gateway run as they are installed from source, uncompiled, unless
`--compiled` is given.

Fails when the hop costs more than 60 microseconds of CPU per request that is not streamed.

    python benchmarks/front.py [--quick] [--compiled]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys

from _loopback.launch import HERE, free_ports, printed_line, started

from gateway import CHUNKS, Load, Proxy, compiled, config, load, measure, wait_until_up

TARGET_MICROSECONDS = 60.0


def front_config(port: int) -> str:
    """A front with one model; each of its requests is renamed."""
    routes = {
        "models": [{"name": "bench", "backends": [{"cluster": "default/a"}]}],
        "clusters": [{"name": "default/a", "host": "127.0.0.1", "port": port, "servedName": "renamed"}],
    }
    return json.dumps({"name": "bench", "routes": routes})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less load")
    parser.add_argument("--compiled", action="store_true", help="compile first (hatch_build.py), as wheels and images")
    options = parser.parse_args()
    scale, rounds = (3, 3) if options.quick else (1, 7)
    loads = [Load("whole", 32, 12_000 // scale, 1), Load("burst", 32, 2_400 // scale, CHUNKS)]
    engines = free_ports(2)
    folder = compiled() if options.compiled else None
    fulcrum = [sys.executable, "-m", "fulcrum.cli.app"]
    common = ["--host", "127.0.0.1", "--lame-duck-seconds", "0", "--log-level", "WARNING", "--metrics-port", "0"]
    workers = [
        argument
        for role, port in zip(("prefill", "decode"), engines, strict=True)
        for argument in ("--static-worker", f"{role}=http://127.0.0.1:{port}?agent={port}")
    ]
    commands = {
        "front": [*fulcrum, "front", *common, "--config", front_config(engines[1])],
        "gateway": [*fulcrum, "gateway", *common, *workers, "--no-prewarm", "--config", config("Predictive")],
    }
    with contextlib.ExitStack() as stack:
        printed_line(stack.enter_context(started([sys.executable, str(HERE / "engine.py"), *map(str, engines)])))
        proxies = []
        for (name, command), port in zip(commands.items(), free_ports(2), strict=True):
            process = stack.enter_context(started([*command, "--port", str(port)], package=folder, silent=True))
            proxies.append(Proxy(name, port, process))
            wait_until_up(proxies[-1])
        for proxy in proxies:  # warm up
            for kind in loads:
                load(kind.kind, kind.concurrency, kind.requests // 4, [proxy.port])
        for number in range(rounds):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                for kind in loads:
                    measure(proxy, kind)
    return report(proxies, compiled_code=folder is not None)


def report(proxies: list[Proxy], *, compiled_code: bool) -> int:
    print("compiled" if compiled_code else "uncompiled")
    for proxy in proxies:
        whole, burst = (statistics.median(proxy.cpu_microseconds[kind]) for kind in ("whole", "burst"))
        print(f"{proxy.name:<8} {whole:6.1f} us/request {burst:6.2f} us/chunk {proxy.failures} failed")
    front, gateway = (statistics.median(proxy.cpu_microseconds["whole"]) for proxy in proxies)
    good = front <= TARGET_MICROSECONDS and not proxies[0].failures
    print(
        f"front: {'OK' if good else 'TARGET MISSED'}: {front:.1f} us of CPU per request (<= {TARGET_MICROSECONDS:.0f}),"
        f" {front / gateway:.2f}x the gateway"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
