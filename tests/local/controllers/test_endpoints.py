"""EndpointSlices follow Services and Pods."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum_local.controllers.endpoints import slices_of
from fulcrum_local.controllers.resources import ENDPOINT_SLICES, PODS, SERVICES, Json

LABELS = {"app": "x"}


def pod(name: str, ip: str = "10.0.0.1", *, ready: bool = True, port: int = 80, **metadata: Any) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}", **metadata},
        "spec": {"nodeName": "node", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": port}]}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": conditions},
    }


def service(*ports: Json, **spec: Any) -> Json:
    metadata = {"name": "svc", "namespace": "n", "uid": "u"}
    return {"metadata": metadata, "spec": {"selector": LABELS, "ports": list(ports), **spec}}


HTTP = {"name": "web", "port": 8080, "targetPort": "http", "protocol": "TCP"}


def test_ready_serving_and_terminating_are_told_apart() -> None:
    members = [pod("a"), pod("b", ready=False), pod("c", deletionTimestamp="2026-11-21T03:00:00Z")]
    (found,) = slices_of(service(HTTP), members)
    conditions = {each["targetRef"]["name"]: tuple(each["conditions"].values()) for each in found["endpoints"]}
    assert conditions == {"a": (True, True, False), "b": (False, False, False), "c": (False, True, True)}
    assert found["ports"] == [{"name": "web", "port": 80, "protocol": "TCP"}]


def test_pods_without_an_address_or_an_end_are_left_out() -> None:
    finished = pod("b")
    finished["status"]["phase"] = "Failed"
    (found,) = slices_of(service(HTTP), [pod("a", ip=""), finished])
    assert found["endpoints"] == []


def test_a_named_port_may_differ_between_pods() -> None:
    found = slices_of(service(HTTP), [pod("a"), pod("b", port=81)])
    assert sorted(each["ports"][0]["port"] for each in found) == [80, 81]
    assert len({each["metadata"]["name"] for each in found}) == 2


def test_not_ready_addresses_may_be_published() -> None:
    (found,) = slices_of(service(HTTP, publishNotReadyAddresses=True), [pod("a", ready=False)])
    assert found["endpoints"][0]["conditions"]["ready"] is True


@pytest.mark.parametrize(("target", "number"), [({"targetPort": 9}, 9), ({}, 8080)])
def test_a_port_without_a_name_is_a_number(target: Json, number: int) -> None:
    (found,) = slices_of(service({"port": 8080, **target}), [pod("a")])
    assert found["ports"] == [{"name": "", "port": number, "protocol": "TCP"}]


async def ready_addresses(world: Any) -> set[str]:
    slices = await world.list(ENDPOINT_SLICES)
    return {
        address
        for each in slices
        for endpoint in each.get("endpoints") or ()
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }


@pytest.mark.integration
async def test_a_slice_follows_readiness_and_goes_with_its_service(world: Any) -> None:
    await world.create(SERVICES, "svc", {"spec": {"selector": LABELS, "ports": [{"port": 80}]}})
    for name, ip in (("a", "127.77.0.1"), ("b", "127.77.0.2")):
        created = await world.create(PODS, name, {"spec": {"containers": [{"name": "c", "image": "i"}]}}, labels=LABELS)
        await world.set_ready(created, ip=ip)
    await world.until(lambda: _equal(ready_addresses(world), {"127.77.0.1", "127.77.0.2"}))

    async def only_slice() -> Json | None:  # the one for no Pods, which came first, goes a moment later
        slices = await world.list(ENDPOINT_SLICES)
        return slices[0] if len(slices) == 1 else None

    found = await world.until(only_slice)
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "svc"
    await world.set_ready(await world.get(PODS, "a"), ready=False, ip="127.77.0.1")
    await world.until(lambda: _equal(ready_addresses(world), {"127.77.0.2"}))
    await world.delete(PODS, "b")
    await world.finish_deletions()
    await world.until(lambda: _equal(ready_addresses(world), set()))
    await world.delete(SERVICES, "svc")
    await world.until(lambda: _equal(world.list(ENDPOINT_SLICES), []))


async def _equal(found: Any, expected: Any) -> bool:
    return bool(await found == expected)
