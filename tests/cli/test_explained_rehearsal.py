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


def test_what_came_of_the_last_forecast_is_printed() -> None:
    told = msgspec.structs.replace(HELD, foretold_attainment=0.952, served_attainment=0.61)
    assert said(told).endswith(" / the last forecast said 95.2% inside, and 61.0% came")
