"""What was measured on GPUs, read back and held against what `capacity` says."""

from __future__ import annotations

from pathlib import Path

import gpu_blocks
import pytest

ROWS = gpu_blocks.load(gpu_blocks.MEASURED)


def test_rows_survive_a_file(tmp_path: Path) -> None:
    gpu_blocks.save(tmp_path / "rows.csv", ROWS)
    again = gpu_blocks.load(tmp_path / "rows.csv")
    assert [row.keys() for row in again] == [row.keys() for row in ROWS]
    assert [row["all"] for row in again] == pytest.approx([row["all"] for row in ROWS])


def test_decode_steps_of_a_dense_model_are_as_capacity_says() -> None:
    decode = [row for row in ROWS if gpu_blocks.counts(row) and row["kind"] == "decode"]
    dense = [row for row in decode if row["model"].startswith("Llama") and row["kv"] == "bf16"]
    assert len(dense) == 4 * 12
    ratios = [gpu_blocks.predicted(row, row["gpu"])["all"] / row["all"] for row in dense]
    assert all(abs(ratio - 1) <= gpu_blocks.WITHIN for ratio in ratios), ratios


def test_a_line_that_is_off_names_its_term(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(
        row for row in ROWS if gpu_blocks.counts(row) and row["model"].startswith("Llama") and row["batch"] == 64
    )
    said = gpu_blocks.predicted(row, row["gpu"])
    right = {**row, **said}
    assert gpu_blocks.show(right, row["gpu"]) is True
    assert gpu_blocks.show({**right, "all": 2 * said["all"], "attention": 9 * said["all"]}, row["gpu"]) is False
    assert capsys.readouterr().out.splitlines()[1].endswith("<- attention")
