"""One local cluster with four real engines for the whole session; brought up by the first test that wants it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]  # modules that tests here, and the benchmarks, share

from answers import Question, questions_of  # noqa: E402
from local_cluster import BIN, REPOSITORY, Cluster, local_cluster, wait_until  # noqa: E402
from this_machine import suited  # noqa: E402

ORDER = (
    "test_chaos",
    "test_helm",
    "test_watchdog",
    "test_parity",
    "test_bad_input",
    "test_access",
    "test_flips",
    "test_resume",
    "test_kills",
    "test_operator_restart",
    "test_operator_release",
    "test_scale_down",
    "test_nodes",
    "test_delete",
    "test_parity_bf16",
    "test_fidelity",
    "test_auto",
    "test_prometheus",
    "test_overload",
)
"""The first three have clusters of their own, before there is another. Later ones change the cluster for good;
from `test_parity_bf16` on they have others where the first one was."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After all others: the last cluster's engines are there until the session ends."""
    ours = [item for item in items if item.path.parent == HERE]
    ours.sort(key=lambda item: ORDER.index(item.path.stem))
    items[:] = [item for item in items if item.path.parent != HERE] + ours


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says how its cluster was, and what the operator said last: the cluster is gone afterwards."""
    report = yield
    arguments = getattr(item, "funcargs", {}).values()
    cluster = next((value for value in arguments if isinstance(value, Cluster)), None)
    if report.failed and cluster is not None:
        report.sections.append((f"{call.when}: the cluster", cluster.described()))
    return report


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`examples/quickstart.yaml`, up and Available."""
    subprocess.run([BIN / "fulcrum", "model", "smollm2"], check=True)
    with local_cluster(tmp_path_factory.mktemp("fulcrum")) as cluster:
        wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=480)
        yield cluster


@pytest.fixture(scope="session")
def auto(quickstart: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """`examples/auto.yaml` in the same local Kubernetes, once the clusters before it are gone: memory is scarce."""
    quickstart.kubectl("delete", "ic", "--all", "--wait=false")
    wait_until("no workers of other clusters", lambda: not quickstart.read("pods")["items"], seconds=240)
    manifest = suited(REPOSITORY / "examples" / "auto.yaml", tmp_path_factory.mktemp("auto"))
    quickstart.kubectl("apply", "-f", str(manifest))
    cluster = replace(quickstart, name="auto")
    # Its tests load it until it is late, to see what the ratio does about that.
    cluster.patch({"admission": {"policy": "Off"}})
    wait_until("four workers", lambda: cluster.cluster()["status"].get("ready") == "4/4", seconds=480)
    return cluster


@pytest.fixture(scope="session")
def overload(quickstart: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """`examples/overload.yaml` in the same local Kubernetes, once the clusters before it are gone."""
    quickstart.kubectl("delete", "ic", "--all", "--wait=false")
    wait_until("no workers of other clusters", lambda: not quickstart.read("pods")["items"], seconds=240)
    manifest = suited(REPOSITORY / "examples" / "overload.yaml", tmp_path_factory.mktemp("overload"))
    quickstart.kubectl("apply", "-f", str(manifest))
    cluster = replace(quickstart, name="overload")
    wait_until("two workers", lambda: cluster.cluster()["status"].get("ready") == "2/2", seconds=480)
    return cluster


def rolled_out(cluster: Cluster) -> bool:
    """Whether the operator has acted on the spec, and all gateways are of the Deployment that it made of it."""
    found = cluster.cluster()
    if found["status"].get("observedGeneration") != found["metadata"]["generation"]:
        return False
    gateway = cluster.read("deployment", f"{cluster.name}-gateway")
    wanted, status = gateway["spec"]["replicas"], gateway["status"]
    return (
        status.get("observedGeneration") == gateway["metadata"]["generation"]
        and status.get("replicas") == status.get("updatedReplicas") == status.get("readyReplicas") == wanted
    )


@pytest.fixture
def whole(quickstart: Cluster) -> Cluster:
    """The cluster with four ready workers, two for each role; nobody is turned away, so that any loss is one."""
    quickstart.patch({"admission": {"policy": "Off"}})
    quickstart.patch_ratio(2, 2)
    wait_until("2P:2D", lambda: quickstart.roles() == {"prefill": 2, "decode": 2}, seconds=240)
    wait_until("the gateways", lambda: rolled_out(quickstart), seconds=120)
    return quickstart


@pytest.fixture(scope="session")
def questions(quickstart: Cluster) -> list[Question]:
    """Questions whose greedy answers are known, from one engine alone."""
    return questions_of(quickstart)
