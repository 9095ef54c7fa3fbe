"""The engines of the gateway's tests answer as vLLM's own classes do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gateway import apis
from tests.gateway.conftest import KV, Seen
from tests.machine import deadline_seconds

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CODE = """
import json, sys
from _loopback import response_models
print(json.dumps(response_models.problems(json.load(sys.stdin))))
"""

pytestmark = pytest.mark.timeout(900)


def answers() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = [("count", apis.COUNTED)]
    head = {"x-request-id": "i"}
    for kv in (None, KV, {"do_remote_decode": True}):
        for tools in ([], [{"name": "f"}]):
            seen = Seen("", head, {"kv_transfer_params": kv, "tools": tools})
            found.append(("message", apis.message(seen, "e")))
            found += [("message event", event) for event in apis.message_events(seen)]
            found.append(("response", apis.response(seen, "e")))
            found += [("response event", event) for event in apis.response_events(seen, "e")]
    return found


def test_the_engines_of_these_tests_answer_as_vllm_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(answers()), capture_output=True, text=True, check=False,
        timeout=deadline_seconds(800), cwd=BENCHMARKS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
