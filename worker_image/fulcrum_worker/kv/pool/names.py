"""Names of the pool's figures on the engine's own `/metrics`, which the agent reads. Free of vLLM."""

from __future__ import annotations

from typing import Final

BAD_BLOCKS: Final = "fulcrum_engine_kv_pool_bad_blocks"
"""Counter, by `flaw`: files that were not usable."""
DROPPED_BLOCKS: Final = "fulcrum_engine_kv_pool_dropped_blocks"
"""Counter: blocks that were not stored."""
USED_BYTES: Final = "fulcrum_engine_kv_pool_used_bytes"
"""Gauge: what all engines have in the pool."""
PROBLEM: Final = "fulcrum_engine_kv_pool_problem"
"""Gauge, by `problem`: 1 for what is wrong with the volume now."""
READ_BYTES: Final = "vllm:kv_offload_tiering_read_bytes"
READ_SECONDS: Final = "vllm:kv_offload_tiering_read_time"
WRITTEN_BYTES: Final = "vllm:kv_offload_tiering_write_bytes"
