"""What `fulcrum capacity` shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.sheet import largest_batch, sheet
from fulcrum.capacity.speed import WorkerSpeed

SPEED = WorkerSpeed(
    coefficients=SpeedCoefficients(
        prefill_a=0.005, prefill_b=2e-5, prefill_c=0.0, decode_a=0.010, decode_b=1e-4, decode_c=1e-7
    ),
    kv_capacity_tokens=100_000,
    max_batch=256,
)


@pytest.mark.parametrize(
    ("isl", "osl", "tpot", "expected"),
    [
        # (0.05 - 0.01) / (1e-4 + 1e-7 * 1000) = 200, but 100,000 tokens hold 66 requests of 1,500.
        (500, 1000, 0.050, (66, "kv memory")),
        (100, 200, 0.020, (83, "tpot")),  # 0.01 / (1e-4 + 1e-7 * 200)
        (10, 20, 0.100, (256, "max_num_seqs")),
        (100, 200, 0.010, (0, "tpot")),
        (100_000, 1, 0.050, (0, "kv memory")),
    ],
)
def test_largest_batch(isl: int, osl: int, tpot: float, expected: tuple[int, str]) -> None:
    assert largest_batch(SPEED, isl_tokens=isl, osl_tokens=osl, tpot_seconds=tpot) == expected


@given(isl=st.integers(1, 50_000), osl=st.integers(1, 5000), tpot=st.floats(0.0, 1.0))
def test_the_largest_batch_holds_what_it_promises(isl: int, osl: int, tpot: float) -> None:
    batch, _ = largest_batch(SPEED, isl_tokens=isl, osl_tokens=osl, tpot_seconds=tpot)
    assert 0 <= batch <= SPEED.max_batch
    assert batch * (isl + osl) <= SPEED.kv_capacity_tokens
    assert batch == 0 or SPEED.decode_step_seconds(batch, batch * (isl + osl / 2)) <= tpot * (1 + 1e-9)


def test_a_sheet_is_consistent() -> None:
    shape = EngineShape(model=known_model("Llama-3.1-70B"), accelerator=accelerator("L40S"), tensor=8)
    shown = sheet(shape, isl_tokens=3000, osl_tokens=150, tpot_seconds=0.1)
    assert 3000 in [line.tokens for line in shown.prefill]
    assert [line.link for line in shown.transfer] == ["pcie", "network", "tcp"]
    assert shown.decode_tokens_per_second == pytest.approx(shown.decode_requests_per_second * 150)
    assert shown.weight_bytes_per_gpu * 8 == shown.weight_bytes
    for line in shown.decode:
        for context, seconds in zip(line.context_tokens, line.seconds, strict=True):
            assert (seconds is not None) == (line.batch * context <= shown.kv_capacity_tokens)
