"""What a search chooses from: once for each division of the misses, and as one problem in which all are judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.placement.bound import relaxed
from fulcrum.placement.cells import Assignment, Counts, Problem, cells_of, problem_of
from fulcrum.placement.division import ceilings, divisions
from fulcrum.placement.inventory import Inventory, NodeKind
from fulcrum.placement.objective import Goal, Objective
from fulcrum.placement.parallelism import Engine, Form, Options, WorkerOption, options
from fulcrum.placement.partition import Domain, domains
from fulcrum.placement.performance import Performance

_SMALL_BUDGET: Final = 1e-3
"""Share of the price of everything. Most goodput per price is what so little money buys, workers in parts: more of it
never buys more for each part."""

_Place = tuple[int, Form, Role]
"""Cell, form of the worker, role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All placements for some roles."""

    problem: Problem
    """Every form of worker. Its rates are the most of any division."""
    by_division: tuple[Problem, ...]
    """Rates of workers that keep their part of the promise alone; forms that another one beats are left out."""
    ceilings: NDArray[np.float64]
    """What bounds each assignment of `problem` (`Judge.ceilings`)."""
    bounding: tuple[Problem, ...]
    """Rates that no worker exceeds; for any division of the misses one of these."""
    parts: list[list[int]]
    """Numbers of the cells by domain."""

    def likely(self, most_price: float, most: int) -> list[Problem]:
        """Return the problems of the divisions that may carry most, these first."""
        carried = [relaxed(each, Objective(most_price=most_price))[0] for each in self.by_division]
        order = sorted(range(len(carried)), key=lambda number: -carried[number])
        kept = [number for number in order if carried[number] > 0.0] or order
        return [self.by_division[number] for number in kept[:most]]

    def counts(self, problem: Problem, counts: Counts) -> Counts:
        """Return counts of one of the problems as counts of `problem`."""
        known = {_place(each): count for each, count in zip(problem.assignments, counts, strict=True)}
        return tuple(known.get(_place(each), 0) for each in self.problem.assignments)

    def bound(self, goal: Goal, objective: Objective) -> float:
        """Return what no placement exceeds (`Plan.bound`)."""
        if goal is Goal.LEAST_PRICE:
            return min(relaxed(each, objective)[0] for each in self.bounding)
        budget, whole = objective.most_price, self.problem.inventory.price_per_hour
        if goal is Goal.BEST_RATIO and whole > 0:
            budget = _SMALL_BUDGET * whole
        most = max(relaxed(each, Objective(most_price=budget))[0] for each in self.bounding)
        return most / budget if goal is Goal.BEST_RATIO and budget < inf else most


def spaces_of(
    inventory: Inventory,
    engine: Engine,
    performance: Performance,
    role_groups: Iterable[tuple[Role, ...]],
    prompt_tokens: float,
) -> list[Space]:
    """Return a space for each group of roles."""
    searched, bounding = divisions(performance.target), ceilings(performance.target)
    found = options(inventory, engine, performance, (*searched, *bounding))
    merged = _merged(found[: len(searched)])

    def holds_both(domain: Domain) -> bool:
        each = [option for kind in {node.kind for node in domain} for option in merged.get(kind, ())]
        gpus = sum(node.gpus for node in domain)
        prefill = min((option.gpus for option in each if option.prefill_rate > 0), default=gpus + 1)
        decode = min((option.gpus for option in each if option.decode_rate > 0), default=gpus + 1)
        return prefill + decode <= gpus

    parts = domains(inventory, holds_both)
    cells = cells_of(parts)
    domain_of = {node.name: number for number, domain in enumerate(parts) for node in domain}
    numbers: list[list[int]] = [[] for _ in parts]
    for index, cell in enumerate(cells):
        numbers[domain_of[cell.nodes[0].name]].append(index)

    def problem(of_division: Options, roles: tuple[Role, ...], *, every_form: bool = False) -> Problem:
        kv_bytes = engine.kv_bytes_per_token * prompt_tokens
        return problem_of(
            inventory, cells, of_division, roles=roles, kv_bytes_per_request=kv_bytes, every_form=every_form
        )

    spaces = []
    for roles in role_groups:
        # Workers of one role have one promise: every division is the same to them.
        several = roles != (Role.MIXED,)
        whole = problem(merged, roles, every_form=True)
        ours = [problem(each, roles) for each in found[: len(searched) if several else 1]]
        above = found[len(searched) :][: None if several else 1]
        spaces.append(
            Space(
                problem=whole,
                by_division=tuple(ours),
                ceilings=_ceilings(whole, above),
                bounding=tuple(problem(each, roles) for each in above),
                parts=numbers,
            )
        )
    return spaces


def _ceilings(whole: Problem, above: Sequence[Options]) -> NDArray[np.float64]:
    """Return a row for each assignment, as `Judge.ceilings` has them."""
    rows = np.zeros((len(whole.assignments), 2 * len(above) + 2))
    for division, of_kind in enumerate(above):
        known = {(kind, option.form): option for kind, each in of_kind.items() for option in each}
        columns = {Role.PREFILL: 2 * division, Role.DECODE: 2 * division + 1, Role.MIXED: 2 * len(above)}
        for number, assignment in enumerate(whole.assignments):
            option = known.get((assignment.option.kind, assignment.option.form))
            if option is not None:
                rows[number, columns[assignment.role]] = option.rate(assignment.role)
    rows[:, -1] = [assignment.option.price_per_hour for assignment in whole.assignments]
    return rows


def _merged(found: Sequence[Options]) -> Options:
    """Return every worker with the most that it carries under any division."""
    merged: dict[NodeKind, dict[Form, WorkerOption]] = {}
    for of_division in found:
        for kind, each in of_division.items():
            known = merged.setdefault(kind, {})
            for option in each:
                other = known.get(option.form, option)
                known[option.form] = replace(
                    option,
                    prefill_rate=max(option.prefill_rate, other.prefill_rate),
                    decode_rate=max(option.decode_rate, other.decode_rate),
                    mixed_rate=max(option.mixed_rate, other.mixed_rate),
                )
    return {kind: tuple(known.values()) for kind, known in merged.items()}


def _place(assignment: Assignment) -> _Place:
    return assignment.cell, assignment.option.form, assignment.role
