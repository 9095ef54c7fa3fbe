"""What the demo shows where engines are too slow, or too busy, for promises of latency: all that needs no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from demo_load import answer_seconds
from demo_page import Shown
from demo_replay import send
from demo_screen import Telling, command, console, step
from demo_setup import begin_at, promise, set_balance
from local_cluster import BIN, Cluster, run

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.replay import LatencyLimits, Progress, summarise
from fulcrum.simulation.traffic import Request

NO_PROMISE: Final = LatencyLimits(ttft_seconds=600.0, tpot_seconds=60.0)
"""A spec has to promise something; no request is turned away or late for this."""
REQUESTS: Final = 12
PROMPT_TOKENS: Final = 32
OUTPUT_TOKENS: Final = 4
FIRST_SPLIT: Final = 3, 1
THEN_SPLIT: Final = 1, 3
"""(prefill, decode)"""


def promise_nothing(cluster: Cluster) -> None:
    promise(cluster, NO_PROMISE)


def show(cluster: Cluster, speed: WorkerSpeed) -> Shown:
    """A few requests, each about when the one before it ends, with a flip by hand in the middle of them."""
    begin_at(cluster, *FIRST_SPLIT)
    request_seconds = answer_seconds(speed, OUTPUT_TOKENS)
    step(f"{REQUESTS} requests, {request_seconds:.0f} s apart; a user flips two workers while they run")
    flips_before = cluster.flips()
    requests = [
        Request(arrival_seconds=index * request_seconds, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
        for index in range(REQUESTS)
    ]
    flip_seconds = (REQUESTS / 2 + 0.5) * request_seconds  # in the middle of a request
    prefill, decode = THEN_SPLIT

    def flip() -> None:
        set_balance(cluster, mode="Manual", ratio={"prefill": prefill, "decode": decode})

    with Telling("sending ...") as telling:

        def tell(now_seconds: float, now: Progress, ratio: str) -> None:
            telling.tell(f"{now_seconds:4.0f} s  {ratio}: {now.sent} of {now.of} sent, {now.lost} lost")

        seen = send(
            cluster, requests, tell, (flip_seconds - request_seconds, _explained(cluster)), (flip_seconds, flip)
        )
    for at, ratio in seen.ratios:
        console.print(f"{at:4.0f} s  {ratio}")
    command(cluster, "get", "ic", "-o", "wide")
    return Shown(
        report=summarise(seen.records, offered=len(requests), slo=NO_PROMISE),
        flips=cluster.flips() - flips_before,
        kv_bytes=cluster.kv_bytes_moved(),
        load=None,
        shares=None,
    )


def _explained(cluster: Cluster) -> Callable[[], None]:
    def show_plan() -> None:
        console.print("[dim]$ fulcrum explain[/]")
        console.print(run(BIN / "fulcrum", "explain", cluster.name, env=cluster.env).rstrip(), markup=False)

    return show_plan
