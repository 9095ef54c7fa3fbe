"""Profiles of pools are read now and then, and one that cannot be used is said and costs nobody else anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml
from tests.capacity.test_profile import FITTED, document
from tests.controller.cluster import REPOSITORY
from tests.controller.test_worker_node import H100, revision, spec_of

from fulcrum.api.objects import load_inference_cluster
from fulcrum.controller.config_maps import READ_SECONDS
from fulcrum.controller.kube import Resource
from fulcrum.controller.model_configs import ModelConfigs
from fulcrum.controller.profiles import PoolProfiles, Profiles
from fulcrum.kube import ApiError, ApiFailure, Unreachable

Data = dict[str, Any]


class ConfigMaps:
    """What the API server holds, by name; an error is raised. Counts the questions."""

    def __init__(self, **held: Data | ApiFailure) -> None:
        self.held, self.asked, self.seconds = held, 0, 0.0

    async def get(self, resource: Resource, namespace: str, name: str) -> Data | None:
        assert (resource.plural, namespace) == ("configmaps", "ml")
        self.asked += 1
        found = self.held.get(name)
        if isinstance(found, ApiFailure):
            raise found
        return None if found is None else {"metadata": {"name": name}, "data": found}

    def profiles(self) -> Profiles:
        kube: Any = self
        return Profiles(kube, clock=lambda: self.seconds)

    def model_configs(self) -> ModelConfigs:
        kube: Any = self
        return ModelConfigs(kube, clock=lambda: self.seconds)


def named(pool: str = "p", config_map: str = "speeds", **more: Any) -> Data:
    return {**H100, "name": pool, "profile": {"configMap": config_map, **more}}


def of(profiles: Profiles, *pools: Data) -> PoolProfiles:
    return asyncio.run(profiles.of("ml", spec_of(*pools)))


def test_a_profile_is_read_by_the_pool_that_names_it() -> None:
    held = ConfigMaps(speeds={"profile.json": document(), "other": document(kvCapacityTokens=7)})
    found = of(held.profiles(), named("a"), named("b", key="other"), {**H100, "name": "c"})
    assert found.problems == ()
    assert {pool: each.kv_capacity_tokens for pool, each in found.known.items()} == {"a": 440_000, "b": 7}


def test_without_a_name_nothing_is_asked() -> None:
    held = ConfigMaps()
    assert of(held.profiles(), H100) == PoolProfiles()
    assert held.asked == 0


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({}, "ConfigMap ml/speeds does not exist; create it"),
        ({"speeds": {}}, "has no key profile.json (it has none); add it, or correct the field `key`"),
        ({"speeds": {"b": "", "a": ""}}, "has no key profile.json (it has a, b)"),
        ({"speeds": {"profile.json": "{"}}, "key profile.json: the profile is not JSON"),
        ({"speeds": {"profile.json": "[" * 60_000}}, "does not fit its schema"),
        ({"speeds": {"profile.json": "x" * 1_000_000}}, "65536 are the most"),
        ({"speeds": {"profile.json": document(kvCapacityTokens=0)}}, "kvCapacityTokens must be at least 1"),
        ({"speeds": {"profile.json": json.dumps({**FITTED, "x" * 60_000: 1})}}, "unknown field"),
        ({"speeds": {"profile.json": document(model="other")}}, "the profile is of other on H100-SXM-80GB"),
        ({"speeds": {"profile.json": document(tensor=2)}}, "serve m on H100-SXM-80GB (tensor 1, pipeline 1)"),
        ({"speeds": {"profile.json": document(accelerator="H200")}}, "name a profile of such workers"),
        ({"speeds": ApiError(403, "Forbidden", "may not get configmaps")}, "apply the roles of this release"),
        ({"speeds": ApiError(500, "", "oh dear")}, "cannot be read (oh dear); it is tried again"),
        ({"speeds": Unreachable("gone")}, "cannot be read (gone); it is tried again"),
    ],
)
def test_a_profile_that_cannot_be_used_is_said_with_field_and_fix_and_the_other_pools_have_theirs(
    held: dict[str, Any], said: str
) -> None:
    good = {"profile.json": document()}
    found = of(ConfigMaps(good=good, **held).profiles(), named("bad"), named("good", "good"))
    assert set(found.known) == {"good"}
    (problem,) = found.problems
    assert problem.startswith("spec.pools[] bad, profile: ")
    assert said in problem
    assert len(problem) < 2048, "a condition holds the problems of 16 pools"


def test_it_is_read_once_a_minute_and_a_change_is_noticed() -> None:
    held = ConfigMaps(speeds={"profile.json": document()})
    profiles = held.profiles()
    for _ in range(3):
        assert of(profiles, named("a"), named("b")).known["a"].kv_capacity_tokens == 440_000
    assert held.asked == 1
    held.held["speeds"] = {"profile.json": document(kvCapacityTokens=7)}
    held.seconds += READ_SECONDS
    assert of(profiles, named("a")).known["a"].kv_capacity_tokens == 7
    held.held["speeds"] = {"profile.json": "wrong"}
    held.seconds += READ_SECONDS
    assert of(profiles, named("a")).known == {}


def test_an_outage_of_the_api_server_is_no_news() -> None:
    held = ConfigMaps(speeds={"profile.json": document()})
    profiles = held.profiles()
    before = of(profiles, named())
    held.held["speeds"] = Unreachable("gone")
    held.seconds += READ_SECONDS
    assert of(profiles, named()) == before
    assert held.asked == 2


def test_a_server_that_does_not_answer_is_waited_for_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(ConfigMaps):
        async def get(self, resource: Resource, namespace: str, name: str) -> Data | None:
            await asyncio.Event().wait()
            return None

    monkeypatch.setattr("fulcrum.controller.config_maps.ANSWER_SECONDS", 0.01)
    found = of(Silent().profiles(), named())
    assert "no answer within 0.01 s" in found.problems[0]


def test_the_sample_names_a_profile_that_can_be_used() -> None:
    config_map, cluster = yaml.safe_load_all((REPOSITORY / "manifests/samples/profile.yaml").read_text())
    held: Any = ConfigMaps(**{config_map["metadata"]["name"]: config_map["data"]})
    found = asyncio.run(held.profiles().of("ml", load_inference_cluster(cluster).spec))
    assert found.problems == ()
    assert set(found.known) == {"h100"}


def test_a_profile_is_no_part_of_a_worker() -> None:
    plain, other = spec_of(H100), spec_of(named(key="other"))
    assert revision(plain) == revision(spec_of(named())) == revision(other)
