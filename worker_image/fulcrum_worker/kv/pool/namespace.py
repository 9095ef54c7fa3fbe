"""Which engines may read each other's blocks: those with the same weights, dtype, layout, block size and vLLM."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from vllm.platforms import current_platform
from vllm.v1.kv_offload.file_mapper import FileMapper

from fulcrum_worker.kv.policy import LAYOUT, vllm_version

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 1 << 16
"""Weights are sampled: reading 140 GB at each start would take minutes. Training changes all of a tensor, and any other
change has another size."""


class NotShareableError(Exception):
    """This engine's KV means something to itself only; the message says why."""


def namespace(spec: Any, vllm_config: Any) -> str:
    """Return the name of the folder in which an engine finds blocks that it can use. Raises NotShareableError."""
    model = vllm_config.model_config
    if vllm_config.lora_config is not None:
        raise NotShareableError("vLLM names KV by an adapter's name, not by its weights (--enable-lora)")
    fields = FileMapper.from_offloading_spec(
        root_dir="", offloading_spec=spec, blocks_per_file=spec.blocks_per_chunk, parallel_agnostic=True
    ).get_run_config()
    del fields["model_name"]  # a path; the weights count
    architecture = model.hf_config.to_dict()
    for name in ("_name_or_path", "_commit_hash", "transformers_version"):
        architecture.pop(name, None)
    fields |= {
        "weights": weights_digest(_folder(model.model, model.revision)),
        "architecture": architecture,
        "computed_in": str(model.dtype),
        "quantization": model.quantization,
        "layout": [_layout(spec, vllm_config), vllm_config.cache_config.kv_cache_layout],
        "bytes_per_block": spec.kv_bytes_per_chunk,
        "hash": vllm_config.cache_config.prefix_caching_hash_algo,
        "vllm": vllm_version(),
    }
    if current_platform.is_fp8_fnuz():  # the same byte is another number; left out elsewhere, so that names stay
        fields["fp8"] = "fnuz"
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:32]


def weights_digest(folder: Path) -> str:
    """Return a digest of a folder's weights: names, sizes and samples. Raises NotShareableError for none."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    if not files:
        raise NotShareableError(f"there are no weights in {folder}")
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES + 1):
                start = max((size - _SAMPLE_BYTES) * sample // _SAMPLES, 0)
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return digest.hexdigest()


def _folder(model: str, revision: str | None) -> Path:
    """Return the folder of the weights that were loaded, in the hub's cache where `model` is a hub id."""
    if (folder := Path(model)).is_dir():
        return folder
    if folder.is_file():
        return folder.parent
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
        raise NotShareableError(f"the folder of the weights of {model} is not known: {error}") from error


def _layout(spec: Any, vllm_config: Any) -> str:
    """Return what decides on the order of bytes in a block: on CPUs their instructions, else what is configured."""
    told = str(spec.extra_config.get(LAYOUT, ""))
    if not current_platform.is_cpu():
        return told
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    cache, model = vllm_config.cache_config, vllm_config.model_config
    isa: str = _get_attn_isa(model.dtype, cache.block_size, model.get_head_size(), cache.cache_dtype)
    return isa
