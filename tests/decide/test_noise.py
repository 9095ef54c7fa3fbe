"""Noisy load: the balance follows phases and not chance."""

from __future__ import annotations

import pytest
from tests.decide.noise import Phase, flips_under
from tests.decide.world import make_spec, pool

SLO = {"ttft": "500ms", "tpot": "25ms", "attainment": 0.95}
PROMPTS = Phase(rate=34.0, isl=3000.0, osl=50.0, seconds=150.0)
ANSWERS = Phase(rate=15.0, isl=200.0, osl=1000.0, seconds=150.0)


@pytest.mark.parametrize("seed", range(4))
def test_at_most_two_flips_for_each_change_of_phase(seed: int) -> None:
    spec = make_spec(pool(low=4, high=4), mode="Auto", slo=SLO)
    flips = flips_under(spec, [PROMPTS, ANSWERS, PROMPTS], seed=seed)
    for start in (0, 150, 300):
        assert len([flip for flip in flips if start <= flip.seconds < start + 150]) <= 2, flips
    # And each phase is answered, within less than the window that measures it.
    for start in (150, 300):
        assert [flip for flip in flips if start <= flip.seconds < start + 30]


@pytest.mark.parametrize("rate", [10.0, 20.0, 35.0])
def test_an_hour_of_stationary_noise_flips_nobody(rate: float) -> None:
    spec = make_spec(pool(low=4, high=4), mode="Auto", slo=SLO)
    flips = flips_under(spec, [Phase(rate=rate, isl=1500.0, osl=300.0, seconds=3600.0)], seed=11, tick=10.0)
    assert len([flip for flip in flips if flip.seconds > 60]) <= 1, flips
