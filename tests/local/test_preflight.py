"""What `fulcrum up` refuses before it starts anything, because this machine's CPU cannot run it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from fulcrum_local.preflight import cannot_run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AVX2 = "flags\t\t: fma avx avx2 bmi2\n"
AVX512 = "flags\t\t: fma avx avx2 avx512f avx512dq avx512bw avx512vl\n"
QUICKSTART: dict[str, Any] = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text(encoding="utf-8"))


def with_engine(engine: Any) -> dict[str, Any]:
    document = deepcopy(QUICKSTART)
    document["spec"]["engine"] = engine
    return document


@pytest.mark.parametrize("document", [QUICKSTART, with_engine({"kvCache": {"dtype": "fp8"}})])
def test_fp8_on_a_cpu_without_the_kernels(document: dict[str, Any]) -> None:
    (line,) = cannot_run([document], AVX2)
    assert line.startswith("InferenceCluster quickstart: spec.engine.kvCache.dtype: ")
    assert "set it to auto" in line
    assert not list(cannot_run([document], AVX512))


def on_gpus() -> dict[str, Any]:
    document = deepcopy(QUICKSTART)
    document["spec"]["pools"][0]["accelerator"] = "H100-SXM-80GB"
    return document


@pytest.mark.parametrize(
    "document",
    [
        with_engine({"kvCache": {"dtype": "bf16"}}),
        with_engine({"kvCache": {"dtype": "auto"}}),
        with_engine({}),
        with_engine(None),
        with_engine({"kvCache": {}}),
        on_gpus(),
        # What the API server refuses, it explains better.
        with_engine("fp8"),
        {"kind": "InferenceCluster"},
        {"kind": "InferenceCluster", "spec": {"pools": 4}},
        {"kind": "ConfigMap", "spec": QUICKSTART["spec"]},
    ],
)
def test_the_rest_is_left_to_others(document: dict[str, Any]) -> None:
    assert not list(cannot_run([document], AVX2))
