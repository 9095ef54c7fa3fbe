"""The operator of the release before and this one, in turn on the same cluster: no worker is restarted by it.

The one before is taken from git history; where there is none, or its Kubernetes client cannot be had, these tests skip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from tests.controller.cluster import REPOSITORY, ApiServer, Cluster, Operator, client_of, eventually, running_api_server
from tests.previous_release import add_client, previous_release, python_path

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.objects import load_inference_cluster, to_dict
from fulcrum.rollout import worker_revision

DOCUMENTS = ("examples/quickstart.yaml", "examples/auto.yaml", "examples/overload.yaml",
             "manifests/samples/cpu_minimal.yaml", "manifests/samples/h100_pair.yaml")  # fmt: skip
REVISIONS = """
import json, sys
from fulcrum.api.objects import load_inference_cluster, to_dict
try:
    from fulcrum.rollout import worker_revision
except ModuleNotFoundError:
    from fulcrum.balance import worker_revision
found = []
for document in json.load(sys.stdin):
    cluster = load_inference_cluster(document)
    name, spec = cluster.metadata.name, cluster.spec
    made = {pool.name: worker_revision(cluster=name, spec=spec, pool=pool) for pool in spec.pools}
    found.append({"stored": {**document, "spec": to_dict(cluster.spec)}, "revisions": made})
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the release before."""
    return previous_release(tmp_path_factory.mktemp("previous"))


def revisions_before(previous: Path, documents: list[Any]) -> list[dict[str, Any]]:
    """What the release before stores of each document, defaults included, and the revisions that it makes of it."""
    result = subprocess.run(
        [sys.executable, "-c", REVISIONS],
        input=json.dumps(documents),
        env={**os.environ, "PYTHONPATH": str(previous / "operator")},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def revisions(document: Any) -> dict[str, str]:
    cluster = load_inference_cluster(document)
    name = cluster.metadata.name
    return {pool.name: worker_revision(cluster=name, spec=cluster.spec, pool=pool) for pool in cluster.spec.pools}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_what_stands_is_of_the_wanted_revision_after_an_upgrade_and_back(previous: Path, path: str) -> None:
    """On objects as the release before stored them, and as this one stores them after it has read them."""
    document = yaml.safe_load((previous / path).read_text())
    (before,) = revisions_before(previous, [document])
    assert revisions(before["stored"]) == before["revisions"]
    stored_now = {**document, "spec": to_dict(load_inference_cluster(before["stored"]).spec)}
    assert revisions_before(previous, [stored_now])[0]["revisions"] == before["revisions"]


NEW_FIELDS: dict[str, dict[str, Any]] = {
    "rollout": {"pools": [{"rollout": {"maxUnavailable": 2, "maxSurge": "50%"}}]},
    "start timeout": {"engine": {"startTimeout": "45m"}},
    "no drain timeout": {"slo": {"tpot": "1s"}},
    "prefix cache": {"gateway": {"auth": {"secretName": "keys", "prefixCache": "PerKey"}}},
    "a field of the next release": {"novel": {"x": 1}, "pools": [{"novel": True}]},
}
"""Fields of the spec that the release before does not know, and that are no part of what a worker is made from."""


@pytest.mark.parametrize("fields", NEW_FIELDS.values(), ids=NEW_FIELDS)
def test_what_is_made_now_is_of_the_wanted_revision_after_going_back(previous: Path, fields: dict[str, Any]) -> None:
    """Also with an image that the spec does not name, and with fields that only one of both knows."""
    document = yaml.safe_load((REPOSITORY / "examples" / "quickstart.yaml").read_text())
    (extra,) = fields.get("pools", [{}])
    document["spec"] |= {**fields, "pools": [{**document["spec"]["pools"][0], **extra}]}
    document["spec"]["engine"] |= {"kvCache": {"dtype": "fp8", "memory": "256Mi"}}
    assert revisions_before(previous, [document])[0]["revisions"] == revisions(document)


def test_a_status_of_another_release_is_read_as_none_and_a_spec_that_is_not_understood_is_refused() -> None:
    """An operator that goes back holds what stands, and says which field it does not understand."""
    document = yaml.safe_load((REPOSITORY / "examples" / "quickstart.yaml").read_text())
    at = "2026-01-01T00:00:00Z"
    novel = {"type": "Degraded", "status": "True", "reason": "NovelReason", "message": "", "lastTransitionTime": at}
    assert load_inference_cluster({**document, "status": {"conditions": [novel]}}).status.conditions == ()
    document["spec"]["balance"]["mode"] = "Novel"
    with pytest.raises(InvalidValueError, match=r"spec\.balance\.mode.*kubectl explain ic\.spec\.balance\.mode"):
        load_inference_cluster(document)


class PreviousOperator(Operator):
    """The operator of the release before."""

    tree: Path

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from fulcrum.cli.app import main; main()",
                    "operator",
                    "--health-address",
                    "127.0.0.1:0",
                    *self._arguments,
                ],
                env={
                    **os.environ,
                    "KUBECONFIG": str(self._server.operator_kubeconfig),
                    "POD_NAME": self._pod,
                    "PYTHONPATH": python_path(self.tree),
                },
                stdout=log,
                stderr=log,
            )
        return self


@pytest.fixture(scope="module")
def with_client(previous: Path) -> Path:
    """The same tree, beside it the Kubernetes client of the release before."""
    add_client(previous)
    return previous


@pytest.fixture
def upgraded_server(tmp_path: Path, with_client: Path) -> Iterator[ApiServer]:
    with running_api_server(tmp_path) as server:
        server.install()
        server.kubectl("apply", "-f", str(with_client / "crds" / "fulcrum.dev_inferenceclusters.yaml"))
        yield server


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("made_by", ["the release before", "this release"])
async def test_operators_of_two_releases_take_turns_and_restart_no_worker(
    upgraded_server: ApiServer, with_client: Path, made_by: str
) -> None:
    server = upgraded_server
    server.kubectl("create", "namespace", "t")
    api = client_of(server)
    cluster = Cluster(server, api, "t")

    async def reconciled(operator: Operator, ratio: dict[str, int]) -> None:
        """A change is acted upon: the operator has looked, and flips are all that it did."""
        await cluster.patch({"spec": {"balance": {"ratio": ratio}}})

        async def done() -> bool:
            counts = list((await cluster.roles()).values())
            return {role: counts.count(role) for role in ("prefill", "decode")} == ratio

        await eventually(done, seconds=120)
        await server.writes_at_rest(seconds=4)
        assert {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()} == uids, operator.log

    def rights_of(release: Path) -> None:
        """Each release is installed with its own rights; the CRD only ever moves forward."""
        server.kubectl("apply", "-k", str(release / "manifests" / "rbac"))

    def before() -> PreviousOperator:
        rights_of(with_client)
        operator = PreviousOperator(server, "--namespace", "t")
        operator.tree = with_client
        return operator

    def upgrade() -> None:
        server.kubectl("apply", "-k", str(REPOSITORY / "crds"))
        rights_of(REPOSITORY)

    first = before()
    if made_by == "this release":
        upgrade()
        first = Operator(server, "--namespace", "t")
    with first:
        await cluster.apply()
        await cluster.settle()
        uids = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}
    upgrade()
    with Operator(server, "--namespace", "t") as operator:
        await reconciled(operator, {"prefill": 3, "decode": 1})
    with before() as operator:
        await reconciled(operator, {"prefill": 1, "decode": 3})
    rights_of(REPOSITORY)
    with Operator(server, "--namespace", "t") as operator:
        await reconciled(operator, {"prefill": 2, "decode": 2})
    await api.close()


@pytest.mark.integration
async def test_an_operator_whose_crd_was_not_upgraded_converges_and_rests(
    upgraded_server: ApiServer, with_client: Path
) -> None:
    """Fields that the older CRD does not know are pruned: writing them again and again would never end."""
    server = upgraded_server
    server.kubectl("create", "namespace", "t")
    api = client_of(server)
    cluster = Cluster(server, api, "t")
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"max": 4}, "rollout": {"maxUnavailable": 2}}]
    with Operator(server, "--namespace", "t"):
        await cluster.apply(pools=pools)
        assert "rollout" not in (await cluster.get())["spec"]["pools"][0]
        await cluster.settle()
        await server.writes_at_rest(seconds=4)
        uids = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}
        server.kubectl("apply", "-k", str(REPOSITORY / "crds"))
        await cluster.apply(pools=pools)
        assert (await cluster.get())["spec"]["pools"][0]["rollout"]["maxUnavailable"] == 2
        await server.writes_at_rest(seconds=4)
        # Back to the older CRD: what it does not know is pruned with the next write, and nothing is restarted for it.
        server.kubectl("apply", "-f", str(with_client / "crds" / "fulcrum.dev_inferenceclusters.yaml"))
        await cluster.patch({"metadata": {"annotations": {"written": "yes"}}})
        assert "rollout" not in (await cluster.get())["spec"]["pools"][0]
        await server.writes_at_rest(seconds=4)
        assert {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()} == uids
    await api.close()
