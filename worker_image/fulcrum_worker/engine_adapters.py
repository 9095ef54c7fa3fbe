"""Keeps requests of the model itself free of LoRA adapters on a CPU, where vLLM gives them those of another (0.32.0).

vLLM marks a row of a batch that has no adapter with the index -1. Its kernels for GPUs skip such rows; its operations
for CPUs take the weights of the last adapter for them (vllm-project/vllm#48421): answers of the model are wrong as soon
as it shares a step with an adapter, and so is the KV that is kept of them.
"""

from __future__ import annotations

import importlib
from functools import wraps
from typing import Any, Final

ENABLED: Final = "--enable-lora"
_PLACES: Final = ("vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")
"""Modules that call the operations, each by a name of its own."""
_OPERATIONS: Final = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
"""Each multiplies rows with the weights that a row's index names: a row of zeros adds nothing, whatever it names."""


def skip_rows_without_adapter() -> None:
    """Have this process's vLLM do as on a GPU. Raises ImportError, AttributeError where it differs."""
    places: list[Any] = [importlib.import_module(name) for name in _PLACES]
    for name in _OPERATIONS:
        own = _skipping(getattr(places[0], name))
        for place in places:
            setattr(place, name, own)


def _skipping(operation: Any) -> Any:
    @wraps(operation)
    def skipping(inputs: Any, weights: Any, output: Any, indices: Any, *rest: Any, **named: Any) -> Any:
        return operation(inputs.masked_fill((indices < 0).unsqueeze(-1), 0), weights, output, indices, *rest, **named)

    return skipping
