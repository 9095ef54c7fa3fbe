"""Our examples, as this machine can run them."""

from __future__ import annotations

from pathlib import Path

import yaml

from fulcrum.capacity.cpu import CPUINFO, NO_FP8_KV, refuses_fp8_kv

FP8 = not refuses_fp8_kv(CPUINFO.read_text(errors="replace"))
"""Whether the CPU has the kernels for the KV cache that the examples ask for."""
_FLOAT32 = {"dtype": "auto", "memory": "512Mi"}
"""Room for half as many tokens as in the 256Mi of FP8 that the examples have: with room for as many, the eight engines
of `make e2e` fill 24 GB."""


def suited(manifest: Path, folder: Path) -> Path:
    """Return `manifest`, or a copy in `folder` that computes and caches in float32, and print what is different."""
    if FP8:
        return manifest
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    engine = document["spec"]["engine"]
    engine["kvCache"] |= _FLOAT32
    engine["args"] = [*engine.get("args", []), "--dtype", "float32"]
    copy = folder / manifest.name
    copy.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    print(
        f"{manifest.name} in float32, with a KV cache of {_FLOAT32['memory']} instead of FP8: {NO_FP8_KV}", flush=True
    )
    return copy
