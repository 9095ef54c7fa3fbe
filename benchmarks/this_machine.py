"""Our examples, as this machine can run them, and deadlines, as this run has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from fulcrum.capacity.cpu import CPUINFO, NO_FP8_KV, refuses_fp8_kv

FP8 = not refuses_fp8_kv(CPUINFO.read_text(errors="replace"))
"""Whether the CPU has the kernels for the KV cache that the examples ask for."""
TINY = "tiny"
"""Model of random weights: quick on any CPU, and always in float32, so that rounding decides no step of an answer."""
_FLOAT32 = {"dtype": "auto", "memory": "512Mi"}
"""Room for half as many tokens as in the 256Mi of FP8 that the examples have: with room for as many, the eight engines
of `make e2e` fill 24 GB."""
_TINY_FLOAT32 = {"dtype": "auto", "memory": "128Mi"}
"""Room for 43,000 tokens of 2 layers."""


def suited(manifest: Path, folder: Path, *, model: str | None = None) -> Path:
    """Return `manifest`, or a copy in `folder` with another (tiny) model, or for a CPU without FP8 kernels in float32.

    Print what is different because of the CPU.
    """
    if FP8 and model is None:
        return manifest
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    spec = document["spec"]
    if model is not None:
        spec["model"]["name"] = model
    if model is not None or spec["model"]["name"] == TINY:
        _compute_in_float32(spec["engine"], _TINY_FLOAT32)
    elif not FP8:
        _compute_in_float32(spec["engine"], _FLOAT32)
        memory = _FLOAT32["memory"]
        print(f"{manifest.name} in float32, with a KV cache of {memory} instead of FP8: {NO_FP8_KV}", flush=True)
    copy = folder / manifest.name
    copy.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return copy


def _compute_in_float32(engine: dict[str, Any], kv_cache: dict[str, str]) -> None:
    engine["kvCache"] |= kv_cache
    engine["args"] = [*engine.get("args", []), "--dtype", "float32"]


def deadline_seconds(seconds: float) -> float:
    """`seconds` times the factor that a run of our tests has measured (`tests/machine.py`); as they are elsewhere."""
    return seconds * max(float(os.environ.get("FULCRUM_TEST_MACHINE_FACTOR", "1")), 1.0)
