"""Data and expert parallelism of a pool: what is refused, which back end is the default, and who counts GPUs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.vllm_source import module

from fulcrum.api.crd import root_schema
from fulcrum.api.engine_args import check_engine_args
from fulcrum.api.kv_format import kv_format
from fulcrum.api.names import Role
from fulcrum.api.parallelism import EXPERT_BACKENDS, PLAIN_BACKEND
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import WorkerConfig
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.kv import weight_bytes_per_gpu
from fulcrum.capacity.model_facts import facts_of_name
from fulcrum.capacity.profile import Profile, same_worker
from fulcrum.controller.children import Owner, worker_pod
from fulcrum.controller.children.engine_check import refused_engines
from fulcrum.controller.children.worker_group import worker_group
from fulcrum.controller.installation import Installation
from fulcrum.decide.external import _limit
from fulcrum.decide.pools import worker_cost
from fulcrum.rollout import worker_config, worker_revision
from fulcrum.simulation.from_spec import cluster_model

DEEPSEEK = "deepseek-ai/DeepSeek-V3"
POOL: dict[str, Any] = {"name": "p", "accelerator": "H200-SXM-141GB", "workers": {"max": 2}}
_SOURCES = Path(__file__).parents[2] / "operator" / "fulcrum"


def spec_of(model: str = DEEPSEEK, engine: dict[str, Any] | None = None, **pool: Any) -> InferenceClusterSpec:
    document = {"model": {"name": model}, "pools": [{**POOL, **pool}], "engine": engine or {}}
    return msgspec.convert(document, InferenceClusterSpec)


def refusals(engine: dict[str, Any] | None = None, **pool: Any) -> list[str]:
    schema = StructuralSchema(root_schema())
    spec = {"model": {"name": "m"}, "pools": [{**POOL, **pool}], "engine": engine or {}}
    document = {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "metadata": {"name": "c"}}
    return [error.message for error in schema.validate(schema.default({**document, "spec": spec}))]


@pytest.mark.parametrize(
    "pool",
    [
        {"parallelism": {"data": 8, "experts": True}},
        {"parallelism": {"data": 8}},
        {"parallelism": {"data": 16, "experts": True}, "gpu": {"perNode": 8}},
        {"parallelism": {"tensor": 2, "data": 8, "experts": True}, "gpu": {"perNode": 8}},
        {"parallelism": {"tensor": 16, "data": 2, "experts": True}, "gpu": {"perNode": 8}},
        {"parallelism": {"tensor": 8, "experts": True}},
        {"accelerator": "cpu", "parallelism": {"data": 2, "experts": True}},
        {"parallelism": {"data": 8, "experts": True, "expertBackend": PLAIN_BACKEND}},
        {"parallelism": {"data": 8, "experts": True, "expertBackend": "deepep_low_latency"}, "roles": ["decode"]},
        {
            "accelerator": "MI300X-192GB",
            "parallelism": {"data": 8, "experts": True, "expertBackend": "mori_low_latency"},
            "roles": ["decode"],
        },
        {
            "accelerator": "GB200-186GB",
            "parallelism": {"data": 4, "experts": True, "expertBackend": "flashinfer_nvlink_one_sided"},
        },
    ],
)
def test_what_can_be(pool: dict[str, Any]) -> None:
    # Of one pool alone: that there is none of the other role is said of the spec.
    about = ("parallelism", "perNode", "ports:", "accelerator", "expertBackend")
    assert [message for message in refusals(**pool) if any(word in message for word in about)] == []


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"parallelism": {"tensor": 8, "data": 4}}, "tensor * pipeline * data is the number of GPUs"),
        ({"parallelism": {"data": 12}, "gpu": {"perNode": 8}}, "the same number of GPUs on each"),
        ({"parallelism": {"tensor": 3, "data": 8}, "gpu": {"perNode": 8}}, "a rank of parallelism.data is on one node"),
        ({"parallelism": {"data": 8, "expertBackend": "nixl_ep"}}, "set experts: true"),
        ({"parallelism": {"data": 8, "experts": True, "expertBackend": "pplx"}}, "pplx"),
        ({"parallelism": {"data": 0}}, "greater than or equal to 1"),
        ({"accelerator": "cpu", "parallelism": {"tensor": 2, "data": 2}}, "use tensor 1 and pipeline 1"),
        (
            {"accelerator": "cpu", "parallelism": {"data": 2, "experts": True, "expertBackend": "nixl_ep"}},
            "on CPUs there is only allgather_reducescatter",
        ),
        (
            {"parallelism": {"data": 8, "experts": True, "expertBackend": "deepep_high_throughput"}},
            "only in pools whose only role is prefill",
        ),
        (
            {"parallelism": {"data": 8, "experts": True, "expertBackend": "mori_low_latency"}, "roles": ["decode"]},
            "on GPUs of AMD",
        ),
        (
            {"parallelism": {"data": 8, "experts": True, "expertBackend": "flashinfer_nvlink_two_sided"}},
            "one NVLink domain",
        ),
        ({"parallelism": {"data": 8}, "ports": {"nixl": 7995}}, "side channel of its own"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(pool: dict[str, Any], words: str) -> None:
    assert any(words in message for message in refusals(**pool)), refusals(**pool)


def test_a_host_tier_that_each_rank_would_take_whole_is_refused() -> None:
    engine = {"kvCache": {"offload": {"hostMemory": "64Gi"}}}
    assert any("each rank" in message for message in refusals(engine, parallelism={"data": 2}))
    assert refusals(engine, parallelism={"tensor": 2}) == []


def test_raw_arguments_stay_refused() -> None:
    (problem,) = check_engine_args(["--data-parallel-size=2"])
    assert "spec.pools[].parallelism.data" in problem.message


FLIPS = ["prefill", "decode"]


@pytest.mark.parametrize(
    ("pool", "backend"),
    [
        ({}, None),
        ({"parallelism": {"tensor": 8, "experts": True}}, None),
        ({"parallelism": {"data": 8}}, None),
        ({"parallelism": {"data": 8, "experts": True}}, PLAIN_BACKEND),
        ({"parallelism": {"data": 8, "experts": True}, "roles": FLIPS, "rdma": {}}, PLAIN_BACKEND),
        ({"parallelism": {"data": 8, "experts": True}, "roles": ["prefill"]}, "deepep_high_throughput"),
        ({"parallelism": {"data": 16, "experts": True}, "gpu": {"perNode": 8}, "roles": ["prefill"]}, PLAIN_BACKEND),
        ({"parallelism": {"data": 8, "experts": True}, "roles": ["decode"]}, PLAIN_BACKEND),
        ({"parallelism": {"data": 8, "experts": True}, "roles": ["decode"], "rdma": {}}, "deepep_low_latency"),
        (
            {
                "accelerator": "MI300X-192GB",
                "parallelism": {"data": 8, "experts": True},
                "roles": ["decode"],
                "rdma": {},
            },
            "mori_low_latency",
        ),
        (
            {"accelerator": "GB200-186GB", "parallelism": {"data": 4, "experts": True}, "roles": ["prefill"]},
            PLAIN_BACKEND,
        ),
        (
            {"accelerator": "A100-SXM-80GB", "parallelism": {"data": 8, "experts": True}, "roles": ["prefill"]},
            PLAIN_BACKEND,
        ),
        ({"accelerator": "cpu", "parallelism": {"data": 2, "experts": True}}, PLAIN_BACKEND),
        ({"parallelism": {"data": 8, "experts": True, "expertBackend": "nixl_ep"}}, "nixl_ep"),
    ],
)
def test_the_back_end_follows_role_accelerator_and_network(pool: dict[str, Any], backend: str | None) -> None:
    spec = spec_of(**pool)
    assert spec.pools[0].expert_backend == backend
    config = worker_config(cluster="c", spec=spec, pool=spec.pools[0], role=Role.MIXED)
    assert config.all2all_backend == backend


@pytest.mark.vllm_facts
def test_every_back_end_is_one_of_vllms_and_none_is_missing() -> None:
    (listed,) = (
        node
        for node in module("config/parallel.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "All2AllBackend"
    )
    names = {node.value for node in ast.walk(listed.value) if isinstance(node, ast.Constant)}
    not_served = {"naive", "pplx", "flashinfer_all2allv", "passthrough"}
    assert {each.name for each in EXPERT_BACKENDS} == names - not_served


def factors(product: ast.expr) -> Iterator[str]:
    """Names of what is multiplied; what a call is given is its own affair."""
    if isinstance(product, ast.BinOp):
        yield from factors(product.left)
        yield from factors(product.right)
    elif isinstance(product, ast.Attribute | ast.Name):
        yield product.attr if isinstance(product, ast.Attribute) else product.id


def multiplied(tree: ast.AST) -> bool:
    """Whether something called tensor and something called pipeline are multiplied."""
    products = (node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult))
    named = ({name.partition("_")[0] for name in factors(each)} for each in products)
    return any({"tensor", "pipeline"} <= names for names in named)


def test_gpus_are_multiplied_in_one_place() -> None:
    """A product of tensor and pipeline elsewhere is one that forgets data: use `gpus_of`, or what calls it."""
    found = {
        path.relative_to(_SOURCES).as_posix()
        for path in _SOURCES.rglob("*.py")
        if multiplied(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == {"api/parallelism.py"}


def test_rules_and_descriptions_that_multiply_count_data() -> None:
    without = re.compile(r"tensor \* (\w+\.)*(parallelism\.)?pipeline(?! \* (\w+\.)*(parallelism\.)?data)")
    text = (_SOURCES.parents[1] / "crds" / "fulcrum.dev_inferenceclusters.yaml").read_text(encoding="utf-8")
    lines = [found for found in map(without.search, re.sub(r"\s+", " ", text).split("rule:")) if found]
    # The GPUs of one rank, compared with those of a node.
    assert len(lines) <= 2, lines


def counts(data: int) -> dict[str, float]:
    """All that counts the GPUs of a worker, or what is for each of them."""
    pool = {"parallelism": {"tensor": 2, "data": data, "experts": True}, "pricePerHour": 2.0, "roles": ["mixed"]}
    spec = spec_of("deepseek-ai/DeepSeek-V2-Lite", **pool)
    made = spec.pools[0]
    config = worker_config(cluster="c", spec=spec, pool=made, role=Role.MIXED)
    pod = worker_pod(Owner(name="c", namespace="n", uid="u"), spec, made, ordinal=0, role=Role.MIXED, image="i")
    (container,) = pod["spec"]["containers"]
    shm = next(each for each in pod["spec"]["volumes"] if each["name"] == "shm")
    simulated = cluster_model(spec, profiles={}, start_seconds=1.0)
    (limit,) = re.findall(r"max is 2 workers \((\d+) GPUs\)", _limit(made, Counter({Role.MIXED: 9})))
    return {
        "pool": made.gpus_per_worker,
        "worker": config.gpus,
        "cost": worker_cost(made),
        "GPUs": int(container["resources"]["limits"]["nvidia.com/gpu"]),
        "cores": int(container["resources"]["requests"]["cpu"]),
        "memory": int(container["resources"]["requests"]["memory"].removesuffix("Gi")),
        "shared memory": int(shm["emptyDir"]["sizeLimit"].removesuffix("Gi")),
        "simulated": simulated.pools[0].gpus_per_worker,
        "scale": int(limit),
        "shape": shape_of(data).gpus,
    }


def shape_of(data: int, model: str = DEEPSEEK, **fields: Any) -> EngineShape:
    return EngineShape(model=known_model(model), accelerator=accelerator("H200"), tensor=2, data=data, **fields)


def test_twice_the_ranks_are_twice_of_everything_that_is_counted() -> None:
    once, twice = counts(2), counts(4)
    assert {name: twice[name] / count for name, count in once.items()} == dict.fromkeys(once, 2.0)


def test_a_cpu_worker_has_no_gpu_and_its_processes_what_each_needs() -> None:
    def asked(data: int) -> dict[str, str]:
        spec = spec_of("m", accelerator="cpu", parallelism={"data": data, "experts": data > 1}, roles=["mixed"])
        assert spec.pools[0].gpus_per_worker == 0
        owner = Owner(name="c", namespace="n", uid="u")
        pod = worker_pod(owner, spec, spec.pools[0], ordinal=0, role=Role.MIXED, image="i")
        requests: dict[str, str] = pod["spec"]["containers"][0]["resources"]["requests"]
        return requests

    assert asked(1) == {"cpu": "250m", "memory": "2048Mi"}
    assert asked(2) == {"cpu": "500m", "memory": "4096Mi"}


def test_a_group_on_several_nodes_shares_its_ranks_evenly() -> None:
    spec = spec_of(parallelism={"data": 16, "experts": True}, gpu={"perNode": 8}, roles=["decode"], rdma={})
    (pool,) = spec.pools
    pod = worker_pod(Owner(name="c", namespace="n", uid="u"), spec, pool, ordinal=0, role=Role.DECODE, image="i")
    template = worker_group(pod, pool)["spec"]["leaderWorkerTemplate"]
    assert (pool.nodes, template["size"]) == (2, 2)
    for part in ("leaderTemplate", "workerTemplate"):
        (container,) = template[part]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        text = next(each["value"] for each in container["env"] if each["name"] == "FULCRUM_WORKER_CONFIG")
        config = msgspec.json.decode(text, type=WorkerConfig)
        assert (config.data_parallel, config.local_ranks, config.expert_parallel) == (16, 8, True)
    spanning = spec_of(parallelism={"tensor": 16, "data": 2}, gpu={"perNode": 8}).pools[0]
    assert (spanning.nodes, worker_config(cluster="c", spec=spec, pool=spanning, role=Role.MIXED).local_ranks) == (4, 1)


def test_ranks_hold_all_weights_but_those_of_experts() -> None:
    model = known_model(DEEPSEEK)
    alone, shared = (weight_bytes_per_gpu(shape_of(data, weights=model.weights)) for data in (1, 8))
    experts = model.expert_parameters * model.weights.bytes
    assert shared == pytest.approx(alone - experts / 2 * 7 / 8)


def test_a_profile_is_one_of_so_many_ranks() -> None:
    profile = Profile(model="m", accelerator="H200", kv_capacity_tokens=1, tensor=2, data=8)
    assert same_worker(profile, accelerator_name="H200", tensor=2, pipeline=1, data=8)
    assert not same_worker(profile, accelerator_name="H200", tensor=2, pipeline=1, data=1)


def test_what_says_nothing_of_ranks_keeps_its_revision_and_any_number_of_ranks_its_kv_format() -> None:
    plain, said, ranks = (
        spec_of(**pool)
        for pool in (
            {"parallelism": {"tensor": 2}},
            {"parallelism": {"tensor": 2, "data": 1, "experts": False}},
            {"parallelism": {"tensor": 2, "data": 4, "experts": True}},
        )
    )
    hashes = [worker_revision(cluster="c", spec=spec, pool=spec.pools[0]) for spec in (plain, said, ranks)]
    assert hashes[0] == hashes[1] != hashes[2]
    configs = [worker_config(cluster="c", spec=spec, pool=spec.pools[0], role=Role.MIXED) for spec in (plain, ranks)]
    assert kv_format(configs[0], "i") == kv_format(configs[1], "i")


@pytest.mark.parametrize("parallelism", [{"data": 2}, {"tensor": 2, "experts": True}])
def test_a_model_that_is_known_to_be_dense_has_no_experts_to_share(parallelism: dict[str, Any]) -> None:
    dense, sparse, unknown = (
        spec_of(model, parallelism=parallelism) for model in ("meta-llama/Llama-3.1-8B", DEEPSEEK, "own/model")
    )
    message = refused_engines(dense, Installation())["p"].message
    assert "is dense" in message
    assert "Raise the number of workers" in message
    assert refused_engines(sparse, Installation()) == refused_engines(unknown, Installation()) == {}
    dimensions = facts_of_name("meta-llama/Llama-3.1-8B").dimensions
    assert dimensions is not None
    with pytest.raises(EngineShapeError, match="is dense"):
        EngineShape(model=dimensions, accelerator=accelerator("H200"), **parallelism)
