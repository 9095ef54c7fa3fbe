"""Dependents go with their owners, in each of the three ways, and also when nobody was watching."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.kube import ApiError
from fulcrum_local.controllers.resources import DEPLOYMENTS, PODS, REPLICA_SETS, SERVICES, Json, Resource

pytestmark = pytest.mark.integration
CONFIG_MAPS = Resource(api_version="v1", kind="ConfigMap", plural="configmaps")
THINGS = Resource(api_version="gc.example.com/v1", kind="Thing", plural="things")
CRDS = Resource(
    api_version="apiextensions.k8s.io/v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
)


def owned_by(*owners: Json, block: bool = True) -> list[Json]:
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]


async def names(world: Any) -> set[str]:
    return {each["metadata"]["name"] for each in await world.list(CONFIG_MAPS)} - {"kube-root-ca.crt"}


async def left(world: Any, *expected: str) -> bool:
    return await names(world) == set(expected)


async def make(world: Any, name: str, *owners: Json, **metadata: Any) -> Json:
    obj: Json = await world.create(CONFIG_MAPS, name, ownerReferences=owned_by(*owners), **metadata)
    return obj


async def test_a_chain_goes_with_its_first_owner(world: Any) -> None:
    top = await make(world, "top")
    middle = await make(world, "middle", top)
    await make(world, "bottom", middle)
    await make(world, "bystander")
    await world.delete(CONFIG_MAPS, "top")
    await world.until(lambda: left(world, "bystander"))


async def test_an_object_stays_until_its_last_owner_goes(world: Any) -> None:
    one, other = await make(world, "one"), await make(world, "other")
    await make(world, "shared", one, other)
    await world.delete(CONFIG_MAPS, "one")

    async def forgot() -> bool:
        found = await world.get(CONFIG_MAPS, "shared")
        return [each["name"] for each in found["metadata"]["ownerReferences"]] == ["other"]

    await world.until(forgot)
    await world.delete(CONFIG_MAPS, "other")
    await world.until(lambda: left(world))


async def test_an_owner_of_the_same_name_is_not_the_owner(world: Any) -> None:
    first = await make(world, "owner")
    await world.stop_controllers()
    await make(world, "child", first)
    await world.delete(CONFIG_MAPS, "owner")
    await make(world, "owner")
    await world.start_controllers()
    await world.until(lambda: left(world, "owner"))


async def test_an_owner_that_went_while_nobody_watched_is_noticed(world: Any) -> None:
    owner = await make(world, "owner")
    await make(world, "child", owner)
    await world.stop_controllers()
    await world.delete(CONFIG_MAPS, "owner")
    assert await names(world) == {"child"}
    await world.start_controllers()
    await world.until(lambda: left(world))


async def test_foreground_waits_for_the_dependents(world: Any) -> None:
    owner = await make(world, "owner")
    await make(world, "child", owner, finalizers=["example.com/wait"])
    await world.delete(CONFIG_MAPS, "owner", "Foreground")

    async def child_is_leaving() -> bool:
        child = await world.get(CONFIG_MAPS, "child")
        return "deletionTimestamp" in child["metadata"]

    await world.until(child_is_leaving)
    assert await names(world) == {"owner", "child"}
    await world.patch(CONFIG_MAPS, "child", {"metadata": {"finalizers": []}})
    await world.until(lambda: left(world))


async def test_orphans_stay_and_forget_their_owner(world: Any) -> None:
    owner = await make(world, "owner")
    await make(world, "child", owner)
    await world.delete(CONFIG_MAPS, "owner", "Orphan")
    await world.until(lambda: left(world, "child"))
    child = await world.get(CONFIG_MAPS, "child")
    assert not child["metadata"].get("ownerReferences")


async def test_a_deployment_goes_with_everything_below(world: Any) -> None:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    for propagation in ("Background", "Foreground"):
        await world.create(DEPLOYMENTS, "web", {"spec": spec})
        await world.until(lambda: _pods_are(world, 2))
        await world.delete(DEPLOYMENTS, "web", propagation)

        async def all_gone() -> bool:
            return not any([await world.list(each) for each in (DEPLOYMENTS, REPLICA_SETS, PODS)])

        await world.until(all_gone, kubelet=True)


async def test_a_custom_resource_takes_its_children_along_quickly(world: Any) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    definition = {
        "group": "gc.example.com",
        "names": {"kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"},
        "scope": "Namespaced",
        "versions": [version],
    }
    await world.create(CRDS, "things.gc.example.com", {"spec": definition})
    thing = await world.until(lambda: _created(world))
    for index in range(5):
        await make(world, f"child-{index}", thing)
    await world.create(SERVICES, "svc", {"spec": {"ports": [{"port": 80}]}}, ownerReferences=owned_by(thing))
    assert len(await names(world)) == 5
    await world.delete(THINGS, "thing")

    async def gone() -> bool:
        return not await names(world) and not await world.list(SERVICES)

    await world.until(gone, seconds=10)  # kinds are looked for every 30 s, owners every 60 s
    await world.delete(CRDS, "things.gc.example.com")


async def _created(world: Any) -> Json | None:
    """A definition is served a moment after it is stored."""
    try:
        obj: Json = await world.create(THINGS, "thing")
    except ApiError as error:
        if error.code == 404:
            return None
        raise
    return obj


async def _pods_are(world: Any, count: int) -> bool:
    return len(await world.list(PODS)) == count
