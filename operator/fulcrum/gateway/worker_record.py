"""A worker as it is described to the gateway."""

from __future__ import annotations

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.worker import WorkerConfig


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A usable worker, as the API server (or an option) describes it."""

    name: str
    role: Role
    role_epoch: int = 0
    host: str
    port: int
    agent_port: int | None = None
    """Where its agent reports load and speed; None: nowhere."""
    incarnation: str = ""
    """Another value means another engine process."""
    pool: str = ""
    """Workers of a pool are alike."""
    revision: str = ""
    """Only workers of one revision understand each other's KV."""
    kv_cache_dtype: str = ""
    """Element type of the KV cache that its engine was told, in vLLM's words; empty: unknown."""
    node: str = ""
    config: WorkerConfig | None = None
    """What its engine was started with; None: unknown."""
    data_parallel: int = 1
    """Ranks of data parallel: each has its own queue, batch and KV cache, and requests are sent to one of them."""
