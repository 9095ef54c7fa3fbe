"""`benchmarks/contest.py`: the options of `fulcrum simulate`, with every policy and the bound."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from contest import contest
from contests.contestants import CONTESTANTS

from fulcrum.cli.shipped import SIMULATED

EXAMPLE = Path(__file__).parents[2] / SIMULATED


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(contest, list(map(str, arguments)), obj=CONTESTANTS)


def test_json_and_report_have_every_policy(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    options = ("--trace", "steps", "--cluster", EXAMPLE, "--limit", "200", "--turn", "5s", "--policy", "all")
    result = run(*options, "--json", "--report", folder)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [row["name"] for row in shown["policies"]] == list(CONTESTANTS.policies)
    for row in shown["policies"]:
        assert row["served"] + row["rejected"] + row["failed"] == shown["requests"] == 200
        assert round(row["attainment"] * 200) <= shown["most_within"]
    page = (folder / "report.html").read_text()
    for name in ("best static", "mooncake predictive", "dynamo both", "optimum"):
        assert name in page


def test_the_table_ends_with_the_bound() -> None:
    result = run("--trace", "steps", "--cluster", EXAMPLE, "--limit", "100", "--policy", "arrow,static-1:2")
    assert result.exit_code == 0, result.output
    for shown in ("arrow", "static 1P:2D", "No planner could have more than"):
        assert shown in result.output


def test_help_names_every_policy_and_option() -> None:
    text = run("--help").output
    for name in (*CONTESTANTS.policies, "--demo", "--profile", "--pool-link", "--report"):
        assert name in text
