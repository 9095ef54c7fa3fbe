"""What Fulcrum sets for models of today on GPUs of today, held against vLLM's own code.

For each of 12 models on 8 accelerators: the element type of the KV cache, attention backend and KV block, whether an
engine starts or why it is refused, with which accelerators it exchanges KV, vLLM's budgets, and the KV tokens of a
worker. vLLM's CUDA platform is asked for backend and block, per compute capability (`vllm_cuda.py`); what it cannot be
asked without a GPU is `unchecked`.

    python benchmarks/models.py [--model NAME]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.api.attention import AttentionKind, compute_capability, usual_backend, usual_block_tokens
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import kv_capacity_tokens
from fulcrum.capacity.kv_dtype import resolved_kv_dtype
from fulcrum.capacity.model_kinds import ModelKind, kind_of_name
from fulcrum.capacity.precision import Precision
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.installation import Installation

MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "Qwen/Qwen2.5-72B-Instruct",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B-FP8",
    "mistralai/Mistral-Large-Instruct-2407",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "moonshotai/Kimi-K2-Instruct",
)
ACCELERATORS = (
    "A10-24GB", "A6000-48GB", "A100-SXM-80GB", "L40-48GB", "L40S-48GB", "H100-SXM-80GB", "H200-SXM-141GB",
    "B200-SXM-180GB",
)  # fmt: skip
LEAST_KV_TOKENS = 32_768
"""A worker with room for fewer is not worth starting."""
MOST_UNCHECKED = 0.1
"""Share of the cells that vLLM cannot be asked for."""
_HEADS_PER_GPU = 16
_ALLOWED = Installation(allow_remote_code=True)
_MLA_HEAD = 576


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model on one accelerator."""

    model: str
    accelerator: str
    dtype: str
    backend: str
    block_tokens: int
    tensor: int | None
    """GPUs of the smallest worker; None: it does not fit on one node."""
    refused: str | None
    pairs: tuple[str, ...] = ()
    max_batched_tokens: int = 0
    max_batch: int = 0
    kv_tokens: int = 0

    @property
    def starts(self) -> bool:
        return self.refused is None and self.tensor is not None


def spec_of(model: str, *pools: tuple[str, int]) -> InferenceClusterSpec:
    """A spec with a pool of prefill and decode workers for each (accelerator, tensor parallelism)."""
    kind, made = kind_of_name(model), []
    for number, (name, tensor) in enumerate(pools):
        size = {"tensor": tensor}
        made.append({"name": f"p{number}", "accelerator": name, "workers": {"max": 2}, "parallelism": size})
    trusting = {"trustRemoteCode": True, "revision": "main"} if kind is not None and kind.remote_code else {}
    return msgspec.convert({"model": {"name": model, **trusting}, "pools": made}, InferenceClusterSpec)


def _shape(model: str, name: str, kv: Precision) -> tuple[EngineShape, int] | str:
    """The smallest engine with room for KV, and its tokens; or why there is none."""
    said, known = "", known_model(model)
    for tensor in (1, 2, 4, 8):
        try:
            shape = EngineShape(model=known, accelerator=accelerator(name), tensor=tensor, weights=known.weights, kv=kv)
            if (tokens := kv_capacity_tokens(shape)) >= LEAST_KV_TOKENS:
                return shape, tokens
        except EngineShapeError as error:
            said = str(error)
    return said or f"{known.name} leaves no room for KV on 8 x {name}"


def _refused(spec: InferenceClusterSpec) -> str | None:
    refused = refused_engines(spec, _ALLOWED, resolved_kv_dtype(spec).dtype)
    return next((each.message for each in refused.values()), None)


def cell_of(model: str, name: str) -> Cell:
    """What Fulcrum says of one model on one accelerator, but with which others it pairs."""
    kind = kind_of_name(model) or ModelKind()
    spec = spec_of(model, (name, 1))
    fp8 = resolved_kv_dtype(spec).dtype.value == "fp8"
    backend = usual_backend(name, kind.attention, fp8=fp8) or "?"
    found = _shape(model, name, Precision.FP8 if fp8 else Precision.BF16)
    refused = _refused(spec)
    cell = Cell(
        model=model, accelerator=name, dtype="fp8" if fp8 else "auto", backend=backend,
        block_tokens=usual_block_tokens(backend), tensor=None, refused=refused,
    )  # fmt: skip
    if isinstance(found, str):
        return replace(cell, refused=refused or found)
    shape, tokens = found
    return replace(
        cell, tensor=shape.tensor, max_batched_tokens=shape.max_batched_tokens, max_batch=shape.max_batch,
        kv_tokens=tokens,
    )  # fmt: skip


def cells(models: Iterable[str] = MODELS) -> list[Cell]:
    """Every cell of the table."""
    found = []
    for model in models:
        row = [cell_of(model, name) for name in ACCELERATORS]
        for cell in row:
            pairs = tuple(
                other.accelerator
                for other in row
                if cell.starts and other.starts and other is not cell and _pair(cell, other)
            )
            found.append(replace(cell, pairs=pairs))
    return found


def _pair(one: Cell, other: Cell) -> bool:
    """Whether each can prefill for the other."""
    spec = spec_of(one.model, (one.accelerator, one.tensor or 1), (other.accelerator, other.tensor or 1))
    return _refused(spec) is None


def ask_vllm(asked: Iterable[Cell]) -> list[Any]:
    """vLLM's answer for each cell: its valid backends with their blocks, the best first; a text where it has none."""
    asked = list(asked)
    request = []
    for cell in asked:
        kind, known = kind_of_name(cell.model) or ModelKind(), known_model(cell.model)
        latent = kind.attention in (AttentionKind.LATENT, AttentionKind.SPARSE_LATENT)
        attention = {
            "head_size": _MLA_HEAD if latent else known.head_dim,
            "kv_cache_dtype": cell.dtype,
            "use_mla": latent,
            "use_sparse": kind.attention is AttentionKind.SPARSE_LATENT,
            "has_sink": kind.attention is AttentionKind.SINKS,
            "use_mm_prefix": kind.attention is AttentionKind.PREFIX,
            "has_sliding_window": known.window_tokens is not None,
        }
        capability = compute_capability(cell.accelerator)
        request.append({"capability": capability, "attention": attention, "heads": _HEADS_PER_GPU})
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("vllm_cuda.py"))],
        input=json.dumps(request), capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def difference(cell: Cell, answer: Any) -> str | None:
    """What vLLM says otherwise; None: it agrees."""
    best = answer[0] if answer else ["-", cell.block_tokens]
    expected = [cell.backend, cell.block_tokens]
    return None if best == expected else f"{cell.model} on {cell.accelerator}: {expected} here, {best} in vLLM"


def main() -> int:
    """Print the table and what vLLM says of it; 1 where it says otherwise."""
    parser = argparse.ArgumentParser(description="What Fulcrum sets for models on GPUs, against vLLM's own code.")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one (repeatable)")
    arguments = parser.parse_args()
    table = cells(arguments.model or MODELS)
    answers = ask_vllm(table)
    differences, unchecked = [], 0
    for cell, answer in zip(table, answers, strict=True):
        checked = "as vLLM" if not isinstance(answer, str) else "unchecked"
        unchecked += isinstance(answer, str)
        if not isinstance(answer, str) and (found := difference(cell, answer)) is not None:
            differences.append(found)
            checked = "DIFFERS"
        print(_line(cell, checked))
    for found in differences:
        print(found)
    share = unchecked / len(table)
    good = not differences and share <= MOST_UNCHECKED
    starts = sum(cell.starts for cell in table)
    print(
        f"models {'ok' if good else 'FAILED'}: {len(table)} cells, {starts} start, {len(table) - starts} are refused; "
        f"backend and block as vLLM has them in {len(table) - unchecked - len(differences)}, "
        f"{len(differences)} differ, {unchecked} unchecked"
    )
    return 0 if good else 1


def _line(cell: Cell, checked: str) -> str:
    short = [name.partition("-")[0] for name in cell.pairs]
    size = (
        f"tp {cell.tensor}, budget {cell.max_batched_tokens:,} / {cell.max_batch:,}, {cell.kv_tokens:,} KV tokens, "
        f"pairs with {' '.join(short) or 'its like alone'}"
    )
    fate = size if cell.starts else f"refused: {cell.refused}"
    where = f"{cell.model.rpartition('/')[2]:28} {cell.accelerator:15}"
    return f"{where} {cell.dtype:5} {cell.backend:22} {cell.block_tokens:3} {checked:10} {fate}"


if __name__ == "__main__":
    sys.exit(main())
