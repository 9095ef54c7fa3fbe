"""Interchangeable nodes are searched as one cell; a placement says how many workers of which form each cell holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fulcrum.api.names import Role
from fulcrum.placement.inventory import Inventory, Node, NodeKind
from fulcrum.placement.parallelism import WorkerOption

FEW_NODES: Final = 12
"""Up to this many nodes each is a cell of its own, so that its network cards are reckoned with exactly."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Nodes of one kind in one domain."""

    kind: NodeKind
    nodes: tuple[Node, ...]

    @property
    def gpus(self) -> int:
        """Return the GPUs of all its nodes."""
        return len(self.nodes) * self.kind.gpus


@dataclass(frozen=True, slots=True)
class Assignment:
    """One form of worker in one role in one cell. A search says how many workers each has."""

    cell: int
    option: WorkerOption
    role: Role

    @property
    def rate(self) -> float:
        """Return requests/s of one such worker."""
        return self.option.rate(self.role)


Counts = tuple[int, ...]
"""How many workers of each assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a search chooses from."""

    inventory: Inventory
    cells: tuple[Cell, ...]
    assignments: tuple[Assignment, ...]
    kv_bytes_per_request: float

    def price(self, counts: Counts) -> float:
        """Return the price per hour of the GPUs that are used."""
        pairs = zip(counts, self.assignments, strict=True)
        return sum(count * assignment.option.price_per_hour for count, assignment in pairs if count)

    def fits(self, counts: Counts) -> bool:
        """Report whether the workers of each cell pack into its nodes."""
        used: dict[int, dict[int, int]] = {}
        for count, assignment in zip(counts, self.assignments, strict=True):
            if count:
                sizes = used.setdefault(assignment.cell, {})
                sizes[assignment.option.gpus] = sizes.get(assignment.option.gpus, 0) + count
        return all(packs(sizes, self.cells[cell]) for cell, sizes in used.items())


def packs(sizes: Mapping[int, int], cell: Cell) -> bool:
    """Report whether workers (GPUs of one: how many) fit into the nodes of a cell.

    Sizes are powers of two. They fit exactly when for each size the larger ones, counted in units of it, are no more
    than the nodes hold of that size (first fit decreasing is optimal where each size divides the next).
    """
    return all(
        sum(count * (other // size) for other, count in sizes.items() if other >= size)
        <= len(cell.nodes) * (cell.kind.gpus // size)
        for size in sizes
    )


def cells_of(domains: Sequence[Sequence[Node]]) -> tuple[Cell, ...]:
    """Return the cells of all domains: nodes of one kind in one domain, or single nodes where there are few."""
    nodes = sum(len(domain) for domain in domains)
    found: list[Cell] = []
    for domain in domains:
        if nodes <= FEW_NODES:
            found.extend(Cell(node.kind, (node,)) for node in domain)
            continue
        by_kind: dict[NodeKind, list[Node]] = {}
        for node in domain:
            by_kind.setdefault(node.kind, []).append(node)
        found.extend(Cell(kind, tuple(each)) for kind, each in by_kind.items())
    return tuple(sorted(found, key=lambda cell: (cell.kind.order, cell.nodes[0].name)))


def problem_of(
    inventory: Inventory,
    cells: tuple[Cell, ...],
    options: Mapping[NodeKind, Sequence[WorkerOption]],
    *,
    roles: Sequence[Role],
    kv_bytes_per_request: float,
    every_form: bool = False,
) -> Problem:
    """Return every assignment of the cells; forms that others beat in their role are left out unless all are wanted."""
    assignments = []
    for index, cell in enumerate(cells):
        for role in roles:
            for option in options.get(cell.kind, ()):
                rate = option.rate(role)
                # Two small workers in place of one large one are at least as good where they carry as much.
                beaten = any(
                    other.gpus <= option.gpus
                    and (other.gpus, -other.rate(role), other.tensor) < (option.gpus, -rate, option.tensor)
                    and other.rate(role) * (option.gpus // other.gpus) >= rate
                    for other in options[cell.kind]
                )
                if rate > 0 and (every_form or not beaten):
                    assignments.append(Assignment(index, option, role))
    return Problem(
        inventory=inventory, cells=cells, assignments=tuple(assignments), kv_bytes_per_request=kv_bytes_per_request
    )


def packed(problem: Problem, counts: Counts) -> dict[str, list[Assignment]]:
    """Return the workers of each node by name, prefill and decode mixed so that KV can stay inside a node."""
    found: dict[str, list[Assignment]] = {}
    for index, cell in enumerate(problem.cells):
        free = {node.name: cell.kind.gpus for node in cell.nodes}
        carried: dict[tuple[str, Role], float] = {}
        workers = [
            assignment
            for count, assignment in zip(counts, problem.assignments, strict=True)
            if assignment.cell == index
            for _ in range(count)
        ]
        for assignment in sorted(workers, key=lambda each: -each.option.gpus):
            size = assignment.option.gpus
            # The node with least of this role; among these the fullest, so that whole nodes stay free.
            name = min(
                (name for name in free if free[name] >= size),
                key=lambda name: (carried.get((name, assignment.role), 0.0), free[name], name),
            )
            free[name] -= size
            carried[name, assignment.role] = carried.get((name, assignment.role), 0.0) + assignment.rate
            found.setdefault(name, []).append(assignment)
    return found
