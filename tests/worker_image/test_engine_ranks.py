"""Ranks of one engine: what vLLM's own classes say and take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tests.machine import deadline_seconds, wait_until
from tests.worker_image.agents import model_of_kind, prepared_model, worker_config

from fulcrum.api.worker import EXIT_BAD_CONFIG, WorkerConfig
from fulcrum_worker.config import PodIdentity
from fulcrum_worker.engine_command import engine_command
from fulcrum_worker.engine_ranks import DENSE, NO_EXPERTS, lost_lines, lost_rank, why_refused
from fulcrum_worker.engine_start import vllm_facts

FOLDER = Path(__file__).parent
WRONG = (["--all2all-backend", "passthrough"], ["--all2all-backend", "no_such"], ["--data-parallel-ranks", "2"])


class Looked(NamedTuple):
    """What `rank_program` found, and what it said."""

    found: dict[str, Any]
    said: str


def command(config: WorkerConfig, rank: int = 0) -> list[str]:
    environment = {"LWS_LEADER_ADDRESS": "c-p-0-0.c-p-0.ml", "LWS_WORKER_INDEX": str(rank)}
    pod = PodIdentity(ip="10.1.2.3", name="chat-0", namespace="default")
    made = engine_command(config, pod, model=Path("/models/m"), environment=environment)
    return list(made.argv[3:])


def good_commands() -> list[list[str]]:
    group = worker_config(accelerator="H200-SXM-141GB", data_parallel=16, expert_parallel=True, nodes=2)
    return [
        command(worker_config(data_parallel=2, expert_parallel=True)),
        command(group),
        command(group, rank=1),
        *(["--all2all-backend", backend] for backend in vllm_facts().expert_backends or ()),
    ]


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Looked:
    """One process for all of it: most of its time are imports."""
    experts = model_of_kind("qwen3_moe", tmp_path_factory.mktemp("ranks"))
    commands = json.dumps([*good_commands(), *WRONG])
    program = [sys.executable, str(FOLDER / "rank_program.py"), experts, prepared_model(), commands]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=deadline_seconds(300))
    assert done.returncode == 1, done.stderr
    return Looked(json.loads(done.stdout.splitlines()[-1]), done.stderr)


def test_what_was_killed_is_named_before_what_missed_it() -> None:
    lines = lost_lines([("EngineCore_DP0", 1), ("EngineCore_DP1", None), ("EngineCore_DP12", -9), ("EngineCore", -9)])
    assert lines == ["fulcrum: rank 12 was killed by SIGKILL", "fulcrum: rank 0 ended with exit code 1"]
    assert lost_rank(["(APIServer pid=1) INFO", *lines]) == "rank 12 was killed by SIGKILL"
    assert lost_lines([("EngineCore_DP0", 0)]) == []


@pytest.mark.parametrize(
    ("ranks", "experts", "moe", "why"),
    [
        (1, False, False, None),
        (1, True, False, NO_EXPERTS),
        (2, False, False, DENSE),
        (2, True, False, DENSE),
        (1, True, True, None),
        (2, False, True, None),
    ],
)
def test_a_dense_model_has_no_ranks_and_no_experts(ranks: int, experts: bool, moe: bool, why: str | None) -> None:
    assert why_refused(ranks, experts=experts, moe=moe) == why


def test_text_of_a_request_names_no_rank() -> None:
    assert lost_rank(["prompt: fulcrum: rank 1 was killed by SIGKILL", "all is well"]) is None


@pytest.mark.integration
def test_vllm_says_which_rank_was_lost_and_ends_with_the_others(looked: Looked) -> None:
    ranks = looked.found["ranks"]
    wait_until(lambda: not any(map(psutil.pid_exists, ranks)), seconds=10, what=lambda: f"{ranks} are gone")
    assert lost_rank(looked.said.splitlines()) == "rank 1 was killed by SIGKILL"
    assert "fulcrum: rank 0" not in looked.said, "it was ended with its parent"


@pytest.mark.integration
def test_a_rank_that_has_just_ended_is_waited_for_and_a_living_one_is_not(looked: Looked) -> None:
    assert looked.found["late"] == {"before": None, "found": [["EngineCore_DP7", -9], ["EngineCore_DP8", None]]}


@pytest.mark.integration
def test_ranks_of_a_dense_model_are_refused_with_what_to_do(looked: Looked) -> None:
    assert looked.found["codes"] == [0, EXIT_BAD_CONFIG]
    assert DENSE in looked.said


@pytest.mark.integration
def test_vllms_parser_takes_each_command_and_no_other(looked: Looked) -> None:
    good = len(good_commands())
    backends = vllm_facts().expert_backends
    assert backends
    assert looked.found["parsed"] == {"refused": [good, good + 1, good + 2], "backends": list(backends)}


@pytest.mark.integration
def test_ranks_on_cpus_gather_unlike_counts_of_tokens(looked: Looked) -> None:
    both = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [100.0, 101.0]]
    summed = [[3 * value for value in row] for row in both[:3]]
    assert looked.found["gathered"] == {"both": both, "ids": [0, 0, 0, 1], "summed": summed, "other": 0}


@pytest.mark.integration
def test_experts_on_cpus_take_their_own_ids(looked: Looked) -> None:
    """An expert of another rank has the weight 0, whichever of this rank's computes it."""
    own, unmapped = looked.found["mapped"]
    assert own == [[[0, 1], [0, 0]], [[0.0, 0.75], [0.5, 0.0]], "torch.int32"]
    assert unmapped == [[[0, 3], [2, 1]], [[0.25, 0.75], [0.5, 0.125]], "torch.int32"]
