"""The judge: ours and its rivals on the same scenario, the same every time, and rules that can be switched off."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

import pytest
from contests.ablations import ABLATIONS, Ablation, Constant, switched_off
from contests.judge import judged, rivals, run_ours
from contests.scenarios import Scenario, draw, layouts

from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.decide import tuning


def smallest(*, moving: bool) -> Scenario:
    """The scenario with the fewest requests on few workers."""
    found = [one for one in (draw(1, number) for number in range(60)) if one.moving is moving and one.workers <= 3]
    return min(found, key=lambda one: one.expected_requests())


def test_fixed_workers_are_judged_against_the_best_of_all_rivals() -> None:
    scenario = smallest(moving=False)
    one = judged(scenario)
    assert one == judged(scenario)
    names = [name for name, _, _ in rivals(scenario)]
    assert one.best in names
    assert len(names) == len(set(names)) >= 2 * len(layouts(scenario))
    assert one.best_attainment >= one.best_static_attainment > 0
    assert one.ratio == pytest.approx(one.ours.summary.attainment / one.best_attainment)
    assert one.settled_ratio == pytest.approx(one.ours.settled / one.best_settled)
    assert one.ours == run_ours(scenario)


def test_moving_workers_are_judged_by_gpu_hours_for_the_same_attainment() -> None:
    one = judged(smallest(moving=True))
    assert one.best.startswith("threshold")
    if one.best_attainment >= one.ours.summary.attainment - 0.005:
        assert one.ratio == pytest.approx(one.best_gpu_hours / one.ours.summary.gpu_hours)
    else:
        assert one.ratio > 1


def value_of(constant: Constant) -> object:
    value: object = import_module(f"fulcrum.{constant.module}")
    for part in constant.name.split("."):
        value = getattr(value, part)
    return value


def test_every_constant_that_is_switched_off_is_there_and_comes_back() -> None:
    assert len({one.name for one in ABLATIONS}) == len(ABLATIONS)
    for entry in ABLATIONS:
        before = [value_of(each) for each in entry.constants]
        with switched_off(entry):
            for constant, value in zip(entry.constants, before, strict=True):
                assert value_of(constant) == constant.neutral != value
        assert [value_of(each) for each in entry.constants] == before


def test_every_entry_of_every_tuning_is_ablated() -> None:
    switched = {(constant.module, constant.name) for entry in ABLATIONS for constant in entry.constants}
    rooms = [f"{room}.tuning" for room in ("admission", "decide", "load", "routing")]
    entries = {
        (room, f"TUNING.{entry.name}") for room in rooms for entry in fields(import_module(f"fulcrum.{room}").TUNING)
    }
    assert switched == entries


def test_what_others_have_imported_is_switched_off_too() -> None:
    constant = Constant(module="decide.tuning", name="TUNING.noise_sigmas", neutral=0.0)
    with switched_off(Ablation(name="x", says="", constants=(constant,))):
        taken = [import_module(f"fulcrum.decide.{name}") for name in ("tuning", "inputs", "measurements", "size")]
        assert {module.TUNING.noise_sigmas for module in taken} == {0.0}


def test_a_constant_that_is_gone_is_named() -> None:
    for name in ("GONE", "TUNING.gone"):
        entry = Ablation(name="x", says="", constants=(Constant(module="decide.tuning", name=name, neutral=0.0),))
        with pytest.raises(LookupError, match=rf"fulcrum\.decide\.tuning has no {name}"), switched_off(entry):
            pass
    assert tuning.TUNING.noise_sigmas > 0


def test_the_planner_and_admission_are_switched_off_in_the_spec() -> None:
    spec = smallest(moving=False).spec()
    planner, admission = (next(one for one in ABLATIONS if one.name == name) for name in ("planner", "admission"))
    assert planner.spec(spec).balance.mode.value == "Observe"
    assert admission.spec(spec).admission.policy is AdmissionPolicy.OFF
    assert planner.spec(spec).pools == spec.pools
