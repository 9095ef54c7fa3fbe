"""What `fulcrum explain` says of the last rehearsal."""

from __future__ import annotations

import msgspec

from fulcrum.api.types import (
    InferenceCluster,
    InferenceClusterSpec,
    InferenceClusterStatus,
    ObjectMeta,
    RehearsalStatus,
)
from fulcrum.cli.explain import lines

HELD = RehearsalStatus(
    time="2026-01-01T00:04:58Z",
    stood="3P:3D",
    stood_attainment=0.533,
    best="3P:3D",
    best_attainment=0.533,
    chosen="3P:3D",
    requests=400,
    gain=0.0,
)


def said(played: RehearsalStatus) -> str:
    spec = msgspec.convert(
        {"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 6}}]},
        InferenceClusterSpec,
    )
    cluster = InferenceCluster(
        metadata=ObjectMeta(name="c", namespace="n"), spec=spec, status=InferenceClusterStatus(rehearsal=played)
    )
    text = lines(cluster)
    (begin,) = (place for place, line in enumerate(text) if line.startswith("rehearsed"))
    further = [line.strip() for line in text[begin + 1 :] if "forecast" in line]
    return " / ".join([text[begin].partition("requests: ")[2], *further])


def test_a_layout_that_nothing_exceeds_is_not_compared_with_itself() -> None:
    assert said(HELD) == "3P:3D 53.3% inside, no other layout serves more; 3P:3D was chosen"


def test_one_that_is_ahead_by_chance_is_named() -> None:
    ahead = msgspec.structs.replace(HELD, best="2P:4D", best_attainment=0.56, gain=11.0, error=8.5)
    assert said(ahead) == "3P:3D 53.3% inside, 2P:4D 56.0% (+11 requests, error 8.5); 3P:3D was chosen"


def test_one_of_the_same_ratio_that_is_ahead_is_told_from_what_stands() -> None:
    ahead = msgspec.structs.replace(HELD, best_attainment=0.93, gain=128.0, error=11.0)
    assert said(ahead) == (
        "3P:3D 53.3% inside, another layout of the same ratio 93.0% (+128 requests, error 11); 3P:3D was chosen"
    )
    pools = msgspec.structs.replace(ahead, stood="3P:3D (a 3P:0D, b 0P:3D)", best="3P:3D (a 0P:3D, b 3P:0D)")
    assert said(pools).startswith(
        "3P:3D (a 3P:0D, b 0P:3D) 53.3% inside, 3P:3D (a 0P:3D, b 3P:0D) 93.0% (+128 requests, error 11); "
    )


def test_what_came_of_the_last_forecast_is_printed() -> None:
    told = msgspec.structs.replace(HELD, foretold_attainment=0.952, served_attainment=0.61)
    assert said(told).endswith(" / the last forecast said 95.2% inside, and 61.0% came")
