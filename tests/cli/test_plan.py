"""`fulcrum plan`: table, picture, an InferenceCluster that the CRD accepts, and what users get wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner, Result

from fulcrum.api.crd import root_schema
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.cli.app import main

INVENTORY = Path(__file__).parents[2] / "examples" / "placement" / "inventory.yaml"
USUAL = ("--model", "facebook/opt-30b", "--workload", "755:200", "--slo", "2s,100ms,0.9")


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play little: how well plans are judged is tested in `test_plan_play.py`."""
    monkeypatch.setattr("fulcrum.cli.plan.play._JUDGED_REQUESTS", 200)
    monkeypatch.setattr("fulcrum.cli.plan.play._WARM_REQUESTS", 200)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments], input=stdin)


def test_table_and_picture_say_what_there_is_to_know_and_the_crd_accepts_what_is_emitted(tmp_path: Path) -> None:
    picture, emitted = tmp_path / "plan.svg", tmp_path / "cluster.yaml"
    result = run(*USUAL, "--inventory", str(INVENTORY), "--plot", str(picture), "--emit", str(emitted))
    assert result.exit_code == 0, result.output
    for shown in (
        "POOL",
        "UTILISED",
        "Expected goodput",
        "from the bound",
        "Bottleneck",
        "price per hour",
        "KV:",
    ):
        assert shown in result.output
    paths = ET.fromstring(picture.read_text()).findall("{http://www.w3.org/2000/svg}path")
    assert len(paths) == result.output.count("KV: ")
    check_emitted(emitted)


@pytest.mark.parametrize(
    "more", [("--goal", "least-price", "--rate", "20"), ("--goal", "best-ratio"), ("--budget", "12")]
)
def test_what_is_emitted_is_what_the_crd_accepts(tmp_path: Path, more: tuple[str, ...]) -> None:
    emitted = tmp_path / "cluster.yaml"
    result = run(*USUAL, "--inventory", str(INVENTORY), "--emit", str(emitted), *more)
    assert result.exit_code == 0, result.output
    check_emitted(emitted)


def check_emitted(emitted: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(emitted.read_text())
    schema = StructuralSchema(root_schema())
    assert not schema.unknown_fields(document)
    assert [str(each) for each in schema.validate(schema.default(document))] == []
    spec = load_inference_cluster(document).spec
    assert {pool.price_per_hour for pool in spec.pools} <= {3.69, 1.75, 1.14, 0.79}
    assert all(pool.parallelism.pipeline == 1 or pool.roles == ("mixed",) for pool in spec.pools)


def test_emitted_to_standard_output_is_nothing_else(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("nodes: [{accelerator: H100-SXM-80GB, gpus: 2}]")
    result = run(*USUAL, "--inventory", str(inventory), "--emit", "-")
    assert yaml.safe_load(result.stdout)["kind"] == "InferenceCluster"


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    """Eighty conversations of 20,000 tokens that take turns, so that each comes back after the others."""
    path = tmp_path / "conversations.jsonl"
    lengths = {"input_length": 20_000, "output_length": 200}
    starts = [100 * (number % 80) for number in range(320)]
    lines = [
        {"timestamp": 1000 * turn, **lengths, "hash_ids": list(range(start, start + 39))}
        for turn, start in enumerate(starts)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_kv_tiers_carry_more_of_a_trace_that_comes_back(conversations: Path) -> None:
    usual = ("--model", "meta-llama/Llama-2-70b-hf", "--workload", str(conversations), "--slo", "20s,100ms,0.9")

    def planned(*more: str) -> tuple[float, float, Any]:
        result = run(*usual, "--inventory", str(INVENTORY), "--emit", "-", *more)
        assert result.exit_code == 0, result.output
        goodput, found = (
            re.search(pattern, result.stderr) for pattern in (r"goodput ([\d.]+)", r"([\d.]+)% of the prompt tokens")
        )
        assert goodput is not None
        document = yaml.safe_load(result.stdout)
        schema = StructuralSchema(root_schema())
        assert [str(each) for each in schema.validate(schema.default(document))] == []
        cache = document["spec"]["engine"]["kvCache"]
        return float(goodput[1]), float(found[1]) if found else 0.0, cache.get("offload")

    without, _, nothing = planned()
    assert nothing is None
    little, little_found, _ = planned("--host-memory", "1Gi")
    much, much_found, offload = planned("--host-memory", "1Gi", "--pool", "kv=4Ti")
    assert offload == {"hostMemory": "1Gi", "pool": {"persistentVolumeClaim": "kv", "size": "4Ti"}}
    assert much_found > little_found + 20
    assert much > 1.2 * little >= without
    _, slow_found, _ = planned("--host-memory", "1Gi", "--pool", "kv=4Ti", "--pool-link", "0.0001")
    assert slow_found == little_found, "a link that is slower than computing is left alone"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pool", "kv=2Ti"), "give --host-memory, too"),
        (("--host-memory", "64Gi", "--workload", "755:200"), "a trace with prefixes"),
        (("--host-memory", "64Gi", "--workload", "steps"), "a trace with prefixes"),
        (("--host-memory", "much"), "is not an amount of memory"),
        (("--host-memory", "64Gi", "--pool", "2Ti"), "write the claim and its size"),
        (("--host-memory", "64Gi", "--pool", "kv=all"), "is not an amount of memory"),
        (("--host-memory", "64Gi", "--pool-link", "0"), "--pool-link"),
    ],
)
def test_wrong_tiers_are_refused(conversations: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(*USUAL, "--inventory", str(INVENTORY), "--workload", str(conversations), *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("\u2502", " ").split())


def test_nodes_of_a_cluster_come_from_kubectl() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    node = {"metadata": {"name": "a", "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    bare = {"metadata": {"name": "b"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    result = run(*USUAL, "--nodes", "-", stdin=json.dumps({"items": [node, bare]}))
    assert result.exit_code == 0, result.output
    assert "of 8 GPUs" in result.output
    assert "left out: b: has 8 GPUs and no label" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--inventory FILE, or --nodes FILE"),
        (("--inventory", "none.yaml"), "cannot read none.yaml"),
        (("--inventory", str(INVENTORY), "--workload", "many"), "PROMPT:OUTPUT"),
        (("--inventory", str(INVENTORY), "--slo", "2s"), "TTFT,TPOT,ATTAINMENT"),
        (("--inventory", str(INVENTORY), "--slo", "2s,1"), "'1' is not a duration"),
        (("--inventory", str(INVENTORY), "--slo", "2s,100ms,1.5"), "below 1"),
        (("--inventory", str(INVENTORY), "--goal", "least-price"), "belong together"),
        (("--inventory", str(INVENTORY), "--study", "--emit", "-"), "moves no KV"),
        (("--inventory", str(INVENTORY), "--model", "unknown/model"), "unknown/model"),
        (("--inventory", str(INVENTORY), "--model", "deepseek-ai/DeepSeek-V3"), "smallest inventory that would do"),
        (("--inventory", str(INVENTORY), "--slo", "1ms,100ms"), "has a TTFT of"),
        (("--inventory", str(INVENTORY), "--goal", "least-price", "--rate", "900"), "at most"),
    ],
)
def test_what_users_get_wrong_is_said_plainly(arguments: tuple[str, ...], message: str) -> None:
    result = run(*USUAL, *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
