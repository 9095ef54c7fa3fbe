"""Real engines of a vLLM without a role for both sides of KV transfers: roles are fixed at start, and a flip restarts.

It is the installed vLLM, with `kv_both` taken out of the file that defines its roles.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vllm_source import root
from tests.worker_image.agents import (
    REMOTE_DECODE,
    Agent,
    post_json,
    prepared_model,
    start_agent,
    wait_until,
    worker_config,
)

from fulcrum.api.names import Role

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

ROLES = Path("config") / "kv_transfer.py"
PROMPT = [*range(1000, 1100)]
"""Token ids; several blocks of KV."""


def vllm_without_both(folder: Path) -> Path:
    """Make a folder for PYTHONPATH: a package `vllm` of links to the installed one, except its file of roles."""
    package = folder / "vllm"
    (package / ROLES).parent.mkdir(parents=True)
    for own, links in ((root(), package), ((root() / ROLES).parent, (package / ROLES).parent)):
        for entry in own.iterdir():
            if entry.name not in (ROLES.parent.name, ROLES.name, "__pycache__"):
                (links / entry.name).symlink_to(entry)
    changed, places = re.subn(r',\s*"kv_both"', "", (root() / ROLES).read_text())
    assert places == 2, "vLLM names the role in the aliases of producers and of consumers"
    (package / ROLES).write_text(changed)
    return folder


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Agent, Agent]]:
    """A worker that prefills and one that decodes."""
    prepared_model()
    monkeypatch.setenv("PYTHONPATH", str(vllm_without_both(tmp_path / "tree")), prepend=os.pathsep)
    agents = [
        start_agent(tmp_path, worker_config(role=role, role_epoch=1, measure_at_start=False), name=role.value)
        for role in (Role.PREFILL, Role.DECODE)
    ]
    try:
        for agent in agents:
            agent.wait_ready()
        yield agents[0], agents[1]
    finally:
        for agent in agents:
            agent.kill()


def engine_role(agent: Agent) -> str:
    """vLLM's own name of the role that the engine was started with."""
    commands = [process.cmdline() for process in agent.descendants()]
    given = next(argv[argv.index("--kv-transfer-config") + 1] for argv in commands if "--kv-transfer-config" in argv)
    return str(json.loads(given)["kv_role"])


def pulled_bytes(prefill: Agent, decode: Agent, number: int) -> float:
    """Bytes of KV that one request of two legs moves."""
    prompt, name = [2000 + number, *PROMPT], f"legs-{number}"
    before = decode.engine_metric("vllm:nixl_bytes_transferred_sum")
    first = prefill.complete(prompt, max_tokens=1, request_id=name, kv_transfer_params=REMOTE_DECODE)
    decode.complete(prompt, max_tokens=8, request_id=name, kv_transfer_params=first["kv_transfer_params"])
    return decode.engine_metric("vllm:nixl_bytes_transferred_sum") - before


def test_a_flip_starts_the_engine_again_in_its_new_role(pair: tuple[Agent, Agent]) -> None:
    one, other = pair
    assert [agent.load().flips_restart for agent in pair] == [True, True]
    assert [engine_role(agent) for agent in pair] == ["kv_producer", "kv_consumer"]
    assert pulled_bytes(one, other, 1) > 0
    engines = [{process.pid for process in agent.descendants()} for agent in pair]
    for agent, role in ((one, Role.DECODE), (other, Role.PREFILL)):
        post_json(f"{agent.url}/role", {"role": role.value, "roleEpoch": 2})
    for agent, old in zip(pair, engines, strict=True):
        wait_until(
            lambda agent=agent, old=old: not old & {process.pid for process in agent.descendants()},
            seconds=60,
            what=agent.tail,
        )
        assert agent.get("/healthz")[0] == 200, "the agent lives on between two engines"
    for agent in pair:
        agent.wait_ready()
    assert [agent.load().role for agent in pair] == [Role.DECODE, Role.PREFILL]
    assert [engine_role(agent) for agent in pair] == ["kv_consumer", "kv_producer"]
    assert pulled_bytes(other, one, 2) > 0
