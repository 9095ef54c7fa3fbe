"""The same trace through real workers and through the simulator that is calibrated by what these workers report."""

from __future__ import annotations

import pytest
from fidelity import UNSTEADY, measure
from local_cluster import Cluster

pytestmark = [pytest.mark.engine, pytest.mark.compare, pytest.mark.timeout(900)]


def test_simulated_latencies_are_the_real_ones(auto: Cluster) -> None:
    verdict = measure(auto, seconds=110.0)
    assert verdict != UNSTEADY, "the workers' own pace changed meanwhile: this says nothing of the simulator"
    assert verdict == 0
