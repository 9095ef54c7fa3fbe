"""Manifests and deadlines that benchmarks and tests of engines share."""

from __future__ import annotations

from pathlib import Path

import pytest
import this_machine
import yaml
from local_cluster import QUICKSTART
from tests import machine


@pytest.mark.parametrize("fp8", [False, True])
def test_the_tiny_model_computes_in_float32_everywhere(
    fp8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "FP8", fp8)
    written = this_machine.suited(QUICKSTART, tmp_path, model=this_machine.TINY)
    spec = yaml.safe_load(written.read_text())["spec"]
    assert spec["model"]["name"] == "tiny"
    assert spec["engine"]["kvCache"]["dtype"] == "auto"
    assert spec["engine"]["args"][-2:] == ["--dtype", "float32"]


def test_the_real_model_stays_as_it_is_where_the_cpu_can_serve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "FP8", True)
    assert this_machine.suited(QUICKSTART, tmp_path) == QUICKSTART
    monkeypatch.setattr(this_machine, "FP8", False)
    spec = yaml.safe_load(this_machine.suited(QUICKSTART, tmp_path).read_text())["spec"]
    assert (spec["model"]["name"], spec["engine"]["kvCache"]["dtype"]) == ("smollm2", "auto")


def test_deadlines_follow_the_factor_of_a_test_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.VARIABLE, "2.5")
    assert this_machine.deadline_seconds(10.0) == machine.deadline_seconds(10.0) == 25.0
    monkeypatch.delenv(machine.VARIABLE)
    assert this_machine.deadline_seconds(10.0) == 10.0
