"""The balance of experts is read from the line that vLLM logs."""

from __future__ import annotations

import ast

import pytest
from tests import vllm_source

from fulcrum_worker.expert_balance import balance_after


def logged(balance: float) -> str:
    """The line, by the format in vLLM's own source."""
    constants = (
        node.value
        for node in ast.walk(vllm_source.module("distributed/eplb/eplb_state.py"))
        if isinstance(node, ast.Constant)
    )
    (form,) = {text for text in constants if isinstance(text, str) and text.startswith("EPLB step:")}
    return "(EngineCore_DP0 pid=9) INFO 11-26 19:00:20 [eplb_state.py:634] " + form % (
        7,
        "org/m, 1",
        12.5,
        25,
        balance,
        3,
    )


@pytest.mark.parametrize(("balance", "before", "expected"), [(0.5, None, 0.5), (1.0, 0.5, 1.0), (0.0, 0.8, 0.8)])
def test_the_last_step_with_tokens_counts(balance: float, before: float | None, expected: float) -> None:
    assert balance_after(logged(balance), before) == expected


@pytest.mark.parametrize("line", ["", "balancedness=0.5", "EPLB step: 3"])
def test_other_lines_change_nothing(line: str) -> None:
    assert balance_after(line, None) is None
    assert balance_after(line, 0.7) == 0.7
