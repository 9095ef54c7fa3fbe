"""Makes our connector known by its name: vLLM's API server looks it up to read the metrics of its engine."""

from __future__ import annotations

import importlib
from typing import Any, Final

HOST_USED: Final = "fulcrum_engine_kv_host_used_ratio"
"""Gauge on vLLM's own `/metrics`: the fraction of host memory that holds KV. vLLM's gauges tell of what is in use."""
HOST_TOKENS: Final = "fulcrum_engine_kv_host_tokens"
"""Gauge there: tokens whose KV fits in host memory."""
TIER_CONNECTOR: Final = "TierConnector"
CONNECTOR_MODULE: Final = "fulcrum_worker.kv.connector"


def register_tier_connector() -> None:
    """Register the connector in this process; it is imported when vLLM first asks for it."""
    factory: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    factory.register_connector(TIER_CONNECTOR, CONNECTOR_MODULE, TIER_CONNECTOR)
