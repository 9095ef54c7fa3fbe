"""A worker from which no KV can be pulled: noticed, routed around, restarted, and no answer is wrong meanwhile.

`recompute` hides such a fault from everyone who only looks at answers: each prompt is computed twice. The fault here is
real for the engines: handshakes with one prefill worker go into nothing until its Pod is made anew.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from answers import Question, questions_of
from lanes import state_folder
from local_cluster import QUICKSTART, Cluster, Worker, local_cluster, wait_until
from tests.machine import deadline_seconds
from this_machine import TINY

from fulcrum.replay import Outcome
from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

NOTICED_SECONDS = 30.0
"""What is promised, from the moment at which the worker is ready, on a quick machine."""
RESTARTED_SECONDS = 240.0
"""Three canaries must fail, the worker must be half a minute old, and its role stays served meanwhile."""
RELAY_PORT = "5601"
FAULTS = Path(__file__).parent / "faults"


def with_relays(folder: Path) -> Path:
    """The quickstart with three workers, whose handshakes go through a relay in each Pod."""
    document = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    document["metadata"]["name"] = "watchdog"
    spec = document["spec"]
    spec["admission"] = {"policy": "Off"}
    spec["balance"] = {"mode": "Manual", "ratio": {"prefill": 2, "decode": 1}}
    spec["gateway"]["replicas"] = 1
    fields = {"POD_IP": "status.podIP", "POD_NAME": "metadata.name"}
    relay = {
        "name": "relay",
        "image": "relay",
        "command": ["python3", str(FAULTS / "side_channel_relay.py")],
        "env": [
            {"name": "FULCRUM_TEST_RELAY_PORT", "value": RELAY_PORT},
            {"name": "FULCRUM_TEST_FAULTS", "value": str(folder)},
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    engine_env = [
        {"name": "FULCRUM_TEST_RELAY_PORT", "value": RELAY_PORT},
        {"name": "PYTHONPATH", "value": str(FAULTS)},
    ]
    (pool,) = spec["pools"]
    pool["workers"] = {"min": 3, "max": 3}
    pool["template"] = {"spec": {"containers": [{"name": "worker", "env": engine_env}, relay]}}
    path = folder / "watchdog.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def watched(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = state_folder(tmp_path_factory, "watchdog")
    with local_cluster(home, manifest=with_relays(tmp_path), name="watchdog", model=TINY) as cluster:
        wait_until("three workers", lambda: cluster.cluster()["status"].get("ready") == "3/3", seconds=480)
        wait_until("2P:1D", lambda: cluster.roles() == {"prefill": 2, "decode": 1}, seconds=120)
        yield cluster


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=deadline_seconds(10)) as response:
        return json.load(response)


def failing_pairs(cluster: Cluster) -> set[tuple[str, str]]:
    """What the gateway's canaries found."""
    (gateway,) = cluster.pods("gateway")
    return {
        (pair["prefill"], pair["decode"])
        for pair in get(f"http://{gateway['status']['podIP']}:8082/kv-pairs")["failing"]
    }


def is_said(cluster: Cluster, reason: str, what: str = "") -> bool:
    """Whether the condition Degraded has this reason, and a message with `what` in it."""
    conditions = cluster.cluster()["status"]["conditions"]
    return any(c["type"] == "Degraded" and c["reason"] == reason and what in c["message"] for c in conditions)


def is_there(cluster: Cluster, worker: Worker) -> bool:
    """Whether it is the same Pod, and stays."""
    return any(found.uid == worker.uid and not found.deleting for found in cluster.workers())


def newcomer(cluster: Cluster, known: set[str]) -> Worker | None:
    """A ready worker that is not one of `known` uids."""
    return next((w for w in cluster.workers() if w.uid not in known and w.ready and not w.deleting), None)


def path_of(cluster: Cluster, question: Question) -> tuple[str, ...]:
    """The workers that served a question; its answer must be right."""
    body = {**question.body, "cache_salt": f"path {time.monotonic_ns()}"}
    request = urllib.request.Request(
        f"{cluster.endpoint()}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=deadline_seconds(120)) as response:
        assert json.load(response)["choices"][0]["text"] == question.answer
        return tuple(response.headers["x-fulcrum-path"].split(","))


def paths_at_once(cluster: Cluster, questions: Sequence[Question]) -> list[tuple[str, ...]]:
    """The paths of questions that are asked at the same moment, so that no worker is quick enough for all of them."""
    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(partial(path_of, cluster), questions))


def test_a_worker_from_which_nobody_can_pull_is_noticed_avoided_and_restarted(watched: Cluster, tmp_path: Path) -> None:
    questions = questions_of(watched)
    wait_until("all pairs to work", lambda: not failing_pairs(watched), seconds=120)
    wait_until("nothing to be wrong", lambda: is_said(watched, "Healthy"), seconds=180)
    known = {worker.uid for worker in watched.workers()}
    victim = next(worker for worker in watched.workers() if worker.role == "prefill")
    (decode,) = (worker.name for worker in watched.workers() if worker.role == "decode")
    with ThreadPoolExecutor(1) as beside, SteadyLoad(watched.endpoint(), questions, rate=1) as load:
        wait_until("answers", partial(load.has, 4), seconds=120)
        (tmp_path / "block-next").touch()
        watched.kubectl("delete", "pod", victim.name, "--wait=false")
        faulty = wait_until("its successor", lambda: newcomer(watched, known), seconds=300)
        joined = time.monotonic()
        assert not (tmp_path / "block-next").exists()
        pair = (faulty.name, decode)
        wait_until("the fault to be noticed", lambda: pair in failing_pairs(watched), seconds=120, every_seconds=0.1)
        noticed_seconds = time.monotonic() - joined

        def asked() -> list[tuple[tuple[str, ...], bool]]:
            """Paths of answers, and whether the worker was still there when each had come."""
            return [(path_of(watched, question), is_there(watched, faulty)) for question in questions[:6]]

        # Beside it: the operator may soon be done with that worker, and then says so no more.
        asking = beside.submit(asked)
        said = f"{faulty.name} -> {decode}"
        wait_until("the operator to say so", lambda: is_said(watched, "KvTransferFailing", said), seconds=60)
        healed = wait_until(
            "a restart", lambda: newcomer(watched, known | {faulty.uid}), seconds=RESTARTED_SECONDS + 120
        )
        restarted_seconds = time.monotonic() - joined
        seen: Counter[tuple[str, ...]] = Counter()

        def is_used() -> bool:
            seen.update(paths_at_once(watched, questions[:8]))
            return (healed.name, decode) in seen

        try:
            wait_until("KV to move from it", is_used, seconds=120)
        except TimeoutError as error:
            raise AssertionError(f"paths {dict(seen)}, failing pairs {failing_pairs(watched)}") from error
        wait_until("nothing to be wrong", lambda: is_said(watched, "Healthy"), seconds=180)
    print(
        f"noticed after {noticed_seconds:.1f} s, restarted and ready after {restarted_seconds:.1f} s; "
        f"{len(load.answered)} answers, {sum(not each.right for each in load.answered)} not right"
    )
    assert noticed_seconds <= deadline_seconds(NOTICED_SECONDS)
    assert restarted_seconds <= deadline_seconds(RESTARTED_SECONDS)
    paths = asking.result()
    assert any(there for _, there in paths)
    assert pair not in [path for path, _ in paths]
    assert any(len(path) == 2 for path, _ in paths), "nothing was handed over by the workers that can"
    assert load.count(Outcome.OK) == len(load.answered) > 0, load.summary()
    assert not any(each.wrong for each in load.answered), load.summary()
