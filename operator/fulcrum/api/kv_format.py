"""What the format of a worker's KV depends on: only workers of one format hand KV to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fulcrum.api.amd import has_fnuz
from fulcrum.api.worker import WorkerConfig

_SCHEDULING: Final = frozenset(
    (
        "max-num-seqs", "max-num-batched-tokens", "max-num-partial-prefills", "max-long-partial-prefills",
        "long-prefill-token-threshold", "gpu-memory-utilization", "enforce-eager", "async-scheduling",
        "stream-interval", "cudagraph-capture-sizes", "max-cudagraph-capture-size", "compilation-config", "log-level",
        "enable-expert-parallel", "all2all-backend", "moe-backend", "enable-eplb", "eplb-config", "enable-dbo",
        "dbo-decode-token-threshold", "dbo-prefill-token-threshold",
    )
)  # fmt: skip
"""Arguments of vLLM that prefill and decode pools set differently, and that change no byte of the KV."""


def kv_format(config: WorkerConfig, image: str) -> str:
    """Return a text that is equal for workers that can hand KV to each other.

    NIXL's handshake compares version, model, cache type and attention backend. The image stands for the version, and of
    the extra arguments all count but those that are known not to matter. It does not compare which FP8 the bytes are:
    an MI300X would read an H100's in silence as numbers half as large, so its KV counts as another format wherever it
    may be FP8 (`auto` takes FP8 from a checkpoint).
    """
    kv, arguments = config.kv_cache, tuple(_relevant(config.engine_args))
    model = (config.model, config.model_revision)
    cache = (kv.dtype, kv.skip_layers, kv.block_size)
    fnuz = ("fnuz",) if has_fnuz(config.accelerator) and kv.dtype != "bf16" else ()
    return repr((image, *model, *cache, *fnuz, config.transfer.connector, config.attention_backend, arguments))


def _relevant(arguments: tuple[str, ...]) -> Iterator[str]:
    keep = True
    for argument in arguments:
        if argument.startswith("--"):
            name = argument[2:].partition("=")[0].replace("_", "-").removeprefix("no-")
            keep = name not in _SCHEDULING
        if keep:
            yield argument
