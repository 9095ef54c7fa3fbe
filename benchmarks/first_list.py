"""How long a gateway takes over its first list of workers, for which its event loop stands still.

In one process, without network: Pods are decoded from JSON as the API server sends it, become workers that requests are
routed by, and pairs to try. Then come each worker's first report of its KV tiers, the same list again, as it does every
two minutes, and an empty one. Prints CPU seconds, the least of three rounds. Fails when a step takes more than 1 s.

    python benchmarks/first_list.py [--workers 500,1000,2000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable

import msgspec
import uvloop

from fulcrum.api import names
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.worker import KvCacheConfig, WorkerConfig
from fulcrum.capacity.kv import TransferCost
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings
from fulcrum.gateway.workers.watch import Pod, take
from fulcrum.kube import Listed
from fulcrum.kv import Tiers

TARGET_SECONDS = 1.0
ROUNDS = 3
PER_NODE = 8


def pods(count: int) -> bytes:
    """So many ready workers, a quarter of them for prefill, as a JSON list."""
    config = WorkerConfig(
        cluster="c", pool="h100", model="org/m", served_name="m", accelerator="cpu", kv_cache=KvCacheConfig()
    )
    environment = [{"name": names.ENV_WORKER_CONFIG, "value": msgspec.json.encode(config).decode()}]
    return msgspec.json.encode(
        [
            {
                "metadata": {
                    "name": f"c-h100-{number:05d}",
                    "uid": f"u-{number}",
                    "labels": {
                        names.LABEL_CLUSTER: "c",
                        names.LABEL_COMPONENT: names.COMPONENT_WORKER,
                        names.LABEL_ROLE: "decode" if number % 4 else "prefill",
                        names.LABEL_POOL: "h100",
                    },
                    "annotations": {names.ANNOTATION_ROLE_EPOCH: "1"},
                },
                "spec": {
                    "nodeName": f"n-{number // PER_NODE}",
                    "containers": [{"name": "worker", "image": "i", "env": environment}],
                },
                "status": {
                    "phase": "Running",
                    "podIP": f"10.0.{number // 250}.{number % 250}",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"restartCount": 0, "state": {"running": {}}}],
                },
            }
            for number in range(count)
        ]
    )


def steps(gateway: Gateway, document: bytes) -> dict[str, Callable[[], None]]:
    """What is measured, in its order."""
    cost = TransferCost(base_seconds=0.001, seconds_per_token=1e-6)
    tiers = Tiers(host_tokens=1e6, host_link=cost, pool_tokens=1e8, pool_link=cost)

    def read(listed: bytes) -> None:
        take(gateway, Listed(items=msgspec.json.decode(listed, type=list[Pod]), version="1"), {})

    def report() -> None:
        for worker in gateway.registry.workers:
            gateway.registry.cluster.workers.set_tiers(worker.name, tiers)

    return {
        "first list": lambda: read(document),
        "pairs to try": lambda: gateway.prewarmer.queue_new(asyncio.get_running_loop().time()),
        "first reports": report,
        "same list": lambda: read(document),
        "empty list": lambda: read(b"[]"),
    }


async def _measure(count: int) -> dict[str, float]:
    config = GatewayConfig(cluster="c", served_name="m", model="m")
    document = pods(count)
    gateway = Gateway(Settings(config=config, host="127.0.0.1", port=0), asyncio.get_running_loop())
    gateway.registry.joined = gateway.prewarmer.joined
    taken = {}
    for name, step in steps(gateway, document).items():
        began = time.process_time()
        step()
        taken[name] = time.process_time() - began
        if name == "first list":
            assert len(gateway.registry.workers) == count
    return taken


def seconds(count: int) -> dict[str, float]:
    """CPU seconds of each step with `count` workers."""
    logging.disable(logging.INFO)
    gc.collect()
    gc.freeze()  # as a gateway does when it starts
    try:
        rounds = [uvloop.run(_measure(count)) for _ in range(ROUNDS)]
    finally:
        gc.unfreeze()
        logging.disable(logging.NOTSET)
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", default="500,1000,2000", help="numbers of workers")
    counts = [int(each) for each in parser.parse_args().workers.split(",")]
    found = {count: seconds(count) for count in counts}
    print(f"{'workers':<16}" + "".join(f"{count:>10}" for count in counts))
    for name in found[counts[0]]:
        print(f"{name:<16}" + "".join(f"{found[count][name]:>8.3f} s" for count in counts))
    return int(any(each > TARGET_SECONDS for taken in found.values() for each in taken.values()))


if __name__ == "__main__":
    sys.exit(main())
