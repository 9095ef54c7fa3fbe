"""Small clusters for the tests of routing."""

from __future__ import annotations

from typing import Any

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport, SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.routing import AffinityMemory, ClusterView, Flight, Incoming, Route, route, token_ends

SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.0, prefill_b=1e-4, prefill_c=0.0, decode_a=0.01, decode_b=1e-3, decode_c=0.0
    ),
    kv_capacity_tokens=100_000,
)
"""A prompt of 1,000 tokens takes 0.1 s; 40 requests decode at 50 ms a token."""
MOVING = TransferCost(base_seconds=0.01, seconds_per_token=0.0)


def cluster(prefills: int = 2, decodes: int = 2, mixed: int = 0, *, known: bool = True) -> ClusterView:
    view = ClusterView(ttft_seconds=1.0, tpot_seconds=0.05, affinity=AffinityMemory(1000, token_ends(512, 64)))
    if known:
        view.workers.set_speed("pool", SPEED)
        view.transfers.expect("pool", MOVING)
    for letter, count, role in (("p", prefills, Role.PREFILL), ("d", decodes, Role.DECODE), ("m", mixed, Role.MIXED)):
        for number in range(count):
            view.workers.put(f"{letter}{number}", role, pool="pool")
    return view


def ask(
    prompt_tokens: float = 1000.0,
    output_tokens: float = 100.0,
    *,
    prefix: tuple[int, ...] = (),
    whole: bool = False,
    two_legs: bool = False,
    exclude: frozenset[str] = frozenset(),
    tpot_seconds: float = float("inf"),
    qos: int = 0,
) -> Incoming:
    return Incoming(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefix=prefix,
        whole=whole,
        two_legs=two_legs,
        exclude=exclude,
        tpot_seconds=tpot_seconds,
        qos=qos,
    )


def find(view: ClusterView, incoming: Incoming | None = None, now_seconds: float = 0.0) -> Route:
    found = route(incoming or ask(), view, now_seconds)
    assert isinstance(found, Route), found
    return found


def names(found: Route) -> tuple[str, ...]:
    return (found.prefill.name,) if found.whole else (found.prefill.name, found.decode.name)


def send(
    view: ClusterView, incoming: Incoming | None = None, now_seconds: float = 0.0, *, decoding: bool = False
) -> Flight:
    incoming = incoming or ask()
    flight = view.start(incoming, find(view, incoming, now_seconds), now_seconds)
    if decoding:
        view.prefill_done(flight, now_seconds)
    return flight


def report(**known: Any) -> LoadReport:
    return LoadReport(role=Role.MIXED, role_epoch=0, ready=True, draining=False, **known)
