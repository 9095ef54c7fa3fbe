"""`fulcrum plan`: table, picture, an InferenceCluster that the CRD accepts, and what users get wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner, Result

from fulcrum.api.crd import root_schema
from fulcrum.api.objects import load_inference_cluster
from fulcrum.cli.app import main
from fulcrum.local.objects.schema import StructuralSchema

INVENTORY = Path(__file__).parents[2] / "examples" / "placement" / "inventory.yaml"
USUAL = ("--model", "facebook/opt-30b", "--workload", "755:200", "--slo", "2s,100ms,0.9")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments], input=stdin)


def test_the_table_says_what_there_is_to_know(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    result = run(*USUAL, "--inventory", str(INVENTORY), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    for shown in (
        "POOL",
        "UTILISED",
        "Expected goodput",
        "from the best flow",
        "Bottleneck",
        "price per hour",
        "KV:",
    ):
        assert shown in result.output
    paths = ET.fromstring(picture.read_text()).findall("{http://www.w3.org/2000/svg}path")
    assert len(paths) == result.output.count("KV: ")


@pytest.mark.parametrize(
    "more", [(), ("--goal", "least-price", "--rate", "20"), ("--goal", "best-ratio"), ("--budget", "12")]
)
def test_what_is_emitted_is_what_the_crd_accepts(tmp_path: Path, more: tuple[str, ...]) -> None:
    emitted = tmp_path / "cluster.yaml"
    result = run(*USUAL, "--inventory", str(INVENTORY), "--emit", str(emitted), *more)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = yaml.safe_load(emitted.read_text())
    schema = StructuralSchema(root_schema())
    assert not schema.unknown_fields(document)
    assert [str(each) for each in schema.validate(schema.default(document))] == []
    spec = load_inference_cluster(document).spec
    assert {pool.price_per_hour for pool in spec.pools} <= {3.69, 1.75, 1.14, 0.79}
    assert all(pool.parallelism.pipeline == 1 or pool.roles == ("mixed",) for pool in spec.pools)


def test_emitted_to_standard_output_is_nothing_else() -> None:
    result = run(*USUAL, "--inventory", str(INVENTORY), "--emit", "-")
    assert yaml.safe_load(result.stdout)["kind"] == "InferenceCluster"


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
