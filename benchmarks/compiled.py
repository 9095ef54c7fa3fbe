"""What each package is worth compiled: CPU of the gateway with all of them compiled, and with one left as Python.

Same engines, same load as benchmarks/gateway.py, rounds alternating; a ratio is the median of the rounds' ratios to the
gateway with all packages compiled. hatch_build.py names the packages; one that costs less than 5 % in both columns when
it is left out is not worth a place there. Each package is a compilation of its own: minutes.

    python benchmarks/compiled.py [--quick] [--only PACKAGE]
"""

from __future__ import annotations

import argparse
import contextlib
import runpy
import statistics
import sys
from pathlib import Path

from _loopback.launch import HERE, free_ports, printed_line, started

from gateway import CHUNKS, ROOT, Load, Proxy, config, load, measure, wait_until_up

WORTH = 1.05
BUILD = runpy.run_path(str(ROOT / "hatch_build.py"))


def compiled(without: str) -> Path:
    """A copy of the package in which all is compiled but `without`."""
    folder = ROOT / "build" / f"compiled-without-{without.replace('/', '-') or 'nothing'}"
    BUILD["compile_into"](folder, without=without)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less load")
    parser.add_argument("--only", action="append", choices=BUILD["PACKAGES"])
    options = parser.parse_args()
    scale = 3 if options.quick else 1
    loads = [Load("whole", 32, 12_000 // scale, 1), Load("burst", 32, 2_400 // scale, CHUNKS)]
    packages = ["", *(options.only or BUILD["PACKAGES"])]
    folders = [compiled(package) for package in packages]
    prefill, decode, *ports = free_ports(2 + len(packages))
    with contextlib.ExitStack() as stack:
        printed_line(stack.enter_context(started([sys.executable, str(HERE / "engine.py"), str(prefill), str(decode)])))
        proxies = []
        for package, folder, port in zip(packages, folders, ports, strict=True):
            command = [
                sys.executable, "-m", "fulcrum.cli.app", "gateway", "--host", "127.0.0.1", "--no-prewarm",
                "--lame-duck-seconds", "0", "--log-level", "WARNING", "--port", str(port),
                "--config", config("Predictive"),
                "--static-worker", f"prefill=http://127.0.0.1:{prefill}?agent={prefill}",
                "--static-worker", f"decode=http://127.0.0.1:{decode}?agent={decode}",
            ]  # fmt: skip
            process = stack.enter_context(started(command, package=folder, silent=True))
            proxies.append(Proxy(package or "all compiled", port, process))
        for proxy in proxies:
            wait_until_up(proxy)
            for kind in loads:  # warm up
                load(kind.kind, kind.concurrency, kind.requests // 4, [proxy.port])
        for number in range(3 if options.quick else 9):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                for kind in loads:
                    measure(proxy, kind)
    return report(proxies)


def report(proxies: list[Proxy]) -> int:
    print(f"{'left as Python':<20}{'us/request':>12}{'ratio':>8}{'us/chunk':>12}{'ratio':>8}")
    everything = proxies[0].cpu_microseconds
    idle = []
    for proxy in proxies:
        line = f"{proxy.name if proxy is not proxies[0] else '(nothing)':<20}"
        ratios = []
        for kind, rounds in proxy.cpu_microseconds.items():
            ratios.append(statistics.median(own / all_ for own, all_ in zip(rounds, everything[kind], strict=True)))
            line += f"{statistics.median(rounds):>12.2f}{ratios[-1]:>7.2f}x"
        print(line)
        if proxy is not proxies[0] and max(ratios) < WORTH:
            idle.append(proxy.name)
    print(f"compiled: {'not worth it: ' + ', '.join(idle) if idle else 'OK'}")
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main())
