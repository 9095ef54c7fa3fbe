"""The comparison of `fulcrum plan` with AIConfigurator: what is read of its answers, and what is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plan_groups
import pytest
from plan_groups import CASES, Group

DISAGGREGATED: dict[str, Any] = {
    "mode": "disagg",
    "num_total_gpus": 16,
    "seq/s": 5.44,
    "(p)workers": 1,
    "(p)tp": 1,
    "(p)dp": 8,
    "(p)moe_ep": 1,
    "(d)workers": 1,
    "(d)tp": 2,
    "(d)dp": 4,
    "(d)moe_ep": 8,
}
AGGREGATED: dict[str, Any] = {"mode": "agg", "num_total_gpus": 8, "seq/s": 1.675, "tp": 8, "dp": 1, "moe_ep": 1}


def test_replicas_are_added_up() -> None:
    groups = plan_groups.groups_from(DISAGGREGATED, 32)
    assert [str(group) for group in groups] == ["2 x DP8 prefill", "2 x TP2xDP4 EP decode"]
    assert plan_groups.rate_from(DISAGGREGATED, 32) == pytest.approx(10.88)


def test_an_aggregated_row_is_mixed_workers() -> None:
    groups = plan_groups.groups_from(AGGREGATED, 8)
    assert groups == [Group(role="mixed", workers=1, tensor=8, data=1, experts=False)]
    assert str(groups[0]) == "1 x TP8 mixed"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan_carries_by_its_layout_what_it_says(case: plan_groups.Case) -> None:
    plan, _ = plan_groups.planned(case)
    groups = plan_groups.groups_of(plan)
    assert sum(group.workers * group.tensor * group.data for group in groups) <= case.gpus
    assert plan_groups.rate_by_ours(case, groups) == pytest.approx(plan.goodput, rel=0.01)


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\necho no module named aiconfigurator >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match="ended with 3:\nno module named aiconfigurator"):
        plan_groups.asked(python, CASES[0], "vllm", [])


INSTALLED = plan_groups.ROOT / "build" / "aiconfigurator"


@pytest.mark.skipif(
    not (INSTALLED / ".installed").exists(),
    reason="AIConfigurator is not installed: python benchmarks/plan_groups.py",
)
def test_aiconfigurator_answers() -> None:
    case = CASES[-1]
    layout = [Group(role="mixed", workers=1, tensor=8, data=1, experts=False)]
    answer = plan_groups.asked(INSTALLED / "bin" / "python", case, "vllm", layout)
    chosen = plan_groups.groups_from(answer["chosen"], case.gpus)
    assert sum(group.workers * group.tensor * group.data for group in chosen) <= case.gpus
    assert 0 < answer["ours"]["rate"] <= 1.1 * plan_groups.rate_from(answer["chosen"], case.gpus)
