"""Bursts: how they are measured."""

from __future__ import annotations

import numpy as np
import pytest

from fulcrum.load.bursts import dispersion


def test_nothing_is_said_of_few_or_empty_spans() -> None:
    assert dispersion([]) is None
    assert dispersion([5.0] * 9) is None
    assert dispersion([0.0] * 100) is None


@pytest.mark.parametrize("mean", [0.5, 20.0, 400.0])
def test_poisson_arrivals_are_no_bursts(mean: float) -> None:
    drawn = [dispersion(np.random.default_rng(seed).poisson(mean, 150).tolist()) for seed in range(200)]
    assert np.mean([index == 1.0 for index in drawn]) > 0.93
    assert max(index for index in drawn if index is not None) < 1.6


@pytest.mark.parametrize("batch", [2.0, 8.0])
def test_batches_are_told(batch: float) -> None:
    """Geometric batches of mean b have an index of 2 b - 1."""
    found = []
    for seed in range(50):
        random = np.random.default_rng(seed)
        counts = [random.geometric(1 / batch, random.poisson(40 / batch)).sum() for _ in range(150)]
        found.append(dispersion(counts) or 0.0)
    assert np.mean(found) == pytest.approx(2 * batch - 1, rel=0.1)


def test_neither_a_trend_nor_a_beat_is_a_burst() -> None:
    random = np.random.default_rng(1)
    assert dispersion(random.poisson(np.linspace(10, 100, 150)).tolist()) == 1.0
    beat = np.tile([10.0, 30.0], 75)
    assert dispersion(beat.tolist()) == pytest.approx(beat.var() / beat.mean())
