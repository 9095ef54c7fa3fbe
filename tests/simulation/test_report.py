"""The page of a comparison: what it says, also of runs in which there is nothing to plot."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest
from tests.simulation.worlds import SLO, make_cluster, make_workload, poisson

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.comparison import Comparison, ComparisonInputs
from fulcrum.simulation.named_policies import POLICIES
from fulcrum.simulation.plots import plots_of
from fulcrum.simulation.report import report_html
from fulcrum.simulation.workload import Workload

NAMES = ("ours", "static-1:3", "aggregated")


def inputs_of(workload: Workload, slo: LatencyTargets = SLO) -> ComparisonInputs:
    document = {
        "model": {"name": "m"},
        "slo": {"ttft": f"{slo.ttft_seconds * 1e3:.0f}ms", "tpot": f"{slo.tpot_seconds * 1e3:.0f}ms"},
        "pools": [
            {
                "name": "p",
                "accelerator": "H100-SXM-80GB",
                "workers": {"min": 4, "max": 4},
                "roles": ["prefill", "decode"],
            }
        ],
    }
    spec = msgspec.convert(document, InferenceClusterSpec)
    return ComparisonInputs(workload=workload, cluster=make_cluster(), spec=spec, slo=slo)


def test_the_page_says_what_was_simulated_and_what_its_figures_mean() -> None:
    inputs = inputs_of(poisson(rate=5, count=300, prompt=500, output=100, seed=1))
    comparison = Comparison(inputs=inputs, table=POLICIES)
    page = report_html(
        title="A <trace>", inputs=inputs, entries=[comparison.run(name) for name in NAMES], most_within=150
    )
    assert "<h1>A &lt;trace&gt;</h1>" in page
    assert "300 requests" in page
    assert "p (4 to 4 workers, GPUs per worker: 1)" in page
    assert "more than 50.0% inside the SLO" in page
    for policy in ("ours", "static 1P:3D", "aggregated 4M"):
        assert page.count(f">{policy}</td>") == 1
    assert "Share of the prefilled tokens that was for requests outside of the SLO" in page


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(inputs_of(make_workload([(0.0, 500, 100)])), id="one request"),
        pytest.param(inputs_of(make_workload([(0.0, 500, 1), (1.0, 500, 1)])), id="no second token"),
        pytest.param(
            inputs_of(
                poisson(rate=5, count=50, prompt=500, output=100, seed=1),
                LatencyTargets(ttft_seconds=0.002, tpot_seconds=0.05, attainment=0.95),
            ),
            id="ours turns everybody away",
        ),
    ],
)
def test_plots_stand_where_there_is_little_to_plot(inputs: ComparisonInputs) -> None:
    comparison = Comparison(inputs=inputs, table=POLICIES)
    entries = [comparison.run(name) for name in NAMES]
    for plot in plots_of(inputs, entries):
        texts = {"".join(element.itertext()).strip() for element in ET.fromstring(plot.svg).iter()}
        assert plot.caption
        if plot.heading != "Forecast and actual rate":
            assert {entry.result.policy for entry in entries} <= texts
    assert report_html(title="t", inputs=inputs, entries=entries, most_within=None).count("nan") == 0
