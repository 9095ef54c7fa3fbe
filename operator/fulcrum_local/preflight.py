"""What this machine cannot run, said before anything starts: an engine would fail half a minute later, and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.names import KIND
from fulcrum.capacity.cpu import NO_FP8_KV, refuses_fp8_kv

Json = dict[str, Any]


def cannot_run(documents: Iterable[Json], cpuinfo: str) -> Iterator[str]:
    """Yield a line for each InferenceCluster that names the field and the fix; `cpuinfo` is that of this machine.

    What is no valid object is passed over: the API server says more about it.
    """
    if not refuses_fp8_kv(cpuinfo):
        return
    for document in documents:
        if document.get("kind") == KIND and _keeps_fp8_on_cpu(document.get("spec")):
            metadata = document.get("metadata")
            name = metadata.get("name", "") if isinstance(metadata, dict) else ""
            yield f"InferenceCluster {name}: spec.engine.kvCache.dtype: {NO_FP8_KV}"


def _keeps_fp8_on_cpu(spec: Any) -> bool:
    try:
        dtype = ((spec.get("engine") or {}).get("kvCache") or {}).get("dtype", KvCacheDtype.AUTO)
        return dtype == KvCacheDtype.FP8 and any(pool.get("accelerator") == "cpu" for pool in spec["pools"])
    except (AttributeError, KeyError, TypeError):
        return False
