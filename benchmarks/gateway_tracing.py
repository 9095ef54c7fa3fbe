"""What traces cost the gateway: CPU of a request that is not streamed, with none, 5 % and all of them sampled.

Same run, same engines, same load, rounds alternating; ratios are medians over the rounds. The collector is a process of
its own. These gateways are compiled. Uncompiled, one without tracing is compared with one that has no place for it.

Fails above 1.15x at 5 %, or where tracing that is off costs more than 1.03x of the gateway that has none.

    python benchmarks/gateway.py --tracing [--quick]
"""

from __future__ import annotations

import contextlib
import statistics
import sys

from _loopback.launch import HERE, free_ports, printed_line, started
from _loopback.without_tracing import copy_without_tracing

from gateway import ROOT, Load, Proxy, compiled, config, gateway_command, load, measure, wait_until_up

SAMPLED_TARGET = 1.15
OFF_TARGET = 1.03


def main(quick: bool) -> int:
    """Measure and print."""
    kind, rounds = Load("whole", 32, 3_000, 1), 7 if quick else 15
    prefill, decode, collector, *ports = free_ports(8)
    without = copy_without_tracing(ROOT / "build" / "without-tracing")
    folder = compiled()

    def sampled(ratio: float) -> dict[str, object]:
        return {"endpoint": f"http://127.0.0.1:{collector}", "samplingRatio": ratio}

    gateways = [
        ("off", None, folder), ("5 %", sampled(0.05), folder), ("100 %", sampled(1.0), folder),
        ("off, pure", None, None), ("without, pure", None, without),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for program, *numbers in (("engine.py", prefill, decode), ("collector.py", collector)):
            command = [sys.executable, str(HERE / program), *map(str, numbers)]
            printed_line(stack.enter_context(started(command)))
        proxies = []
        for (name, tracing, path), port in zip(gateways, ports, strict=True):
            command = [
                *gateway_command(prefill, decode),
                "--port",
                str(port),
                "--config",
                config("Predictive", tracing),
            ]
            proxies.append(Proxy(name, port, stack.enter_context(started(command, package=path, silent=True))))
        for proxy in proxies:
            wait_until_up(proxy)
            load(kind.kind, kind.concurrency, kind.requests, [proxy.port])  # warm up
        for number in range(rounds):
            for proxy in proxies if number % 2 == 0 else proxies[::-1]:
                measure(proxy, kind)
    costs = {proxy.name: proxy.cpu_microseconds["whole"] for proxy in proxies}

    def ratio(name: str, base: str) -> float:
        return statistics.median(cost / other for cost, other in zip(costs[name], costs[base], strict=True))

    for name, values in costs.items():
        print(f"{name:<15}{statistics.median(values):>8.1f} us/request")
    some, all_of_them, off = ratio("5 %", "off"), ratio("100 %", "off"), ratio("off, pure", "without, pure")
    lost = sum(proxy.failures for proxy in proxies)
    good = some <= SAMPLED_TARGET and off <= OFF_TARGET and not lost
    print(
        f"tracing: {'OK' if good else 'TARGET MISSED'}: {some:.2f}x sampled at 5 % (<= {SAMPLED_TARGET}), "
        f"{all_of_them:.2f}x at 100 %, {off:.3f}x off against none (<= {OFF_TARGET}), {lost} failed"
    )
    return 0 if good else 1
