"""A model that no table knows is described by a config.json in a ConfigMap; what is wrong with one is said."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml
from tests.capacity.test_model_facts import LLAMA
from tests.controller.cluster import REPOSITORY
from tests.controller.test_profiles import ConfigMaps, Data
from tests.controller.test_worker_node import OWNER, config_of, revision, worker
from tests.decide.world import World, make_spec, pool

from fulcrum.api.attention import AttentionKind
from fulcrum.api.names import ANNOTATION_ATTENTION, Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.reasons import Reason
from fulcrum.api.types import ConditionType, InferenceClusterSpec
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name, parse_facts
from fulcrum.controller.children import Manifest, worker_pod
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.config_maps import READ_SECONDS
from fulcrum.controller.installation import Installation
from fulcrum.controller.model_configs import ModelConfigs, ServedModel, refused_models
from fulcrum.decide import Refusal, Snapshot
from fulcrum.kube import ApiError, Unreachable
from fulcrum.report import plan
from fulcrum.rollout import CreateWorker, chosen_kv_dtype, chosen_model, standing_workers, worker_config

LATENT: Data = LLAMA | {
    "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128
}  # fmt: skip
H100, A100 = {**pool("p"), "accelerator": "H100-SXM-80GB"}, {**pool("q"), "accelerator": "A100-SXM-80GB"}
NAMED = {"name": "own/model", "config": {"configMap": "own"}}


def modelled(snapshot: Snapshot, known: ModelFacts) -> Snapshot:
    """With the model, as the operator has it."""
    standing = standing_workers(snapshot.name, snapshot.spec, snapshot.workers)
    model, note = chosen_model(known, snapshot.model_note, model_name=snapshot.spec.model.name, standing=standing)
    return replace(snapshot, model=model, model_note=note)


def refused_in(snapshot: Snapshot) -> dict[str, Refusal]:
    """By pool, as the operator asks."""
    return refused_models(
        snapshot.spec,
        Installation(),
        dtype=snapshot.kv_dtype.dtype if snapshot.kv_dtype is not None else None,
        model=snapshot.model,
        problem=snapshot.model_problem,
        standing=standing_workers(snapshot.name, snapshot.spec, snapshot.workers),
    )


def spec_of(*pools: Data, model: Data = NAMED, **more: Any) -> InferenceClusterSpec:
    return msgspec.convert({"model": model, "pools": list(pools or (H100,)), **more}, InferenceClusterSpec)


def held(document: Any) -> ConfigMaps:
    return ConfigMaps(own={"config.json": document if isinstance(document, str) else json.dumps(document)})


def of(configs: ModelConfigs, spec: InferenceClusterSpec | None = None) -> ServedModel:
    return asyncio.run(configs.of("ml", spec or spec_of()))


def facts(document: Data) -> ModelFacts:
    return parse_facts(json.dumps(document)).named("own/model")


def test_an_unknown_model_is_what_its_config_json_says() -> None:
    found = of(held(LATENT).model_configs())
    assert found.problem is None
    assert found.facts == facts(LATENT)
    assert found.facts.attention is AttentionKind.LATENT
    assert found.source == "the model is described by ConfigMap own"


def test_what_the_tables_know_is_not_asked_for() -> None:
    asked = held(LATENT)
    for model in ({"name": "own/model"}, NAMED | {"name": "meta-llama/Llama-3.1-8B-Instruct"}):
        found = of(asked.model_configs(), spec_of(model=model))
        assert found == ServedModel(facts=facts_of_name(str(model["name"])))
    assert asked.asked == 0


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({}, "ConfigMap ml/own does not exist; create it from the config.json of the model's repository"),
        ({"own": {}}, "has no key config.json (it has none); add it, or correct the field `key`"),
        ({"own": {"config.json": "{"}}, "key config.json: config.json: (the document): is not JSON"),
        ({"own": {"config.json": "[" * 60_000}}, "is not JSON"),
        ({"own": {"config.json": "x" * 1_000_000}}, "65536 are the most"),
        ({"own": {"config.json": "{}"}}, "config.json: hidden_size: is missing"),
        ({"own": {"config.json": json.dumps(LLAMA | {"hidden_size": 10**40})}}, "is larger than 2147483648"),
        ({"own": ApiError(403, "Forbidden", "may not get configmaps")}, "apply the roles of this release"),
        ({"own": Unreachable("gone")}, "cannot be read (gone); it is tried again"),
    ],
)
def test_one_that_cannot_be_used_is_said_with_field_and_fix(held: dict[str, Any], said: str) -> None:
    found = of(ConfigMaps(**held).model_configs())
    assert found.problem is not None
    assert found.problem.startswith("spec.model.config: ConfigMap ml/own")
    assert said in found.problem
    assert len(found.problem) < 2048
    assert found.facts == ModelFacts()


def test_it_is_read_once_a_minute_and_an_outage_is_no_news() -> None:
    known = held(LATENT)
    configs = known.model_configs()
    for _ in range(3):
        assert of(configs).facts == facts(LATENT)
    assert known.asked == 1
    known.held["own"] = Unreachable("gone")
    known.seconds += READ_SECONDS
    assert of(configs).facts == facts(LATENT)
    known.held["own"] = {"config.json": json.dumps(LLAMA)}
    known.seconds += READ_SECONDS
    assert of(configs).facts == facts(LLAMA)


def test_it_is_no_part_of_a_revision() -> None:
    plain, named = spec_of(model={"name": "own/model"}), spec_of()
    assert revision(plain) == revision(named) == revision(spec_of(model=NAMED | {"config": {"configMap": "other"}}))


def made(spec: InferenceClusterSpec, model: ModelFacts | None) -> Manifest:
    return worker_pod(OWNER, spec, spec.pools[0], ordinal=0, role=Role.DECODE, image="i", model=model)


def test_a_worker_is_made_for_the_model() -> None:
    """Pools of unlike GPUs have a backend in common by the kind of attention; the disk is for weights of this size."""
    spec = spec_of(H100, A100)
    backend = {
        model: worker_config(cluster="c", spec=spec, pool=spec.pools[0], role=Role.MIXED, model=model).attention_backend
        for model in (None, facts(LATENT), facts(LLAMA))
    }
    assert list(backend.values()) == [None, "TRITON_MLA", None]
    assert config_of(spec).attention_backend is None
    disks = [worker(made(spec, model))["resources"]["requests"].get("ephemeral-storage") for model in backend]
    assert disks[0] is None
    known = spec_of(H100, A100, model={"name": "meta-llama/Llama-3.1-8B"})
    assert disks[2] == worker(made(known, None))["resources"]["requests"]["ephemeral-storage"]
    notes = [made(spec, model)["metadata"]["annotations"].get(ANNOTATION_ATTENTION) for model in backend]
    assert notes == [None, "latent", None]


def test_what_no_engine_could_serve_is_refused_by_its_config_json() -> None:
    prefill = {**H100, "parallelism": {"tensor": 16}, "roles": ["prefill"]}
    decode = {**H100, "name": "d", "parallelism": {"tensor": 8}, "roles": ["decode"]}
    spec = spec_of(prefill, decode)
    assert refused_engines(spec, Installation()) == {}
    found = refused_engines(spec, Installation(), model=facts(LLAMA))
    assert "more than the 8 KV heads of own/model" in found["p"].message
    assert refused_engines(spec, Installation(), model=facts(LATENT)) == {}
    sparse = facts(LATENT | {"index_topk": 2048})
    found = refused_engines(spec_of(A100), Installation(), model=sparse)
    assert "no attention backend for own/model (sparse latent)" in found["q"].message


def standing(attention: AttentionKind | None = None) -> World:
    world = World(make_spec(H100, model="own/model"))
    world.settle()
    for name in world.workers:
        world.set(name, attention=attention)
    return world


@pytest.mark.parametrize(
    ("attention", "known", "kept"),
    [
        (None, facts(LATENT), AttentionKind.DENSE),
        (AttentionKind.LATENT, facts(LLAMA), AttentionKind.LATENT),
        (AttentionKind.LATENT, ModelFacts(), AttentionKind.LATENT),
    ],
    ids=["it appears", "it is changed", "it goes"],
)
def test_workers_that_stand_go_on_and_those_that_join_them_are_as_they_are(
    attention: AttentionKind | None, known: ModelFacts, kept: AttentionKind
) -> None:
    world = standing(attention)
    snapshot = modelled(replace(world.snapshot(), model_note="by ConfigMap own"), known)
    assert snapshot.model is not None
    assert snapshot.model.attention is kept
    assert snapshot.model.dimensions == known.dimensions
    stand = standing_workers(snapshot.name, snapshot.spec, snapshot.workers)
    kv_dtype = chosen_kv_dtype(snapshot.spec, snapshot.model, stand)
    result = plan(replace(snapshot, kv_dtype=kv_dtype), world.now)
    assert not result.actions, "nothing restarts"
    assert result.status.kv_cache is not None
    assert result.status.kv_cache.reason.endswith(
        f"by ConfigMap own; the workers that stand were made for {kept.value} attention; a new revision is made for "
        f"{known.attention.value}"
    )
    world.spec = make_spec(H100, model="own/model", engine={"args": ["--seed=1"]})
    renewed = modelled(world.snapshot(), known)
    assert renewed.model == known
    assert renewed.model_note == ""


WRONG = "spec.model.config: ConfigMap ml/own does not exist; create it."


def test_a_new_revision_waits_for_it_and_says_so() -> None:
    world = World(make_spec(H100, model="own/model"))
    snapshot = modelled(replace(world.snapshot(), model_problem=WRONG), ModelFacts())
    refused = refused_in(snapshot)
    assert [(each.message, each.reason) for each in refused.values()] == [(WRONG, Reason.MODEL_CONFIG_UNUSABLE)]
    result = plan(replace(snapshot, refused=refused), world.now)
    assert not any(isinstance(action, CreateWorker) for action in result.actions)
    degraded = next(each for each in result.conditions if each.type is ConditionType.DEGRADED)
    assert (degraded.reason, degraded.message) == (
        Reason.MODEL_CONFIG_UNUSABLE,
        f"No worker of pool p is made: {WRONG}",
    )
    assert any(
        isinstance(action, CreateWorker) for action in plan(modelled(world.snapshot(), facts(LLAMA)), world.now).actions
    )


def test_workers_that_stand_are_replaced_and_joined_without_it() -> None:
    world = standing()
    snapshot = modelled(replace(world.snapshot(), model_problem=WRONG), ModelFacts())
    assert refused_in(snapshot) == {}
    result = plan(snapshot, world.now)
    assert not result.actions
    degraded = next(each for each in result.conditions if each.type is ConditionType.DEGRADED)
    assert degraded.reason is Reason.MODEL_CONFIG_UNUSABLE
    assert degraded.message == f"{WRONG} Until then Fulcrum reckons without it."
    assert [(event.reason, event.warning) for event in result.events] == [(Reason.MODEL_CONFIG_UNUSABLE, True)]


def test_a_model_whose_kind_the_table_knows_does_not_wait() -> None:
    world = World(make_spec(H100, model="meta-llama/Llama-3-own"))
    known = facts_of_name("meta-llama/Llama-3-own")
    assert known.kind is not None
    assert known.dimensions is None
    assert refused_in(modelled(replace(world.snapshot(), model_problem=WRONG), known)) == {}


def test_a_config_json_that_refuses_pools_holds_up_new_revisions_alone() -> None:
    """Whatever a ConfigMap is changed to: a dead worker of a revision that stands is replaced."""
    prefill = {**H100, "parallelism": {"tensor": 16}, "roles": ["prefill"]}
    decode = {**H100, "name": "d", "parallelism": {"tensor": 8}, "roles": ["decode"]}
    world = World(make_spec(prefill, decode, model="own/model"))
    assert set(refused_in(modelled(world.snapshot(), facts(LLAMA)))) == {"p"}
    world.settle()
    assert refused_in(modelled(world.snapshot(), facts(LLAMA))) == {}
    world.spec = make_spec(prefill, decode, model="own/model", engine={"args": ["--seed=1"]})
    assert set(refused_in(modelled(world.snapshot(), facts(LLAMA)))) == {"p"}


def test_the_sample_names_a_config_json_that_can_be_used() -> None:
    config_map, cluster = yaml.safe_load_all((REPOSITORY / "manifests/samples/model_config.yaml").read_text())
    read: Any = ConfigMaps(**{config_map["metadata"]["name"]: config_map["data"]})
    spec = load_inference_cluster(cluster).spec
    found = of(read.model_configs(), spec)
    assert found.problem is None
    assert found.facts.complete
    assert not facts_of_name(spec.model.name).complete
