"""The token of each cluster: made once, kept when its Secret is deleted, never taken from somebody else's Secret."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any, cast

import pytest
from tests.controller.cluster import Agent, Cluster, Operator, eventually

from fulcrum.api.internal_token import fingerprint, record_token
from fulcrum.controller.child_sync import NameTakenError
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.children.internal_secret import token_of
from fulcrum.controller.internal_secrets import InternalSecrets, NoTokenError
from fulcrum.controller.kube import DEPLOYMENT, SECRET, Kube
from fulcrum.kube import ApiError

OWNER = Owner(name="c", namespace="ns", uid="u")
RESYNC = 300.0


class Api:
    """One namespace with Secrets in it."""

    def __init__(self) -> None:
        self.there: dict[str, Manifest] = {}
        self.calls: list[str] = []
        self.refuses: ApiError | None = None
        self.quicker: Manifest | None = None
        """What another operator makes a moment before us."""

    async def get(self, _: Any, __: str, name: str) -> Manifest | None:
        self.calls.append("get")
        if self.refuses is not None:
            raise self.refuses
        return self.there.get(name)

    async def create(self, _: Any, manifest: Manifest) -> Manifest | None:
        self.calls.append("create")
        name = manifest["metadata"]["name"]
        if self.quicker is not None:
            self.there[name] = self.quicker
        if name in self.there:
            return None
        self.there[name] = manifest
        return manifest


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def secrets_of(api: Api, clock: Clock) -> InternalSecrets:
    return InternalSecrets(cast("Kube", api), resync_seconds=RESYNC, clock=clock)


async def test_a_token_is_made_once_and_read_by_the_next_operator() -> None:
    api, clock = Api(), Clock()
    first = secrets_of(api, clock)
    token = await first.token(OWNER, may_make=True)
    assert token is not None
    assert len(token) >= 43
    assert await first.token(OWNER, may_make=True) == token
    assert api.calls == ["get", "create"] * 2
    assert await secrets_of(api, clock).token(OWNER, may_make=True) == token
    other = await first.token(Owner(name="d", namespace="ns", uid="v"), may_make=True)
    assert other != token


async def test_a_deleted_secret_is_made_anew_with_the_same_token() -> None:
    api, clock = Api(), Clock()
    secrets = secrets_of(api, clock)
    token = await secrets.token(OWNER, may_make=True)
    api.there.clear()
    clock.now += RESYNC
    assert await secrets.token(OWNER, may_make=True) == token
    assert list(api.there) == ["c-internal", "c-record"]
    # A cluster of the same name that is made later gets another one.
    api.there.clear()
    assert await secrets.token(Owner(name="c", namespace="ns", uid="later"), may_make=True) != token


async def test_of_two_operators_both_use_what_the_quicker_one_made() -> None:
    api, clock = Api(), Clock()
    quicker = secrets_of(other := Api(), clock)
    token = await quicker.token(OWNER, may_make=True)
    api.quicker = other.there["c-internal"]
    assert await secrets_of(api, clock).token(OWNER, may_make=True) == token


async def test_a_paused_cluster_gets_no_secret() -> None:
    api = Api()
    assert await secrets_of(api, Clock()).token(OWNER, may_make=False) is None
    assert api.calls == ["get"]


async def test_who_may_record_gets_a_token_of_another_kind() -> None:
    api, clock = Api(), Clock()
    secrets = secrets_of(api, clock)
    token = await secrets.token(OWNER, may_make=True)
    assert token is not None
    kept = token_of(api.there["c-record"])
    assert kept == record_token(token)
    assert token not in kept
    assert kept not in token
    clock.now += RESYNC
    api.calls.clear()
    await secrets.token(OWNER, may_make=True)
    assert api.calls == ["get", "get"], "and nothing is written"


@pytest.mark.parametrize(
    "taken",
    [
        {"metadata": {"name": "c-record"}, "data": {"token": "YWJj"}},  # somebody else's
        {"metadata": {"name": "c-record", "ownerReferences": [{"uid": "u", "controller": True}]}, "data": {}},
    ],
)
async def test_a_taken_name_stops_nothing_but_recording(taken: Manifest, caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    api.there["c-record"] = taken
    assert await secrets_of(api, Clock()).token(OWNER, may_make=True) is not None
    assert api.there["c-record"] is taken
    assert "secret=c-record: fulcrum record cannot read this cluster. Delete the Secret" in caplog.text


async def test_a_failure_to_keep_it_stops_nothing_but_recording(caplog: pytest.LogCaptureFixture) -> None:
    class NoRecord(Api):
        async def create(self, kind: Any, manifest: Manifest) -> Manifest | None:
            if manifest["metadata"]["name"] == "c-record":
                raise ApiError(500, "InternalError", "broken")
            return await super().create(kind, manifest)

    assert await secrets_of(NoRecord(), Clock()).token(OWNER, may_make=True) is not None
    assert "record_secret_unknown namespace=ns secret=c-record" in caplog.text


async def test_somebody_elses_secret_is_left_alone() -> None:
    api = Api()
    api.there["c-internal"] = {"metadata": {"name": "c-internal"}, "data": {"token": "YWJj"}}
    with pytest.raises(NameTakenError, match="Secret c-internal exists and does not belong"):
        await secrets_of(api, Clock()).token(OWNER, may_make=True)


async def test_a_secret_without_a_token_says_what_to_do() -> None:
    api = Api()
    await secrets_of(api, Clock()).token(OWNER, may_make=True)
    api.there["c-internal"]["data"] = {}
    with pytest.raises(NoTokenError, match="no usable key token: delete it"):
        await secrets_of(api, Clock()).token(OWNER, may_make=True)


async def test_while_secrets_cannot_be_read_the_known_token_holds() -> None:
    api, clock = Api(), Clock()
    secrets = secrets_of(api, clock)
    token = await secrets.token(OWNER, may_make=True)
    api.refuses, clock.now = ApiError(403, "Forbidden", "no"), RESYNC
    assert await secrets.token(OWNER, may_make=True) == token
    with pytest.raises(NoTokenError, match="apply the roles of this release"):
        await secrets_of(api, clock).token(OWNER, may_make=True)


async def test_other_errors_are_told_as_they_are() -> None:
    api = Api()
    api.refuses = ApiError(500, "InternalError", "broken")
    with pytest.raises(ApiError, match="broken"):
        await secrets_of(api, Clock()).token(OWNER, may_make=True)


async def replacing(cluster: Cluster, before: dict[str, str]) -> bool:
    """Whether a worker drains for its successor, or has one."""
    now = await cluster.pods()
    drains = [pod for pod in now.values() if pod["metadata"]["labels"]["fulcrum.dev/role"] == "draining"]
    return bool(drains) or any(pod["metadata"]["uid"] != before.get(name) for name, pod in now.items())


async def stored(cluster: Cluster) -> str:
    secret = await cluster.kube.get(SECRET, cluster.namespace, "c-internal")
    assert secret is not None
    assert secret["immutable"] is True
    return base64.b64decode(secret["data"]["token"]).decode()


@pytest.mark.integration
async def test_the_operator_makes_the_secret_and_sends_the_token_to_agents(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        await cluster.apply()
        await cluster.settle()
        token = await stored(cluster)
        pods = (await cluster.pods()).values()
        assert {pod["metadata"]["annotations"]["fulcrum.dev/internal-token"] for pod in pods} == {fingerprint(token)}
        deployment = await cluster.kube.get(DEPLOYMENT, cluster.namespace, "c-gateway")
        assert deployment is not None
        assert token not in json.dumps([*pods, deployment])
        async with Agent().serve((await cluster.pods())["c-p-1"]["status"]["podIP"]) as agent:
            await cluster.patch({"spec": {"balance": {"ratio": {"prefill": 1, "decode": 3}}}})

            async def told() -> bool:
                return bool(agent.told)

            await eventually(told)
        assert agent.authorizations[0] == f"Bearer {token}"
        assert token not in operator.log.read_text()
    # Another operator, that remembers nothing, finds the Secret gone: all workers are replaced, one after another.
    cluster.server.kubectl("-n", cluster.namespace, "delete", "secret", "c-internal")
    before = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await eventually(partial(replacing, cluster, before))
    assert await stored(cluster) != token


@pytest.mark.integration
async def test_before_going_back_workers_are_replaced_by_open_ones(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
    before = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}
    with Operator(cluster.server, "--namespace", cluster.namespace, "--open-workers"):
        await eventually(partial(replacing, cluster, before))


@pytest.mark.integration
async def test_workers_of_the_release_before_stay(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
    for name in await cluster.pods():
        cluster.server.kubectl("-n", cluster.namespace, "annotate", "pod", name, "fulcrum.dev/internal-token-")
    before = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}
    with Operator(cluster.server, "--namespace", cluster.namespace) as operator:
        await cluster.patch({"spec": {"balance": {"ratio": {"prefill": 1, "decode": 3}}}})

        async def flipped() -> bool:
            return (await cluster.roles()).get("c-p-1") == "decode"

        await eventually(flipped)
        assert {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()} == before
        assert "worker_draining" not in operator.log.read_text()
