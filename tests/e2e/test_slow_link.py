"""A slow link between two pools of real engines: avoided, predicted and simulated.

Pool `near` prefills. It decodes, too, and so does pool `far`, whose pulls come over a link of 1 MB/s. It is not the
link that is slow, but NIXL in the engine of `far` that says later that a pull is over (`faults/slow_pulls.py`): all
Pods of the local kubelet have addresses of one loopback device, and UCX of every engine takes the device's first one,
so that `tc` cannot tell the packets of two pairs apart. Nothing of Fulcrum and nothing else in the engines knows of it.

The tests are one story: each begins with the cluster that the one before has left.
"""

from __future__ import annotations

import dataclasses
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from calibration import POOL, Served, calibrated, endpoint_of, quickest, reports, run
from fidelity import TOLERANCE
from lanes import state_folder
from local_cluster import QUICKSTART, Cluster, local_cluster, wait_until
from prometheus_client.parser import text_string_to_metric_families
from tests.machine import deadline_seconds
from this_machine import TINY

from fulcrum.api.gateway import LearntRate, PairsReport
from fulcrum.capacity.kv import TransferCost
from fulcrum.load.demand import LatencyTargets
from fulcrum.replay import Endpoint, Outcome, Record
from fulcrum.routing.tuning import TUNING as ROUTING
from fulcrum.simulation.cluster import Links
from fulcrum.simulation.traffic import Phase, Request, generate

pytestmark = [pytest.mark.engine, pytest.mark.compare, pytest.mark.timeout(2400)]

FAULTS = Path(__file__).parent / "faults"
BYTES_PER_SECOND = 1_000_000
"""Of the link. A token of the tiny model has 3 KB of KV, so that a prompt of 512 tokens takes 1.6 s."""
SLO = LatencyTargets(ttft_seconds=10.0, tpot_seconds=1.0, attainment=0.95)
"""Wide enough for the slow pair: a request that would be late stays whole on its prefill worker."""
AVOIDED_SECONDS = 60.0
RATE = 0.7
"""Requests per second: a busy machine keeps up, and near's decode worker is often busy, so that far's is tried."""
WITHIN = 0.2
"""Largest error of predicted TTFT that is promised, of the measured one."""
LONE = 16
"""Requests that are predicted one by one, of 128 to 1,024 tokens."""
TRACE = Phase(seconds=150, requests_per_second=0.35, prompt_tokens_mean=384, output_tokens_mean=16, spread=0.5)
"""Keeps the link busy for 0.4 of the time."""
SHARES = (50, 90)
"""Percentiles that are compared."""
_seeds = count(1)


def manifest(folder: Path) -> Path:
    """The quickstart with two pools, and three workers in all."""
    document = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    document["metadata"]["name"] = "slowlink"
    spec = document["spec"]
    spec["slo"] = {"ttft": f"{SLO.ttft_seconds:g}s", "tpot": f"{SLO.tpot_seconds:g}s"}
    spec["balance"] = {"mode": "Manual", "ratio": {"prefill": 1, "decode": 2}}
    spec["gateway"]["replicas"] = 1
    (pool,) = spec["pools"]
    env = {"FULCRUM_TEST_PULL_BYTES_PER_SECOND": str(BYTES_PER_SECOND), "PYTHONPATH": str(FAULTS)}
    containers = [{"name": "worker", "env": [{"name": name, "value": value} for name, value in env.items()]}]
    spec["pools"] = [
        pool | {"name": "near", "workers": {"min": 2, "max": 2}},
        pool
        | {"name": "far", "workers": {"min": 1, "max": 1}, "roles": ["decode"]}
        | {"template": {"spec": {"containers": containers}}},
    ]
    path = folder / "slowlink.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = state_folder(tmp_path_factory, "slowlink")
    with local_cluster(home, manifest=manifest(home), name="slowlink", model=TINY) as cluster:
        wait_until("three workers", lambda: cluster.cluster()["status"].get("ready") == "3/3", seconds=480)
        wait_until("1P:2D", lambda: cluster.roles() == {"prefill": 1, "decode": 2}, seconds=120)
        yield cluster


def with_pools(cluster: Cluster, **spec: Any) -> None:
    """Change the pools by name, or other fields of the spec."""
    pools = [pool | spec.pop(pool["name"], {}) for pool in cluster.cluster()["spec"]["pools"]]
    cluster.patch({"pools": pools, **spec})


def inside(cluster: Cluster, path: str) -> str:
    """What the gateway answers to the cluster; one that is replaced still ends its streams."""
    (gateway,) = (pod for pod in cluster.pods("gateway") if "deletionTimestamp" not in pod["metadata"])
    url = f"http://{gateway['status']['podIP']}:8082{path}"
    with urllib.request.urlopen(url, timeout=deadline_seconds(10)) as answer:
        return str(answer.read().decode())


def learnt(cluster: Cluster) -> LearntRate:
    """What the gateway has learnt of the slow pair; raises KeyError where it knows nothing of it."""
    report = msgspec.json.decode(inside(cluster, "/kv-pairs"), type=PairsReport)
    return {(rate.prefill_pool, rate.decode_pool): rate for rate in report.rates}["near", "far"]


def gateway_values(cluster: Cluster) -> dict[tuple[str, str], float]:
    """Its metrics by name and, where they are of one, latency."""
    families = text_string_to_metric_families(inside(cluster, "/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, each.labels.get("latency", "")): each.value for each in samples}


def is_far(record: Record) -> bool:
    """Whether its KV went over the slow link."""
    return ",slowlink-far-" in record.path


def seconds(records: Sequence[Record]) -> list[float]:
    """TTFT of each."""
    return [record.ttft_seconds for record in records if record.ttft_seconds is not None]


def serve(cluster: Cluster, endpoint: Endpoint, requests: Sequence[Request]) -> list[Record]:
    """Replay through the gateway, with prompts that no cache knows; in the order in which they were due."""
    records = run(cluster, endpoint, requests, seed=next(_seeds))
    failed = [(record.outcome, record.detail) for record in records if record.outcome is not Outcome.OK]
    assert not failed, failed
    return sorted(records, key=lambda record: record.due_seconds)


def test_the_slow_pair_is_avoided_within_a_minute(slow: Cluster) -> None:
    requests = [
        Request(arrival_seconds=each / RATE, prompt_tokens=512, output_tokens=24)
        for each in range(round(1.5 * AVOIDED_SECONDS * RATE))
    ]
    records = serve(slow, endpoint_of(slow), requests)
    far = [record.due_seconds - records[0].due_seconds for record in records if is_far(record)]
    assert far, "the slow pair was never tried"
    print(f"{len(far)} of {len(records)} requests over the slow link: at {', '.join(f'{each:.0f}' for each in far)} s")
    late = [record for record in records if record.due_seconds - records[0].due_seconds > AVOIDED_SECONDS]
    near, tried = (median(seconds(found)) for found in (late, list(filter(is_far, records))))
    print(f"TTFT over the slow link {tried:.2f} s, after a minute {near:.2f} s; {learnt(slow)}")
    assert far[-1] <= AVOIDED_SECONDS
    assert all("," in record.path for record in late), "a near decode worker is there"
    assert near < 0.5 * tried


def error_of_one(cluster: Cluster, endpoint: Endpoint, prompt_tokens: int) -> tuple[float, float]:
    """TTFT of a request that has the cluster for itself, and the gateway's error, as a part of the longer of both.

    The gateway publishes the mean error of the last requests: what the mean moves by is this one's part.
    """
    error, served = (
        ("fulcrum_gateway_prediction_error_ratio", "ttft"),
        ("fulcrum_gateway_time_to_first_token_seconds_count", ""),
    )
    before = gateway_values(cluster)
    assert before[served] >= ROUTING.recent_requests
    (record,) = serve(cluster, endpoint, [Request(arrival_seconds=0.0, prompt_tokens=prompt_tokens, output_tokens=8)])
    assert is_far(record), record
    after = wait_until(
        "the gateway to have booked it",
        lambda: values if (values := gateway_values(cluster))[served] > before[served] else None,
        seconds=30,
    )
    (ttft,) = seconds([record])
    return ttft, before[error] + ROUTING.recent_requests * (after[error] - before[error])


def test_ttft_over_the_slow_pair_is_predicted(slow: Cluster) -> None:
    with_pools(slow, near={"workers": {"min": 1, "max": 1}}, balance={"ratio": {"prefill": 1, "decode": 1}})
    wait_until("near's decode worker to go", lambda: len(slow.workers()) == 2, seconds=120)
    endpoint, moved = endpoint_of(slow), slow.kv_bytes_moved()
    lengths = [round(128 * 2 ** (3 * (5 * each % LONE) / LONE)) for each in range(LONE)]
    found = [error_of_one(slow, endpoint, tokens) for tokens in lengths]
    for tokens, (ttft, error) in zip(lengths, found, strict=True):
        print(f"{tokens:5d} tokens: TTFT {ttft:.2f} s, predicted within {error:.1%}")
    per_token = (slow.kv_bytes_moved() - moved) / sum(lengths)
    rate = learnt(slow)
    print(f"{per_token:.0f} bytes per token; {rate}")
    # Of the longer of both: 1 / (1 + WITHIN) covers predictions that are too long, too.
    assert median(error for _, error in found) <= WITHIN / (1 + WITHIN)
    assert rate.seconds_per_token == pytest.approx(per_token / BYTES_PER_SECOND, rel=WITHIN)


def test_the_simulator_has_the_ttft_of_the_slow_pair(slow: Cluster) -> None:
    """It knows how long prefill legs and decode steps took, and what was learnt of the link before: no first token.

    The machine's pace may change from one minute to the next, so that both are those of this load.
    """
    rate, legs = learnt(slow), "fulcrum_gateway_prefill_leg_seconds"
    cost = TransferCost(base_seconds=rate.base_seconds, seconds_per_token=rate.seconds_per_token)
    before = gateway_values(slow)
    served = Served.of(slow, generate([TRACE], seed=3), seed=next(_seeds), prefill=1, decode=1)
    after = gateway_values(slow)
    took, number = (after[legs + part, ""] - before[legs + part, ""] for part in ("_sum", "_count"))
    told = dataclasses.replace(served, pace=dataclasses.replace(served.pace, prefill_seconds=took / number))
    start = dataclasses.replace(quickest(reports(slow)), links=Links(pairs={(POOL, POOL): cost}), slo=SLO)
    calibration = dataclasses.replace(calibrated(start, [told], crowding=0.0), leg_seconds=0.0)
    result, pace = calibration.simulate(served.trace, 1, 1)
    real, simulated = (np.percentile(each.ttft_seconds, SHARES) for each in (served, result))
    print(f"{calibration.speed.coefficients}; {cost}")
    print(f"{len(served.trace)} requests; {told.pace}, in the engine {served.pace}, simulated {pace}")
    for share, its, mine in zip(SHARES, real, simulated, strict=True):
        print(f"TTFT p{share} {its:.2f} s, simulated {mine:.2f} s ({mine / its - 1:+.1%})")
    assert simulated == pytest.approx(real, rel=TOLERANCE)
