"""Costs of moving KV of a model that only its agents describe: as the operator prices it; unknown without reports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import KvCacheConfig, LoadReport, WorkerConfig
from fulcrum.capacity.kv import UNKNOWN_TRANSFER, TransferCost
from fulcrum.capacity.model_facts import facts_of_config
from fulcrum.capacity.transfers import pool_transfer
from fulcrum.gateway.metrics.counts import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers.registry import WorkerRegistry
from fulcrum.gateway.workers.reported_transfers import ReportedTransfers

MODEL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
SCALED = {**MODEL, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}


def config(**fields: Any) -> WorkerConfig:
    facts: dict[str, Any] = {"accelerator": "H100-SXM-80GB", "kv_cache": KvCacheConfig(dtype="auto")}
    return WorkerConfig(cluster="c", pool="p", model="org/own", served_name="c", **{**facts, **fields})


def report(model: dict[str, Any] | None = None, **fields: Any) -> LoadReport:
    facts: dict[str, Any] = {"role": Role.PREFILL, "role_epoch": 0, "ready": True, "draining": False}
    return LoadReport(**facts, model_config=model, **fields)


class Fleet:
    """Workers of pool p, and a decode worker of a pool that is priced already."""

    def __init__(self) -> None:
        self.registry = WorkerRegistry(Metrics())
        self.transfers = ReportedTransfers(["p"])
        self.registry.put(WorkerRecord(name="d", role=Role.DECODE, host="127.0.0.1", port=1, pool="q"))

    def sees(self, name: str, said: LoadReport | None, told: WorkerConfig | None) -> TransferCost:
        record = WorkerRecord(name=name, role=Role.PREFILL, host="127.0.0.1", port=1, pool="p", config=told)
        self.registry.put(record)
        workers = {worker.name: worker for worker in self.registry.workers}
        workers[name].heard(said)
        self.transfers.expect(self.registry.workers, self.registry.cluster)
        return self.registry.cluster.transfers.cost(workers[name].ranks[0].state, workers["d"].ranks[0].state)


def priced(dtype: str = "auto", **pool: Any) -> TransferCost | None:
    """As the operator prices the same pool, which knows the ConfigMap."""
    pools = [{"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"max": 1}, **pool}]
    document = {"model": {"name": "org/own"}, "pools": pools, "engine": {"kvCache": {"dtype": dtype}}}
    return pool_transfer(msgspec.convert(document, InferenceClusterSpec), _pool(document), facts_of_config(MODEL))


def _pool(document: dict[str, Any]) -> Any:
    return msgspec.convert(document, InferenceClusterSpec).pools[0]


@pytest.mark.parametrize(
    ("told", "said", "expected"),
    [
        (config(), report(MODEL), priced()),
        (config(), report(MODEL, kv_cache_dtype="bfloat16"), priced()),
        (config(), report(MODEL, kv_cache_dtype="fp8_e4m3"), priced("fp8")),
        (config(), report(SCALED), priced("fp8")),
        (config(kv_cache=KvCacheConfig(dtype="fp8")), report(MODEL), priced("fp8")),
        (config(tensor_parallel=4, rdma=True), report(MODEL), priced(parallelism={"tensor": 4}, rdma={})),
        # Nothing can be said: it costs what is unknown, and transfers will tell.
        (config(), report(), UNKNOWN_TRANSFER),
        (config(), None, UNKNOWN_TRANSFER),
        (None, report(MODEL), UNKNOWN_TRANSFER),
        (config(accelerator="X1"), report(MODEL), UNKNOWN_TRANSFER),
        (config(), report({"model_type": "llama"}), UNKNOWN_TRANSFER),
        (config(), report({**MODEL, "num_hidden_layers": "x"}), UNKNOWN_TRANSFER),
    ],
)
def test_a_model_that_agents_report_costs_what_the_operator_says(
    told: WorkerConfig | None, said: LoadReport | None, expected: TransferCost
) -> None:
    assert Fleet().sees("p-0", said, told) == expected


def test_pools_that_the_configuration_prices_are_left_alone() -> None:
    fleet = Fleet()
    fleet.transfers = ReportedTransfers([])
    assert fleet.sees("p-0", report(MODEL), config()) == UNKNOWN_TRANSFER


def test_a_worker_that_is_silent_for_once_changes_nothing_and_a_new_revision_does() -> None:
    fleet = Fleet()
    before = fleet.sees("p-0", report(MODEL), config())
    assert fleet.sees("p-0", None, config()) == before
    assert fleet.sees("p-1", report(MODEL), config(kv_cache=KvCacheConfig(dtype="fp8"))) == priced("fp8")
    assert fleet.sees("p-0", report(MODEL), config()) == before
