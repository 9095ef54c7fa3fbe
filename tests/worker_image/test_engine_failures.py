"""Real vLLM that cannot start, or loses its agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worker_image.agents import alive, prepared_model, start_agent, wait_until, worker_config

from fulcrum.api.worker import EXIT_ENGINE_NOT_STARTED

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_model_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    agent = start_agent(tmp_path, worker_config(model=str(tmp_path / "broken")))
    try:
        assert agent.wait_exit(seconds=300) == EXIT_ENGINE_NOT_STARTED
    finally:
        agent.kill()
    end = agent.log.read_text()[-2048:]
    assert "vLLM ended with exit code 1 before it was ready; its last lines:" in end
    assert "model_type" in end, "vLLM's own words about the missing key"


def test_no_vllm_survives_a_killed_agent(tmp_path: Path) -> None:
    prepared_model()
    agent = start_agent(tmp_path, worker_config())
    try:
        wait_until(lambda: "model" in agent.log.read_text() and agent.descendants(), seconds=180, what="vLLM runs")
        processes = agent.descendants()
        agent.process.kill()
        agent.process.wait()
        wait_until(lambda: not alive(processes), seconds=60, what="vLLM dies with its agent")
    finally:
        agent.kill()
