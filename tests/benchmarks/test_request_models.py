"""The gateway's judgement of bodies, and the engines of these tests, held against vLLM's own request classes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import deadline_seconds

from fulcrum.gateway.api_formats import judge, judge_messages, judge_responses
from fulcrum.gateway.api_formats.inference_request import MESSAGES_PATH, RESPONSES_PATH

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "benchmarks" / "bodies.py"
PUBLISHED = ROOT / "tests" / "gateway" / "vllm_fields.json"
BODIES = 8000

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What the command says, in a process of its own: vLLM takes half a minute to import, and warns."""
    done = subprocess.run(
        [sys.executable, str(COMMAND), "--bodies", str(BODIES), "--seed", "7", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_seconds(800),
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


def test_both_legs_get_the_same_verdict(report: dict[str, Any]) -> None:
    assert report["disagreements"] == []
    assert report["two_legs"] > BODIES / 4
    assert report["refused_by_engine"] > BODIES / 10, "the bodies are not wrong enough"


def test_no_client_reaches_an_argument_of_the_engine(report: dict[str, Any]) -> None:
    assert report["reached"] == []


def test_every_field_of_both_classes_was_tried_and_most_bodies_are_taken(report: dict[str, Any]) -> None:
    assert report["least_mutated"] >= 10
    assert report["accepted"] >= BODIES / 2


def test_named_bodies_are_judged_alike(report: dict[str, Any]) -> None:
    assert report["named"] > 50


def test_the_engines_of_these_tests_read_the_fields_that_vllm_reads(report: dict[str, Any]) -> None:
    assert json.loads(PUBLISHED.read_text()) == report["fields"], "run benchmarks/bodies.py --fields"


def test_the_gateway_reads_on_each_route_what_vllm_reads_there(report: dict[str, Any]) -> None:
    """A field of a later vLLM that tells its legs apart, or that hands arguments to the engine, shows up here."""
    read = {**judge.READ, MESSAGES_PATH: judge_messages.READ, RESPONSES_PATH: judge_responses.READ}
    for path, names in report["fields"].items():
        known = set(names)
        assert set(read[path]) <= known
        assert {name for name in judge.JUDGED if name in known} <= set(read[path])
        assert {name for name in known if name.endswith(("_params", "_xargs"))} <= judge.GUARDED_FIELDS
        assert {name for name in known if "embeds" in name} <= judge.GUARDED_FIELDS
    unread = judge.JUDGED - {name for names in report["fields"].values() for name in names}
    assert not unread
