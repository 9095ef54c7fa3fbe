"""Our examples with other fields, as files for `fulcrum up -f`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def changed(manifest: Path, to: Path, *, pool: dict[str, Any] | None = None, kv_cache: dict[str, Any] | None = None,
            engine_args: Sequence[str] = (), **spec: Any) -> Path:  # fmt: skip
    """Write a copy of `manifest`, with these fields of its spec, only pool and KV cache, and return its path.

    `engine_args` are added to those of the manifest."""
    document = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    document["spec"] |= spec
    (only,) = document["spec"]["pools"]
    only |= pool or {}
    engine = document["spec"]["engine"]
    engine["kvCache"] |= kv_cache or {}
    if engine_args:
        engine["args"] = [*engine.get("args", []), *engine_args]
    to.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return to
