"""Ports of a pool and the network of nodes: what Pods and policies are made, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.charts.test_scraping import is_open
from tests.controller.test_published_schemas import of

from fulcrum.api.names import ANNOTATION_PORTS, Role
from fulcrum.api.ports import Ports, ports_of
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType, InferenceClusterSpec
from fulcrum.api.worker import WorkerConfig
from fulcrum.controller.children import Manifest, Owner, children, refused_templates, worker_pod
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.children.network_policy import workers_policy
from fulcrum.controller.children.worker_group import worker_group
from fulcrum.controller.installation import Installation
from fulcrum.decide import ObservedWorker, Snapshot, WorkerPhase
from fulcrum.report import plan
from fulcrum.rollout import worker_revision

OWNER = Owner(name="c", namespace="ml", uid="u-1")
ALLOWED = Installation(allow_host_access=True)
H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
GROUPED: dict[str, Any] = {"parallelism": {"tensor": 16}, "gpu": {"perNode": 8}}
HOST: dict[str, Any] = {"rdma": {"hostNetwork": True}}
OTHERS: dict[str, Any] = {"ports": {"engine": 9000, "agent": 9001, "nixl": 5700}}


def pool(name: str = "p", accelerator: str = H100, **fields: Any) -> dict[str, Any]:
    return {"name": name, "accelerator": accelerator, "workers": {"max": 4}, **fields}


def spec_of(*pools: dict[str, Any]) -> InferenceClusterSpec:
    return msgspec.convert({"model": {"name": "m"}, "pools": list(pools)}, InferenceClusterSpec)


def pod_of(spec: InferenceClusterSpec, number: int = 0) -> Manifest:
    return worker_pod(OWNER, spec, spec.pools[number], ordinal=0, role=Role.MIXED, image="i", token_fingerprint="f")


def container(pod: Manifest) -> Manifest:
    (found,) = pod["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def config_of(pod: Manifest) -> WorkerConfig:
    document = next(e["value"] for e in container(pod)["env"] if e["name"] == "FULCRUM_WORKER_CONFIG")
    return msgspec.json.decode(document, type=WorkerConfig)


def revision(**fields: Any) -> str:
    spec = spec_of(pool(**fields))
    return worker_revision(cluster="chat", spec=spec, pool=spec.pools[0])


@pytest.mark.parametrize(
    ("fields", "before"),
    [({}, "1a58266a75"), ({"rdma": {"runAsRoot": True}}, "8fdcec13c8"), (GROUPED, "59286e5026")],
)
def test_pools_that_set_no_ports_keep_the_revision_and_the_pods_that_they_had(
    fields: dict[str, Any], before: str
) -> None:
    """The hashes are those of the release before there were ports."""
    assert revision(**fields) == before
    assert revision(**fields, ports={"engine": 8000, "nixl": 5600}) == before, "what is so anyway"
    pod = pod_of(spec_of(pool(**fields)))
    assert container(pod)["ports"] == [
        {"name": "engine", "containerPort": 8000},
        {"name": "agent", "containerPort": 8001},
        {"name": "nixl", "containerPort": 5600},
    ]
    assert ANNOTATION_PORTS not in pod["metadata"]["annotations"]
    assert {"hostNetwork", "dnsPolicy"}.isdisjoint(pod["spec"])
    assert '"ports"' not in next(e["value"] for e in container(pod)["env"] if e["name"] == "FULCRUM_WORKER_CONFIG")


def test_other_ports_are_another_revision_of_that_pool_alone() -> None:
    before, after = (spec_of(pool("p", **ports), pool("q")) for ports in ({}, OTHERS))
    hashes = [[worker_revision(cluster="c", spec=spec, pool=each) for each in spec.pools] for spec in (before, after)]
    assert hashes[0][0] != hashes[1][0]
    assert hashes[0][1] == hashes[1][1]
    assert revision(**HOST) != revision(rdma={})


def test_a_pod_on_other_ports_says_so_and_is_probed_there() -> None:
    pod = pod_of(spec_of(pool(**OTHERS)))
    ports = Ports(engine=9000, agent=9001, nixl=5700)
    assert ports_of(pod["metadata"]["annotations"]) == ports
    assert config_of(pod).ports == ports
    assert {each["name"]: each["containerPort"] for each in container(pod)["ports"]} == {
        "engine": 9000, "agent": 9001, "nixl": 5700,
    }  # fmt: skip
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {container(pod)[probe]["httpGet"]["port"] for probe in probes} == {9001}
    assert "hostNetwork" not in pod["spec"]
    assert of(pod) == []


def test_on_the_nodes_network_every_port_is_one_of_the_node() -> None:
    pod = pod_of(spec_of(pool(**HOST, **OTHERS)))
    assert (pod["spec"]["hostNetwork"], pod["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert [each["hostPort"] for each in container(pod)["ports"]] == [9000, 9001, 5700]
    assert of(pod) == []


def test_a_group_on_the_nodes_network_reserves_where_its_ranks_meet_and_followers_listen_nowhere() -> None:
    spec = spec_of(pool(**HOST, **GROUPED, ports={"ranks": 29777}))
    template = worker_group(pod_of(spec), spec.pools[0])["spec"]["leaderWorkerTemplate"]
    leader, follower = template["leaderTemplate"], template["workerTemplate"]
    assert container(leader)["ports"][-1] == {"name": "ranks", "containerPort": 29777, "hostPort": 29777}
    assert "ports" not in container(follower)
    assert config_of(follower).ports.ranks == 29777
    assert ports_of(leader["metadata"]["annotations"]) == Ports(ranks=29777)
    assert {each["spec"]["hostNetwork"] for each in (leader, follower)} == {True}


def refused(*pools: dict[str, Any], installation: Installation = ALLOWED) -> dict[str, str]:
    found = refused_engines(spec_of(*pools), installation)
    assert all(each.reason is Reason.ENGINE_REFUSED for each in found.values())
    return {name: each.message for name, each in found.items()}


MIXED: dict[str, Any] = {"roles": ["mixed"]}


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ((pool(**HOST),), {}),
        ((pool("p", **HOST), pool("q", **HOST, **OTHERS)), {}),
        ((pool("p", **HOST), pool("q", A100, **HOST)), {}),
        ((pool("p", **HOST), pool("q", **HOST)), {"q": "listen on 5600, 8000, 8001"}),
        ((pool("p", **HOST), pool("q", **HOST, ports={**OTHERS["ports"], "nixl": 8001})), {"q": "listen on 8001"}),
        ((pool("p", **HOST), pool("q", "cpu", **HOST)), {"q": "listen on"}),
        ((pool("p", **HOST, **GROUPED), pool("q", **HOST, ports={**OTHERS["ports"], "nixl": 29501})), {"q": "29501"}),
        ((pool("p", **HOST), {**pool("q", **HOST), "workers": {"max": 0}}), {}),
        # Pods of their own network are on ports of their own.
        ((pool("p", **HOST, **MIXED), pool("q", rdma={}, **MIXED)), {}),
        ((pool("p", **HOST), pool("q", rdma={})), {"q": "pool p and pool q exchange KV, and only one of them"}),
        ((pool("p"), pool("q", **HOST), pool("r", **MIXED)), {"q": "set it in both or in none"}),
    ],
)  # fmt: skip
def test_what_shares_ports_or_cannot_be_reached_is_refused_and_the_others_go_on(
    pools: tuple[dict[str, Any], ...], expected: dict[str, str]
) -> None:
    found = refused(*pools)
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        assert part in found[name]


def test_the_operators_flag_is_needed_and_other_pools_do_without() -> None:
    found = refused(pool("p", **HOST, **MIXED), pool("q", **MIXED), installation=Installation())
    assert found == {"p": "pools[].rdma.hostNetwork: the operator does not run with --allow-host-access."}


def test_a_template_beside_host_network_is_judged_by_itself() -> None:
    template = {"metadata": {"annotations": {"a": "b"}}}
    assert refused_templates(OWNER, spec_of(pool(**HOST, template=template)), ALLOWED) == {}
    taken = {"spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 9, "hostPort": 9}]}]}}
    assert "ports[9].hostPort" in refused_templates(OWNER, spec_of(pool(**HOST, template=taken)), ALLOWED)["p"].message
    said = {"metadata": {"annotations": {ANNOTATION_PORTS: '{"agent":9999}'}}}
    assert ANNOTATION_PORTS in refused_templates(OWNER, spec_of(pool(template=said)), ALLOWED)["p"].message


def standing(number: int = 0, **fields: Any) -> ObservedWorker:
    worker = ObservedWorker(
        name=f"c-p-{number}", uid=f"u{number}", pool="p", ordinal=number, role=Role.MIXED, role_epoch=0, spec_hash="h",
        phase=WorkerPhase.RUNNING, ready=True, deleting=False, pod_ip="10.0.0.1",
    )  # fmt: skip
    return replace(worker, **fields)


def open_ports(policy: Manifest) -> list[set[int]]:
    """Ports that gateways, the operator and Prometheus reach."""
    return [{entry["port"] for entry in rule["ports"]} for rule in policy["spec"]["ingress"] if "ports" in rule]


def test_policies_let_in_to_the_ports_of_the_spec_and_of_workers_that_are_still_there() -> None:
    spec, usual = spec_of(pool(**OTHERS)), {8000, 8001}
    assert open_ports(workers_policy(OWNER, spec_of(pool()), ALLOWED)) == [usual, {8001}, usual]
    other = {9000, 9001}
    assert open_ports(workers_policy(OWNER, spec, ALLOWED)) == [other, {9001}, other]
    both = workers_policy(OWNER, spec, ALLOWED, [standing(), standing(1, ports=None)])
    assert open_ports(both) == [usual | other, {8001, 9001}, usual | other]
    gone = workers_policy(OWNER, spec, ALLOWED, [standing(deleting=True)])
    assert open_ports(gone) == [other, {9001}, other]
    for port in usual | other:
        assert is_open([both], pod_of(spec), port)


def test_pods_with_many_ports_widen_a_policy_only_so_far() -> None:
    odd = [standing(number, ports=Ports(engine=20_000 + number, agent=30_000 + number)) for number in range(500)]
    usual = [standing(number) for number in range(3)]
    policy = workers_policy(OWNER, spec_of(pool(**OTHERS)), ALLOWED, [*odd, *usual])
    assert len(open_ports(policy)[0]) <= 2 * 17
    assert {8000, 8001, 9000, 9001} <= open_ports(policy)[0], "those of most workers stay"


@pytest.mark.parametrize("group", [{}, GROUPED])
def test_a_policy_is_not_about_pools_on_their_nodes_network(group: dict[str, Any]) -> None:
    spec = spec_of(pool("p", **HOST, **group), pool("q", **MIXED))
    policy = workers_policy(OWNER, spec, ALLOWED)
    assert of(policy) == []
    on_node, on_pod = (pod_of(spec, number) for number in range(2))
    assert is_open([policy], on_node, 1234)
    assert not is_open([policy], on_pod, 1234)
    leaving = workers_policy(OWNER, spec_of(pool(**group)), ALLOWED, [standing(host_network=True)])
    assert is_open([leaving], on_node, 1234), "workers of the revision before still come from a node's address"
    assert not is_open([workers_policy(OWNER, spec_of(pool(**group)), ALLOWED, [standing()])], on_node, 1234)


def test_children_and_the_condition_know_of_it() -> None:
    spec = spec_of(pool(**HOST))
    made = children(OWNER, spec, ALLOWED, token_fingerprint="f", workers=[standing()])
    policy = next(each for each in made if each["metadata"]["name"] == "c-workers" and "ingress" in each["spec"])
    assert policy == workers_policy(OWNER, spec, ALLOWED, [standing()])
    decided = plan(Snapshot(name="c", generation=1, spec=spec), datetime.now(UTC))
    said = next(each for each in decided.conditions if each.type is ConditionType.PROGRESSING)
    assert "NetworkPolicies do not hold for pool p, because of rdma.hostNetwork." in said.message
    decided = plan(Snapshot(name="c", generation=1, spec=spec_of(pool())), datetime.now(UTC))
    assert not any("NetworkPolicies" in each.message for each in decided.conditions)
