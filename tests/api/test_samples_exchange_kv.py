"""The GPUs of every sample can exchange KV: prefill and decode are there, in one format, on known GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fulcrum.api.attention import KNOWN_ACCELERATORS
from fulcrum.api.kv_format import kv_format
from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.pool_attention import exchanges_kv
from fulcrum.rollout.revision import worker_config, worker_image

_ROOT = Path(__file__).parents[2]
_CLUSTERS = [
    document
    for folder in ("manifests/samples", "examples")
    for path in sorted((_ROOT / folder).glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if document["kind"] == "InferenceCluster" and document["spec"]["model"].get("task") != "Pooling"
]


@pytest.mark.parametrize("document", _CLUSTERS, ids=lambda document: document["metadata"]["name"])
def test_pools_that_exchange_kv_can(document: dict[str, object]) -> None:
    cluster = load_inference_cluster(document)
    spec = cluster.spec
    pools = [pool for pool in spec.pools if exchanges_kv(pool)]
    assert {Role.PREFILL, Role.DECODE} <= {Role(role.value) for pool in pools for role in pool.roles}
    formats = {
        kv_format(
            worker_config(cluster=cluster.metadata.name, spec=spec, pool=pool, role=Role.MIXED),
            worker_image(spec, pool) or "",
        )
        for pool in pools
    }
    assert len(formats) == 1
    # What is not known gets no common backend, and might choose another one than its peers.
    accelerators = {pool.accelerator for pool in pools}
    assert len(accelerators) == 1 or all(re.match(KNOWN_ACCELERATORS, each) for each in accelerators)
