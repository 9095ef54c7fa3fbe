"""SIGKILL of any process in the middle of load: answers are right or clean errors, and the cluster heals itself."""

from __future__ import annotations

import time
from functools import partial

import pytest
from answers import Question
from local_cluster import EVERYWHERE, Cluster, wait_until
from processes import engine_core, processes

from fulcrum.replay import Outcome
from load import Answered, SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

OPERATOR_NAMESPACE = "fulcrum-system"


def load_around(cluster: Cluster, questions: list[Question], *pods: str, engine_of: str = "") -> SteadyLoad:
    """Load before, during and after the kill of each Pod's main process, or of the engine below it.

    The next one is killed once the restart of the one before has begun and others have answered meanwhile.
    """
    victims = {pod: processes(cluster, pod=pod)[0] for pod in pods}
    if engine_of:
        victims[engine_of] = engine_core(victims[engine_of])
    with SteadyLoad(cluster.endpoint(), questions, rate=4) as load:
        began = time.monotonic()
        for pod, victim in victims.items():
            wait_until("answers before the kill", partial(more_right, load, load.count(Outcome.OK)), seconds=120)
            before = restarts(cluster, pod)
            victim.kill()
            print(f"{pod}: killed after {time.monotonic() - began:.1f} s")
            wait_until("its restart", lambda of=pod, more=before: restarts(cluster, of) > more, seconds=120)
        load.rate = 2
        wait_until("the cluster to be whole again", lambda: healed(cluster), seconds=400, every_seconds=1)
        print(f"whole again after {time.monotonic() - began:.1f} s")
        wait_until("answers after it", partial(more_right, load, load.count(Outcome.OK)), seconds=120)
    print(load.summary())
    return load


def more_right(load: SteadyLoad, before: int) -> bool:
    return load.count(Outcome.OK) >= before + 8


def restarts(cluster: Cluster, pod: str) -> int:
    """How often the only container of a Pod was started again."""
    (found,) = (item for item in cluster.read("pods", namespace=EVERYWHERE)["items"] if item["metadata"]["name"] == pod)
    return sum(status["restartCount"] for status in found["status"]["containerStatuses"])


def healed(cluster: Cluster) -> bool:
    """Available, as many workers and gateways as the spec wants, all ready, and the ratio as it was."""
    operator = cluster.read("deployments", "fulcrum-operator", namespace=OPERATOR_NAMESPACE)["status"]
    gateway = cluster.read("deployments", f"{cluster.name}-gateway")["status"]
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


def test_workers(whole: Cluster, questions: list[Question]) -> None:
    """The agent of a prefill worker, and the engine of a decode worker while the first one starts again."""
    prefill, decode = (next(w.name for w in whole.workers() if w.role == role) for role in ("prefill", "decode"))
    load = load_around(whole, questions, prefill, decode, engine_of=decode)
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
    pods = whole.read("pods", namespace=OPERATOR_NAMESPACE)["items"]
    victim = next(pod["metadata"]["name"] for pod in pods if "operator" in pod["metadata"]["name"])
    load = load_around(whole, questions, victim)
    assert all(answered.right for answered in load.answered), load.summary()
