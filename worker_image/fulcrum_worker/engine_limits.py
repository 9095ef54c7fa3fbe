"""Has vLLM say how much it puts into one step: it chooses that by the hardware, and has no metric for it (0.32.0)."""

from __future__ import annotations

import importlib
from typing import Any, Final

MAX_BATCH: Final = "fulcrum_engine_max_num_seqs"
MAX_BATCHED_TOKENS: Final = "fulcrum_engine_max_num_batched_tokens"
"""Gauges on vLLM's own `/metrics`."""


def publish_limits() -> None:
    """Has this process export vLLM's limits once it has settled them. Raises ImportError, AttributeError if it differs.

    Call it before vLLM's server makes its configuration, in the process that does.
    """
    arguments: Any = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    create = arguments.create_engine_config

    def create_and_publish(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = create(self, *args, **kwargs)
        _export(config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens)
        return config

    arguments.create_engine_config = create_and_publish


def _export(max_batch: int, max_batched_tokens: int) -> None:
    from prometheus_client import REGISTRY
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Limits(Collector):
        def collect(self) -> list[GaugeMetricFamily]:
            return [
                GaugeMetricFamily(MAX_BATCH, "Most requests in one step.", max_batch),
                GaugeMetricFamily(MAX_BATCHED_TOKENS, "Token budget of one step.", max_batched_tokens),
            ]

    REGISTRY.register(Limits())
