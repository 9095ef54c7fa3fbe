"""The operator of the release before and this one in turn, with real engines under load: nobody notices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from answers import Question
from local_cluster import REPOSITORY, Cluster, wait_until
from processes import engine_core, processes
from tests.machine import deadline_seconds
from tests.previous_release import add_client, previous_release, python_path

from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

NAMESPACE = "fulcrum-system"


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = previous_release(tmp_path_factory.mktemp("previous"))
    add_client(tree)
    return tree


@pytest.fixture
def restored(quickstart: Cluster) -> Iterator[Cluster]:
    """The cluster with three workers that serve any gateway; whatever happens, this release's operator is back."""
    quickstart.patch({"admission": {"policy": "Off"}})
    quickstart.patch_ratio(2, 1)
    wait_until("2P:1D", partial(has_roles, quickstart, 2, 1), seconds=240)
    # Gateways of the release before do not send the token: the documented step before going back to it.
    quickstart.kubectl("-n", NAMESPACE, "set", "env", "deployment/fulcrum-operator", "FULCRUM_OPEN_WORKERS=true")
    quickstart.kubectl(
        "-n", NAMESPACE, "rollout", "status", "deployment/fulcrum-operator", f"--timeout={deadline_seconds(120):.0f}s"
    )
    wait_until("one operator, which opens workers", partial(acts, quickstart, None), seconds=120)
    # All at once: one after the other, as a rollout has it, would take twice as long.
    quickstart.kubectl(
        "delete",
        "pods",
        "-l",
        f"fulcrum.dev/cluster={quickstart.name},app.kubernetes.io/component=worker",
        "--wait=false",
    )
    wait_until("open workers", partial(all_are_open, quickstart), seconds=480, every_seconds=1)
    yield quickstart
    quickstart.kubectl("-n", NAMESPACE, "set", "env", "deployment/fulcrum-operator", "FULCRUM_OPEN_WORKERS-")
    install(quickstart, None)


def all_are_open(cluster: Cluster) -> bool:
    asks = [pod for pod in cluster.pods("worker") if "fulcrum.dev/internal-token" in pod["metadata"]["annotations"]]
    return not asks and has_roles(cluster, 2, 1)


def install(cluster: Cluster, tree: Path | None) -> None:
    """Replace the operator and its rights by those of another release (None: this one); the CRD only moves forward."""
    rights = (tree or REPOSITORY) / "manifests" / "rbac"
    cluster.kubectl("-n", NAMESPACE, "apply", "-k", str(rights), "--server-side", "--force-conflicts")
    variable = "PYTHONPATH-" if tree is None else f"PYTHONPATH={python_path(tree)}"
    cluster.kubectl("-n", NAMESPACE, "set", "env", "deployment/fulcrum-operator", variable)
    cluster.kubectl(
        "-n", NAMESPACE, "rollout", "status", "deployment/fulcrum-operator", f"--timeout={deadline_seconds(120):.0f}s"
    )
    wait_until("one operator, of that release", partial(acts, cluster, tree), seconds=120)


def acts(cluster: Cluster, tree: Path | None) -> bool:
    """Whether the only operator is of this release, and holds the Lease."""
    pods = cluster.read("pods", namespace=NAMESPACE)["items"]
    if len(pods) != 1:
        return False
    name = pods[0]["metadata"]["name"]
    holder = cluster.read("leases", "fulcrum-operator", namespace=NAMESPACE)["spec"].get("holderIdentity") or ""
    environment = processes(cluster, pod=name)[0].environ()
    return name in holder and environment.get("PYTHONPATH") == (python_path(tree) if tree is not None else None)


def everything_of(cluster: Cluster) -> dict[str, tuple[str, str, int, psutil.Process, psutil.Process]]:
    """What an upgrade must leave as it is: of each worker its Pod, container, restarts, agent and engine."""
    found = {}
    for pod in cluster.pods("worker"):
        (container,) = pod["status"]["containerStatuses"]
        agent = processes(cluster, pod=pod["metadata"]["name"])[0]
        found[pod["metadata"]["name"]] = (
            pod["metadata"]["uid"], container["containerID"], container["restartCount"], agent, engine_core(agent),
        )  # fmt: skip
    return found


def has_roles(cluster: Cluster, prefill: int, decode: int) -> bool:
    return cluster.roles() == {"prefill": prefill, "decode": decode}


def test_operators_of_two_releases_take_turns_under_load(
    restored: Cluster, previous: Path, questions: list[Question]
) -> None:
    cluster = restored
    before = everything_of(cluster)
    assert len(before) == 3
    with SteadyLoad(cluster.endpoint(), questions, rate=2) as load:
        wait_until("answers before", partial(load.has, 8), seconds=120)
        for tree, ratio in ((previous, (1, 2)), (None, (2, 1))):
            install(cluster, tree)
            # It looks after the cluster: a change is acted upon.
            cluster.patch_ratio(*ratio)
            wait_until(f"{ratio} by {'the one before' if tree else 'this one'}", partial(has_roles, cluster, *ratio),
                       seconds=120)  # fmt: skip
            wait_until("the gateways as it wants them", cluster.rolled_out, seconds=120)
            wait_until("answers", partial(load.has, len(load.answered) + 8), seconds=120)
    assert everything_of(cluster) == before
    assert all(answered.right for answered in load.answered), load.summary()
    assert cluster.condition("Available") == "True"
    print(f"the release before and back: {len(load.answered)} answers, all right; no worker was restarted")
