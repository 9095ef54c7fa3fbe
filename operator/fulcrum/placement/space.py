"""What a search chooses from, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulcrum.api.names import Role
from fulcrum.placement.bound import relaxed
from fulcrum.placement.cells import Assignment, Counts, Problem, cells_of, problem_of
from fulcrum.placement.inventory import Inventory
from fulcrum.placement.objective import Goal, Objective
from fulcrum.placement.parallelism import ROLES, Engine, Form, Options, choices
from fulcrum.placement.partition import Domain, domains
from fulcrum.placement.performance import Performance

_SMALL_BUDGET: Final = 1e-3
"""Share of the price of everything. Most goodput per price is what so little money buys, workers in parts: more of it
never buys more for each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All placements for some roles."""

    problem: Problem
    """Every form of worker."""
    unbeaten: NDArray[np.int64]
    """Numbers of the assignments of `problem` whose form no other one beats."""
    ceilings: NDArray[np.float64]
    """What bounds each assignment of `problem` (`Judge.ceilings`)."""
    bounding: Problem
    """Rates that no worker exceeds."""
    parts: list[list[int]]
    """Numbers of the cells by domain."""

    def counts(self, counts: Counts) -> Counts:
        """Return counts of the forms that are not beaten as counts of `problem`."""
        found = np.zeros(len(self.problem.assignments), dtype=np.int64)
        found[self.unbeaten] = counts
        return tuple(found.tolist())

    def searched(self) -> Problem:
        """Return the problem of the forms that are not beaten."""
        return replace(self.problem, assignments=tuple(self.problem.assignments[each] for each in self.unbeaten))

    def bound(self, goal: Goal, objective: Objective) -> float:
        """Return what no placement exceeds (`Plan.bound`)."""
        if goal is Goal.LEAST_PRICE:
            return relaxed(self.bounding, objective)[0]
        budget, whole = objective.most_price, self.problem.inventory.price_per_hour
        if goal is Goal.BEST_RATIO and whole > 0:
            budget = _SMALL_BUDGET * whole
        most = relaxed(self.bounding, Objective(most_price=budget))[0]
        return most / budget if goal is Goal.BEST_RATIO and budget < inf else most


def spaces_of(
    inventory: Inventory,
    engine: Engine,
    performance: Performance,
    role_groups: Iterable[tuple[Role, ...]],
    prompt_tokens: float,
) -> list[Space]:
    """Return a space for each group of roles."""
    found = choices(inventory, engine, performance)

    def holds_both(domain: Domain) -> bool:
        each = [option for kind in {node.kind for node in domain} for option in found.alone.get(kind, ())]
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

    def problem(options: Options, roles: tuple[Role, ...], *, every_form: bool = False) -> Problem:
        kv_bytes = engine.kv_bytes_per_token * prompt_tokens
        return problem_of(inventory, cells, options, roles=roles, kv_bytes_per_request=kv_bytes, every_form=every_form)

    spaces = []
    for roles in role_groups:
        whole, bounding = problem(found.alone, roles, every_form=True), problem(found.most, roles)
        unbeaten = {_place(each) for each in problem(found.alone, roles).assignments}
        numbers_of = [number for number, each in enumerate(whole.assignments) if _place(each) in unbeaten]
        spaces.append(
            Space(
                problem=whole,
                unbeaten=np.array(numbers_of, dtype=np.int64),
                ceilings=_ceilings(whole, found.most),
                bounding=bounding,
                parts=numbers,
            )
        )
    return spaces


def _ceilings(whole: Problem, most: Options) -> NDArray[np.float64]:
    """Return a row for each assignment, as `Judge.ceilings` has them."""
    rows = np.zeros((len(whole.assignments), len(ROLES) + 1))
    known = {(kind, option.form): option for kind, each in most.items() for option in each}
    for number, assignment in enumerate(whole.assignments):
        option = known[assignment.option.kind, assignment.option.form]
        rows[number, ROLES.index(assignment.role)] = option.rate(assignment.role)
        rows[number, -1] = option.price_per_hour
    return rows


def _place(assignment: Assignment) -> tuple[int, Form, Role]:
    return assignment.cell, assignment.option.form, assignment.role
