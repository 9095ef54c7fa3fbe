"""Local clusters with real engines that stay until the session ends; the first test that wants one brings it up."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).resolve().parent))  # modules that tests here share

from answers import Question, questions_of
from lanes import state_folder
from local_cluster import REPOSITORY, Cluster, local_cluster, wait_until
from manifests import changed
from this_machine import TINY

ELSEWHERE = "elsewhere"
"""Tests of other folders."""
ORDER = (
    "test_chaos",
    "test_watchdog",
    "test_slow_link",
    "test_groups",
    "test_helm",
    "test_parity_words",
    "test_progress",
    ELSEWHERE,
    "test_parity",
    "test_bad_input",
    "test_access",
    "test_flips",
    "test_resume",
    "test_kills",
    "test_operator_restart",
    "test_scale_down",
    "test_operator_release",
    "test_nodes",
    "test_delete",
    "test_fidelity",
    "test_auto",
    "test_prometheus",
    "test_overload",
)
"""The first ones, the longest before the others, end the engines that they have. Of those that share a cluster, later
ones change it for good."""
SHARED = ORDER[ORDER.index("test_parity") : ORDER.index("test_delete") + 1]
"""Files whose tests want one and the same cluster, and so one process."""
LAST = ORDER[ORDER.index("test_fidelity") :]
"""So do these, whose engines stay until the session ends."""


class TwoLanes(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of the shared cluster and then LAST in one process, all others beside them (`make e2e`).

    A process that has done its part takes the next file of the other's.
    """

    def _split_scope(self, nodeid: str) -> str:
        stem = Path(nodeid.partition("::")[0]).stem
        return "shared" if stem in SHARED else "last" if stem in LAST else stem

    def _assign_work_unit(self, node: Any) -> None:
        is_shared = "shared" in self.assigned_work.get(node, {})
        scopes = sorted(self.workqueue, key=lambda scope: (scope != "shared", (scope == "last") != is_shared))
        self.workqueue.move_to_end(scopes[0], last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoLanes:
    """How pytest-xdist shares out the tests of this folder when it is asked for these alone."""
    return TwoLanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines that are there until the session ends come after all others."""
    items.sort(key=lambda item: ORDER.index(item.path.stem if item.path.parent == Path(__file__).parent else ELSEWHERE))


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
def running() -> list[Cluster]:
    """Clusters that are there until the session ends, oldest first."""
    return []


def make_room(running: list[Cluster]) -> None:
    """Delete the workers of the clusters before: memory is scarce."""
    for cluster in running:
        cluster.kubectl("delete", "ic", "--all", "--wait=false")
        wait_until("no workers of other clusters", lambda of=cluster: not of.read("pods")["items"], seconds=240)


@pytest.fixture(scope="session")
def quickstart(running: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`examples/quickstart.yaml` with the tiny model, up and Available."""
    with local_cluster(state_folder(tmp_path_factory, "fulcrum"), model=TINY) as cluster:
        wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=480)
        running.append(cluster)
        yield cluster


@pytest.fixture(scope="session")
def auto(running: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`examples/auto.yaml`; its tests load it until it is late, to see what the ratio does about that."""
    make_room(running)
    folder = state_folder(tmp_path_factory, "auto")
    manifest = changed(REPOSITORY / "examples" / "auto.yaml", folder / "late.yaml", admission={"policy": "Off"})
    with local_cluster(folder, manifest=manifest, name="auto") as cluster:
        wait_until("four workers", lambda: cluster.cluster()["status"].get("ready") == "4/4", seconds=480)
        running.append(cluster)
        yield cluster


@pytest.fixture(scope="session")
def overload(running: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`examples/overload.yaml`."""
    make_room(running)
    manifest = REPOSITORY / "examples" / "overload.yaml"
    with local_cluster(state_folder(tmp_path_factory, "overload"), manifest=manifest, name="overload") as cluster:
        wait_until("two workers", lambda: cluster.cluster()["status"].get("ready") == "2/2", seconds=480)
        running.append(cluster)
        yield cluster


@pytest.fixture
def whole(quickstart: Cluster) -> Cluster:
    """The cluster with four ready workers, two for each role; nobody is turned away, so that any loss is one."""
    quickstart.patch({"admission": {"policy": "Off"}})
    quickstart.patch_ratio(2, 2)
    wait_until("2P:2D", lambda: quickstart.roles() == {"prefill": 2, "decode": 2}, seconds=240)
    wait_until("the gateways", quickstart.rolled_out, seconds=120)
    return quickstart


@pytest.fixture(scope="session")
def questions(quickstart: Cluster) -> list[Question]:
    """Questions whose greedy answers are known, from one engine alone."""
    return questions_of(quickstart)
