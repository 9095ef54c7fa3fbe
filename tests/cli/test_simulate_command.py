"""`fulcrum simulate`: the table, the JSON, the report, and what users get wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fulcrum.cli.app import main
from fulcrum.cli.shipped import DEMO_LOAD, SIMULATED
from fulcrum.simulation.generate import WORKLOADS
from fulcrum.simulation.named_policies import POLICIES

CLUSTER = """
apiVersion: fulcrum.dev/v1alpha1
kind: InferenceCluster
metadata: {name: chat}
spec:
  model: {name: meta-llama/Llama-3.1-70B-Instruct}
  slo: {ttft: 500ms, tpot: 50ms}
  pools:
  - {name: h100, accelerator: H100-SXM-80GB, parallelism: {tensor: 4}, workers: {min: 2, max: 4}}
"""
PROFILE = {
    "model": "m",
    "accelerator": "cpu",
    "kvCapacityTokens": 200_000,
    "coefficients": {
        "prefillA": 0.01, "prefillB": 5e-5, "prefillC": 1e-9, "decodeA": 0.012, "decodeB": 1e-4, "decodeC": 3e-8,
    },
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_it_needs_no_package_of_the_embedded_kubernetes(cluster: Path) -> None:
    blocked = ("cel", "jsonpatch", "jsonpointer", "psutil", "cryptography")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        f"util.find_spec = lambda name, *rest: None if name in {blocked!r} else found(name, *rest)\n"
        "from fulcrum.cli.app import main; main()"
    )
    arguments = ["simulate", "--trace", "steps", "--cluster", str(cluster), "--limit", "50", "--policy", "static-1:3"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "static 1P:3D" in done.stdout
    assert "pip install 'fulcrum-operator[local]'" in done.stderr


def test_a_model_that_is_known_by_its_config_json_alone(tmp_path: Path) -> None:
    """From a file, or from the ConfigMap that the spec names, in the same file: the figures of a known model."""
    small = CLUSTER.replace("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-2-7b-hf")
    own = small.replace("meta-llama/Llama-2-7b-hf", "own/model")
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"c": json.dumps(config)}}
    named = own.replace("own/model", "own/model, config: {configMap: own, key: c}")
    texts = {"known": small, "own": own, "named": f"{named}---\n{json.dumps(held)}\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    def figures(name: str, *more: str | Path) -> Result:
        trace = ("--trace", "steps", "--limit", "50", "--policy", "static-1:3", "--json")
        return run(*trace, "--cluster", tmp_path / name, *more)

    expected = figures("known")
    assert expected.exit_code == 0, expected.output
    assert figures("own", "--model-config", tmp_path / "config.json").stdout == expected.stdout
    assert figures("named").stdout == expected.stdout
    assert "no dimensions are known for the model 'own/model'" in figures("own").output
    (tmp_path / "config.json").write_text("{}")
    assert "hidden_size: is missing" in figures("own", "--model-config", tmp_path / "config.json").output


SMALL = "  engine: {kvCache: {memory: 40Gi}}\n"
POOLED = (
    "  engine: {kvCache: {memory: 40Gi, offload: {hostMemory: 1Gi, pool: {persistentVolumeClaim: kv, size: 4Ti}}}}\n"
)


def test_the_kv_pool_of_the_spec_and_its_links_count(tmp_path: Path) -> None:
    small, pooled, trace = (tmp_path / name for name in ("small.yaml", "pooled.yaml", "conversations.jsonl"))
    small.write_text(CLUSTER + SMALL)
    pooled.write_text(CLUSTER + POOLED)
    # Each conversation comes back after others have driven it out of the caches.
    lines = [
        {
            "timestamp": 4000 * turn,
            "input_length": 60_000,
            "output_length": 2,
            "hash_ids": list(range(first, first + 117)),
        }
        for turn, first in enumerate(1000 * (number % 40) for number in range(120))
    ]
    trace.write_text("\n".join(json.dumps(line) for line in lines))

    def computed(file: Path, *options: str) -> float:
        result = run("--trace", trace, "--cluster", file, "--policy", "aggregated", "--json", *options)
        assert result.exit_code == 0, result.output
        return float(json.loads(result.stdout)["policies"][0]["ttft_seconds"]["p50"])

    without, slow, quick = computed(small), computed(pooled, "--pool-link", "0.001"), computed(pooled)
    assert quick < 0.8 * without
    assert slow == pytest.approx(without, rel=0.05), "a link that is slower than computing is left alone"
    assert run("--trace", trace, "--cluster", pooled, "--pool-link", "0").exit_code == 2


def test_the_table_has_a_row_per_policy(cluster: Path) -> None:
    result = run("--trace", "steps", "--cluster", cluster, "--limit", "300", "--policy", "ours,static-1:3,aggregated")
    assert result.exit_code == 0, result.output
    for shown in ("steps: 300 requests", "speed by roofline", "static 1P:3D", "aggregated 4M", "ours", "WASTED"):
        assert shown in result.output


def test_json_and_report(cluster: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run(
        "--trace", "steps", "--cluster", cluster, "--limit", "200", "--policy", "all", "--json", "--report", folder,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [row["name"] for row in shown["policies"]] == list(POLICIES.policies)
    for row in shown["policies"]:
        assert row["served"] + row["rejected"] + row["failed"] == shown["requests"] == 200
    page = (folder / "report.html").read_text()
    assert page.count("<svg") >= 4
    assert "best static" in page
    for outside in ("http://", "https://"):
        # Names of XML vocabularies are no addresses to load from.
        assert all("www.w3.org" in part[:40] or "purl.org" in part[:40] or "creativecommons.org" in part[:40]
                   for part in page.split(outside)[1:])  # fmt: skip


def test_the_same_seed_gives_the_same_figures(cluster: Path) -> None:
    def shown(seed: int) -> str:
        arguments = ("--trace", "bursts", "--cluster", cluster, "--limit", "200", "--policy", "ours", "--json")
        return run(*arguments, "--seed", str(seed)).stdout

    assert shown(1) == shown(1) != shown(2)


def test_a_profile_takes_the_place_of_the_roofline(tmp_path: Path) -> None:
    cluster, profile = tmp_path / "cpu.yaml", tmp_path / "profile.json"
    cluster.write_text(CLUSTER.replace("H100-SXM-80GB", "cpu").replace(", parallelism: {tensor: 4}", ""))
    profile.write_text(json.dumps(PROFILE))
    without = run("--trace", "steps", "--cluster", cluster, "--limit", "50")
    assert without.exit_code == 2
    assert "only a profile can tell" in without.output
    for given in (str(profile), f"h100={profile}"):
        result = run("--trace", "steps", "--cluster", cluster, "--limit", "50", "--policy", "ours", "--profile", given)
        assert result.exit_code == 0, result.output
        assert "speed by profile" in result.output


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ((), ("--trace", "nothing"), "no such file, and no such workload"),
        ((), ("--policy", "best"), "there is no policy 'best'"),
        ((), ("--policy", "optimum"), "there is no policy 'optimum'; there are ours, ours-open, static, aggregated"),
        ((), ("--policy", "static-0:4"), "at least one worker of each role"),
        ((), ("--policy", " , "), "name at least one"),
        ((), ("--speed", "0"), "speed must be above 0"),
        ((), ("--speed", "nan"), "speed must be above 0"),
        ((), ("--speed", "1e-320"), "the trace would take longer than ten years"),
        ((), ("--host-link", "nan"), "Invalid value for '--host-link': nan is not a number"),
        ((), ("--start", "soon"), "is not a duration"),
        ((), ("--profile", "other=x.json"), "there is no pool other"),
        ((), ("--profile", "missing.json"), "missing.json"),
        (("70B-Instruct", "1T"), (), "Llama-3.1-1T"),
        (("H100-SXM-80GB", "H900"), (), "H900"),
        (("min: 2", "min: 9"), (), "min must not be above max"),
        (("pools:", "pool:"), (), "unknown field spec.pool"),
        (("kind: InferenceCluster", "kind: Pod"), (), "must hold one InferenceCluster"),
        (("spec:", "spec: ["), (), "is not YAML"),
        (("spec:", "spec: &spec\n  more: *spec"), (), "cannot be written as JSON: Circular reference"),
        (("ttft: 500ms", "ttft: 2026-01-01"), (), 'spec.slo.ttft: Invalid value: "2026-01-01"'),
    ],
)  # fmt: skip
def test_what_users_get_wrong(
    cluster: Path, change: tuple[str, str] | tuple[()], arguments: tuple[str, ...], message: str
) -> None:
    if change:
        cluster.write_text(CLUSTER.replace(*change))
    trace = () if "--trace" in arguments else ("--trace", "steps")
    result = run(*trace, "--cluster", cluster, "--limit", "20", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("\u2502", " ").split())


def test_a_length_that_no_trace_has_names_file_line_and_field(cluster: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 10000000000, "output_length": 5}')
    result = run("--trace", trace, "--cluster", cluster)
    assert result.exit_code == 2, result.output
    assert f"{trace}:1: input_length: expected at most 2147483647, got 10000000000" in result.output.replace("\n", "")


def test_help_names_everything() -> None:
    text = " ".join(run("--help").output.split())
    assert "Examples:" in text
    for name in (*POLICIES.policies, *WORKLOADS):
        assert name in text


def test_the_demo_is_an_answer_with_a_plot_on_which_flips_show() -> None:
    result = run("--demo")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    shares = {line.split()[0]: float(line.split("%")[0].split()[-1]) for line in lines if re.search(r"\d% .*/s", line)}
    assert shares["ours"] > max(shares["best"], shares["aggregated"]) + 3
    plots = [line for line in lines if sum(line.count(bar) for bar in "▁▂▃▄▅▆▇█") > 50]
    assert [line.split()[0] for line in plots] == ["ours", "best", "aggregated"]
    marks = lines[lines.index(plots[0]) + 1]
    assert "^" in marks
    assert "flips: " in marks


def test_the_demo_imports_what_is_slow_only_where_it_is_used() -> None:
    program = (
        "import sys\nfrom fulcrum.cli.app import main\n"
        "main(['simulate', '--demo', '--policy', 'ours'], standalone_mode=False)\n"
        "print(sorted(set(sys.modules) & {'statsmodels', 'matplotlib', 'torch', 'kubernetes', 'pandas', 'aiohttp'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_a_demo_both_files_are_needed() -> None:
    assert "give --trace and --cluster, or --demo" in " ".join(run("--trace", "steps").output.split())


def test_the_demos_cluster_is_the_one_of_the_examples(cluster: Path) -> None:
    shown = run("--demo", "--policy", "static-1:2", "--limit", "200", "--json").stdout
    example = Path(__file__).parents[2] / SIMULATED
    arguments = ("--trace", DEMO_LOAD, "--cluster", example, "--policy", "static-1:2", "--limit", "200", "--json")
    assert run(*arguments).stdout == shown
    assert run("--demo", "--cluster", cluster, "--policy", "static-1:2", "--limit", "200", "--json").stdout != shown
