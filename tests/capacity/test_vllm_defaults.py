"""What an engine does without arguments, against the installed vLLM's own code."""

from __future__ import annotations

from typing import Any

import pytest
from tests.separate_process import answered

from fulcrum.capacity.accelerators import ACCELERATORS, CPU, accelerator, usual_limits
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.known_models import known_model

_ASK = """
import json, sys
from types import SimpleNamespace
from vllm.engine import arg_utils
from vllm.usage.usage_lib import UsageContext

found = {}
for name, (label, memory) in json.load(sys.stdin).items():
    arg_utils.current_platform = SimpleNamespace(
        get_device_total_memory=lambda: memory, get_device_name=lambda: label, is_tpu=lambda: False,
        is_cpu=lambda: label == "cpu",
    )
    tokens, requests = arg_utils.EngineArgs.get_batch_defaults(world_size=1)
    found[name] = [tokens[UsageContext.OPENAI_API_SERVER], requests[UsageContext.OPENAI_API_SERVER]]
found["memory"] = arg_utils.EngineArgs.gpu_memory_utilization
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def of_vllm() -> dict[str, Any]:
    """Return what vLLM takes on each accelerator. Asked in a process of its own: vLLM is large, and changes globals."""
    asked = {each.name: [f"NVIDIA {each.name}", each.memory_bytes] for each in ACCELERATORS.values()}
    asked[CPU.name] = ["cpu", CPU.memory_bytes]
    return answered(_ASK, asked, package="vllm")


def test_token_budget_and_batch_are_those_of_vllm(of_vllm: dict[str, Any]) -> None:
    assert {name: list(usual_limits(each)) for name, each in ACCELERATORS.items()} == {
        name: of_vllm[name] for name in ACCELERATORS
    }


def test_so_is_the_share_of_the_memory(of_vllm: dict[str, Any]) -> None:
    shape = EngineShape(model=known_model("Qwen/Qwen3-8B"), accelerator=accelerator("H100"))
    assert shape.memory_utilization == of_vllm["memory"]
    assert (shape.max_batched_tokens, shape.max_batch) == (8192, 1024)
