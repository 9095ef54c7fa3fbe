"""The measured speed on its way from the agent to its engine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.worker_image.test_kv_policy import POD, tiered

from fulcrum.api.worker import SpeedCoefficients
from fulcrum_worker.engine_command import engine_command
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.kv.speed_file import SPEED_FILE, MeasuredSpeed, write_speed

SPEED = SpeedCoefficients.of(prefill=(0.01, 1e-4, 1e-9), decode=(0.02, 1e-4, 1e-8))


def test_it_is_read_once_it_is_there(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "speed.json"
    measured = MeasuredSpeed(str(path), clock=lambda: now[0])
    assert measured.coefficients() is None
    path.write_text("half a docu")
    now[0] = 10.0
    assert measured.coefficients() is None
    write_speed(path, SPEED)
    assert measured.coefficients() is None, "the disk is not asked at each step"
    now[0] = 20.0
    assert measured.coefficients() == SPEED
    path.unlink()
    now[0] = 30.0
    assert measured.coefficients() == SPEED


def test_without_a_file_nothing_is_known() -> None:
    assert MeasuredSpeed(None).coefficients() is None


def test_the_engine_is_told_where_it_is(tmp_path: Path) -> None:
    command = engine_command(
        tiered("load"), POD, model=None, environment={}, vllm="0.32.0", files=EngineFiles(tmp_path)
    )
    transfer = json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])
    tier = transfer["kv_connector_extra_config"]["connectors"][1]["kv_connector_extra_config"]
    assert tier[SPEED_FILE] == str(tmp_path / "speed.json")
