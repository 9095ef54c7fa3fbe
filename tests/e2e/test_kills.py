"""SIGKILL of any process in the middle of load: answers are right or clean errors, and the cluster heals itself."""

from __future__ import annotations

import time

import pytest
from answers import Question
from local_cluster import Cluster, wait_until
from processes import engine_core, processes

from fulcrum.replay import Outcome
from load import Answered, SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

OPERATOR_NAMESPACE = "fulcrum-system"


def load_around(cluster: Cluster, questions: list[Question], pod: str, *, engine: bool = False) -> SteadyLoad:
    """Load before, during and after the kill of the Pod's main process, or of the engine below it."""
    main = processes(cluster, pod=pod)[0]
    victim = engine_core(main) if engine else main
    restarts_before = restarts(cluster, pod)
    with SteadyLoad(cluster.endpoint(), questions, rate=4) as load:
        wait_until("answers before the kill", lambda: load.count(Outcome.OK) >= 8, seconds=120)
        victim.kill()
        killed_at = time.monotonic()
        wait_until("its restart", lambda: restarts(cluster, pod) > restarts_before, seconds=120)
        wait_until("the cluster to be whole again", lambda: healed(cluster), seconds=400, every_seconds=1)
        print(f"{pod}: whole again {time.monotonic() - killed_at:.1f} s after the kill")
        ok = load.count(Outcome.OK)
        wait_until("answers after it", lambda: load.count(Outcome.OK) >= ok + 8, seconds=120)
    print(load.summary())
    return load


def restarts(cluster: Cluster, pod: str) -> int:
    """How often the only container of a Pod was started again."""
    (found,) = (item for item in cluster.read("pods", "-A")["items"] if item["metadata"]["name"] == pod)
    return sum(status["restartCount"] for status in found["status"]["containerStatuses"])


def healed(cluster: Cluster) -> bool:
    """Available, as many workers and gateways as the spec wants, all ready, and the ratio as it was."""
    operator = cluster.read("deployment", "-n", OPERATOR_NAMESPACE, "fulcrum-operator")["status"]
    gateway = cluster.read("deployment", f"{cluster.name}-gateway")["status"]
    status = cluster.cluster()["status"]
    return (
        cluster.condition("Available") == "True"
        and cluster.condition("Degraded") == "False"
        and status.get("ready") == "4/4"
        and cluster.roles() == {"prefill": 2, "decode": 2}
        and gateway.get("readyReplicas") == 2
        and operator.get("readyReplicas") == 1
    )


def clean(answered: Answered) -> bool:
    """Refused with a hint when to come back, or ended by an error object in the stream."""
    return answered.outcome is Outcome.REJECTED or "error in the stream" in answered.detail


@pytest.mark.parametrize(("role", "engine"), [("prefill", False), ("decode", True)], ids=["agent", "engine"])
def test_worker(whole: Cluster, questions: list[Question], role: str, engine: bool) -> None:
    victim = next(worker for worker in whole.workers() if worker.role == role)
    load = load_around(whole, questions, victim.name, engine=engine)
    assert not any(answered.wrong for answered in load.answered), load.summary()
    assert all(answered.right or clean(answered) for answered in load.answered), load.summary()


def test_gateway(whole: Cluster, questions: list[Question]) -> None:
    victim = whole.pods("gateway")[0]["metadata"]["name"]
    load = load_around(whole, questions, victim)
    assert not any(answered.wrong for answered in load.answered), load.summary()
    # Streams through the killed process are cut off, which their clients see, and which is all that can be done.
    for answered in load.answered:
        assert answered.right or clean(answered) or "connection ended" in answered.detail, load.summary()


def test_operator(whole: Cluster, questions: list[Question]) -> None:
    pods = whole.read("pods", "-n", OPERATOR_NAMESPACE)["items"]
    victim = next(pod["metadata"]["name"] for pod in pods if "operator" in pod["metadata"]["name"])
    load = load_around(whole, questions, victim)
    assert all(answered.right for answered in load.answered), load.summary()
