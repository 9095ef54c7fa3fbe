"""DistServe's search, on goodputs that are known."""

from __future__ import annotations

import pytest

from fulcrum.placement.errors import DoesNotFitError, TooSlowError
from fulcrum.placement.homogeneous import Found, Pairing, Phase, best_per_gpu, pairings, phases, replicated


def test_low_affinity_keeps_the_stages_of_both_in_one_node() -> None:
    found = pairings(node_gpus=4, nodes=2, fits=lambda _: True)
    assert Pairing(Phase(2, 1), Phase(1, 1)) in found
    assert Pairing(Phase(2, 2), Phase(1, 2)) in found
    assert Pairing(Phase(4, 1), Phase(1, 1)) not in found
    assert all(pair.gpus <= 8 for pair in found)


def test_high_affinity_may_cross_nodes_with_stages_only() -> None:
    found = phases(node_gpus=4, nodes=2, fits=lambda phase: phase.tensor != 3)
    assert Phase(4, 2) in found
    assert Phase(1, 8) in found
    assert all(phase.tensor in (1, 2, 4) and phase.gpus <= 8 for phase in found)


def test_the_best_is_found_and_the_bound_spares_simulations() -> None:
    goodputs = {Phase(1, 1): 1.0, Phase(2, 1): 3.0, Phase(4, 1): 5.0, Phase(8, 1): 8.0}
    runs: list[Phase] = []

    def share(phase: Phase, rate: float) -> float:
        runs.append(phase)
        return 1.0 if rate <= goodputs[phase] else 0.0

    found = best_per_gpu(list(goodputs), bound=lambda phase: goodputs[phase] * 1.2, share=share, target=0.9)
    assert found.best == Phase(2, 1)
    assert found.goodput_per_gpu == pytest.approx(1.5, rel=0.02)
    assert found.simulated < found.candidates == 4
    assert Phase(8, 1) not in runs


def test_workers_are_replicated_until_they_carry_the_rate() -> None:
    prefill = Found(best=Phase(2, 1), goodput_per_gpu=1.0, candidates=1, simulated=1)
    decode = Found(best=Phase(1, 1), goodput_per_gpu=4.0, candidates=1, simulated=1)
    placed = replicated(prefill, decode, rate=8.0)
    assert (placed.prefill_workers, placed.decode_workers, placed.gpus) == (4, 2, 10)


def test_nothing_to_search_and_nothing_quick_enough_are_different_errors() -> None:
    with pytest.raises(DoesNotFitError):
        best_per_gpu([], bound=lambda _: 1.0, share=lambda *_: 1.0, target=0.9)
    with pytest.raises(TooSlowError):
        best_per_gpu([Phase(1, 1)], bound=lambda _: 1.0, share=lambda *_: 0.0, target=0.9)
