"""What the ring of requests costs a gateway: CPU of a request, at its arrival and its end together, and memory.

Requests have prompts of 2,000 tokens in the mean, up to 32,000; a fifth are turned away. `steady` is a ring that has
room, `full` one that is overwritten, `halving` one that gets ten times as many requests as it can keep of ten minutes.
`off` is the loop without a recorder. Pages are what a reader gets of the full ring.

Fails above 2 microseconds (steady and full), or above 8 MiB.

    python benchmarks/gateway.py --record [--quick]
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from _loopback.launch import environment

TARGET_MICROSECONDS = 2.0
TARGET_BYTES = 8 * 1024 * 1024


def exchanges(count: int, seed: int) -> list[tuple[Any, int, Any]]:
    """Requests as the gateway has them when they end: exchange, status, error."""
    from fulcrum.api.reasons import Reason
    from fulcrum.gateway.dispatch.exchange import Exchange
    from fulcrum.gateway.errors import rejected
    from fulcrum.gateway.http.response import Response
    from fulcrum.routing import Incoming
    from fulcrum.routing.prefixes import BYTE_ENDS

    random_source = random.Random(seed)
    found = []
    for _ in range(count):
        tokens = min(int(random_source.lognormvariate(7.1, 1.0)) + 1, 32_000)
        keys = tuple(random_source.getrandbits(64) for end in BYTE_ENDS if end <= 4 * tokens)
        response = Response(None, None, request_id=b"r", http11=True, close_after=False)  # type: ignore[arg-type]
        exchange = Exchange(
            route="/v1/chat/completions", response=response, started_at=0.0, deadline=60.0, qos_class="default"
        )
        exchange.incoming = Incoming(prompt_tokens=float(tokens), output_tokens=200.0, prefix=keys, units_per_token=4.0)
        turned_away = random_source.random() < 0.2
        if not turned_away:
            exchange.prompt_tokens, exchange.output_tokens = tokens, random_source.randrange(1, 400)
            exchange.first_token_at = 0.5
        error = rejected(Reason.QUEUE_FULL, 2.0) if turned_away else None
        found.append((exchange, int(HTTPStatus.TOO_MANY_REQUESTS if turned_away else HTTPStatus.OK), error))
    return found


def recorder() -> Any:
    """A recorder of one class."""
    from fulcrum.admission import Admission
    from fulcrum.api.serving_types import AdmissionPolicy
    from fulcrum.gateway.dispatch.recorder import Recorder

    return Recorder(Admission(AdmissionPolicy.PREDICTIVE), seed=7, shares_seed=True, now=0.0)


def replayed(requests: list[tuple[Any, int, Any]], kept: Any, *, begin: float, every_seconds: float) -> float:
    """CPU seconds of these requests."""
    now = begin
    began = time.process_time()
    if kept is None:
        for exchange, _, _ in requests:
            now += every_seconds
            exchange.started_at = now - 0.4
    else:
        for exchange, code, error in requests:
            now += every_seconds
            exchange.started_at = now - 0.4
            kept.arrived(exchange)
            kept.ended(exchange, code, error, now)
    return time.process_time() - began


def measured(quick: bool) -> dict[str, Any]:
    """Microseconds of a request in each case, and bytes."""
    count, rounds, fills = (5_000, 3, 18) if quick else (30_000, 7, 3)
    requests = exchanges(count, 1)
    base = statistics.median(replayed(requests, None, begin=0.0, every_seconds=0.01) for _ in range(rounds))

    def cost(prepare: Callable[[], tuple[Any, float]], every_seconds: float) -> float:
        found = []
        for _ in range(rounds):
            kept, begin = prepare()
            found.append(replayed(requests, kept, begin=begin, every_seconds=every_seconds))
        return (statistics.median(found) - base) / count * 1e6

    def filled(every_seconds: float) -> tuple[Any, float]:
        kept, begin = recorder(), 0.0
        for _ in range(fills):
            replayed(requests, kept, begin=begin, every_seconds=every_seconds)
            begin += count * every_seconds
        return kept, begin

    costs = {
        "steady": cost(lambda: (recorder(), 0.0), 0.02),
        "full": cost(lambda: filled(0.02), 0.02),
        "halving": cost(lambda: filled(0.001), 0.001),
    }
    tracemalloc.start()
    kept, begin = filled(0.02)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    began = time.perf_counter()
    from fulcrum.gateway.dispatch.recorder import record_page

    body = record_page(kept, "", begin)[2]
    return {**costs, "bytes": taken, "page_bytes": len(body), "page_seconds": time.perf_counter() - began,
            "kept": len(kept.ring)}  # fmt: skip


def main(quick: bool) -> int:
    """Measure compiled and plain, each in a process of its own, and print."""
    from gateway import compiled

    good = True
    for name, path in (("compiled", compiled()), ("plain", None)):
        command = [sys.executable, str(Path(__file__)), "quick" if quick else "whole"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(path))
        result = json.loads(done.stdout)
        print(
            f"{name:<9} us/request: steady {result['steady']:.2f}, full {result['full']:.2f}, "
            f"halving {result['halving']:.2f}; {result['bytes'] / 2**20:.2f} MiB for {result['kept']} requests; "
            f"all of it read in {result['page_seconds'] * 1e3:.1f} ms, {result['page_bytes'] / 2**20:.2f} MiB"
        )
        fits = result["bytes"] <= TARGET_BYTES
        good &= fits and (name == "plain" or max(result["steady"], result["full"]) <= TARGET_MICROSECONDS)
    print(f"record: {'OK' if good else 'TARGET MISSED'} (<= {TARGET_MICROSECONDS} us compiled, <= 8 MiB)")
    return 0 if good else 1


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    print(json.dumps(measured(sys.argv[1] == "quick")))
