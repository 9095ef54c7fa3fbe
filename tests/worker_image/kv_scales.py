"""A change of an engine: it prints the scales of its KV cache once it has loaded a model."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

_load = CPUModelRunner.load_model


def _load_and_print(runner: CPUModelRunner, *args: Any, **more: Any) -> None:
    _load(runner, *args, **more)
    for name, layer in runner.model.named_modules():
        if isinstance(layer, Attention):
            print("kv_scales", name, layer.kv_cache_dtype, layer._k_scale_float, layer._v_scale_float, flush=True)


CPUModelRunner.load_model = _load_and_print
