"""Who may talk to whom, with real engines: a worker serves its cluster's gateways and nobody else."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import psutil
import pytest
from answers import Question, post
from local_cluster import Cluster, Worker
from tests.machine import deadline_seconds

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def status(url: str, body: dict[str, Any] | None = None, token: str | None = None) -> int:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=deadline_seconds(120)) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def answers(worker: Worker, body: dict[str, Any], token: str | None) -> dict[str, int]:
    engine, agent = f"http://{worker.ip}:8000", f"http://{worker.ip}:8001"
    return {
        "completion": status(f"{engine}/v1/completions", body, token),
        "models": status(f"{engine}/v1/models", None, token),
        # vLLM's own check leaves these open (0.32).
        "invocation": status(f"{engine}/invocations", body, token),
        "tokenize": status(f"{engine}/tokenize", {"model": body["model"], "prompt": "x"}, token),
        "role": status(f"{agent}/role", {"role": worker.role, "roleEpoch": worker.epoch}, token),
    }


def test_engines_and_agents_refuse_whoever_does_not_know_the_token(
    quickstart: Cluster, questions: list[Question]
) -> None:
    body, token = questions[0].body, quickstart.token()
    for worker in quickstart.workers():
        for wrong in (None, "wrong", token[:-1]):
            assert set(answers(worker, body, wrong).values()) == {401}, f"{worker.name} with {wrong}"
        assert set(answers(worker, body, token).values()) == {200}
        for reading in (":8000/health", ":8000/metrics", ":8001/metrics", ":8001/load", ":8001/readyz"):
            assert status(f"http://{worker.ip}{reading}") == 200
        # Not drained by anybody either.
        assert status(f"http://{worker.ip}:8001/drain", {}) == 401
    assert "draining" not in quickstart.roles()


def test_clients_are_served_without_it_and_their_keys_stay_at_the_gateway(
    quickstart: Cluster, questions: list[Question]
) -> None:
    moved = quickstart.kv_bytes_moved()
    for question in questions:
        answer = post(f"{quickstart.endpoint()}/v1/completions", question.body)
        assert answer["choices"][0]["text"] == question.answer
    assert quickstart.kv_bytes_moved() > moved
    # A key that the gateway does not ask for is not the engine's business, right or wrong.
    assert status(f"{quickstart.endpoint()}/v1/completions", questions[0].body, "a-clients-own-key") == 200


def test_the_token_is_in_no_argument_and_in_no_log(quickstart: Cluster) -> None:
    token = quickstart.token()
    commands = [" ".join(process.cmdline()) for process in psutil.process_iter() if process.status() != "zombie"]
    assert any("fulcrum_worker.engine_main" in command for command in commands)
    assert not any(token in command for command in commands)
    pods = [pod["metadata"]["name"] for component in ("worker", "gateway") for pod in quickstart.pods(component)]
    logs = [quickstart.kubectl("logs", pod) for pod in pods]
    logs.append(quickstart.kubectl("logs", "-n", "fulcrum-system", "deployment/fulcrum-operator"))
    assert not any(token in log for log in logs)
    assert token not in quickstart.kubectl("get", "pods,deployments,ic,events", "-o", "yaml")
