"""A placement for people and for the operator: workers by pool, what they carry, where KV flows, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from fulcrum.api.names import Role
from fulcrum.capacity.accelerators import Accelerator
from fulcrum.placement.cells import Assignment, Counts, Problem, packed
from fulcrum.placement.finish import carried_by, stations_of, summed_rate
from fulcrum.placement.flow import Flow, Route, Site, most_flow
from fulcrum.placement.objective import Goal
from fulcrum.placement.parallelism import Form, WorkerOption, chip_of
from fulcrum.placement.performance import Performance


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    """One worker on GPUs of one node."""

    node: str
    gpus: tuple[int, ...]
    """Numbers of its GPUs in the node."""
    option: WorkerOption
    role: Role

    pool: str
    """Name of its pool: alike workers of one role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPool:
    """Alike workers of one role."""

    name: str
    option: WorkerOption
    role: Role
    workers: int
    utilisation: float
    """Share of what its workers carry that flows through them, 0 to 1."""

    @property
    def gpus(self) -> int:
        """Return the GPUs of all its workers."""
        return self.workers * self.option.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """A placement and its figures."""

    goal: Goal
    workers: tuple[PlacedWorker, ...]
    pools: tuple[PlacedPool, ...]
    routes: tuple[Route, ...]
    """KV from pool to pool, in requests/s."""
    node_routes: tuple[Route, ...]
    """The same from node to node."""
    goodput: float
    """Requests/s within the promise, queues included: as it was played, else as the estimates expect."""
    estimate: float
    """What the estimates expect."""
    flow_rate: float
    """Requests/s that the links and each role of workers carry when the other role is not what limits them."""
    linked: bool
    """Links let through all that the workers carry."""
    bound: float
    """What no placement exceeds by the estimates: goodput in requests/s, for the best ratio goodput per price, for the
    least price the price per hour below which none can be. Parts of workers are allowed in it, so that it may be out of
    reach."""
    bottlenecks: tuple[str, ...]
    price_per_hour: float
    gpus_used: int
    gpus: int
    """Of the inventory."""

    @property
    def gap(self) -> float:
        """Return how far the plan may be from the best goodput (or price) by the estimates, as a share of the bound."""
        if self.goal is Goal.LEAST_PRICE:
            return self.price_per_hour / self.bound - 1.0 if 0.0 < self.bound < inf else 0.0
        reached = self.estimate
        if self.goal is Goal.BEST_RATIO and self.price_per_hour > 0:
            reached /= self.price_per_hour
        return max(0.0, 1.0 - reached / self.bound) if self.bound > 0 else 0.0

    def played(self, goodput: float) -> PlacementPlan:
        """Return the plan with the goodput that a simulation found, and all its rates as much higher or lower."""
        factor = goodput / self.goodput
        scales = dict.fromkeys(Role, factor)
        return replace(
            self,
            goodput=goodput,
            flow_rate=self.flow_rate * factor,
            workers=tuple(replace(each, option=each.option.scaled(scales)) for each in self.workers),
            pools=tuple(replace(each, option=each.option.scaled(scales)) for each in self.pools),
            routes=tuple(replace(each, rate=each.rate * factor) for each in self.routes),
            node_routes=tuple(replace(each, rate=each.rate * factor) for each in self.node_routes),
        )

    def workers_of(self, role: Role) -> int:
        """Return the number of workers in a role."""
        return sum(pool.workers for pool in self.pools if pool.role is role)


class _PoolNames:
    """Names that Kubernetes accepts: chip, parallelism, role, and a number where GPUs of one name are unlike."""

    def __init__(self) -> None:
        self._names: dict[tuple[Accelerator, Form, Role], str] = {}

    def of(self, option: WorkerOption, role: Role) -> str:
        key = (chip_of(option.kind.accelerator), option.form, role)
        if key not in self._names:
            stages = f"pp{option.pipeline}-" if option.pipeline > 1 else ""
            stages += f"dp{option.data}-" if option.data > 1 else ""
            name = f"{key[0].name.lower().split('-')[0]}-tp{option.tensor}-{stages}{role.value}"
            same = sum(1 for known in self._names.values() if known == name or known.startswith(f"{name}-"))
            self._names[key] = f"{name}-{same + 1}" if same else name
        return self._names[key]


def plan_of(performance: Performance, problem: Problem, counts: Counts, *, goal: Goal, bound: float) -> PlacementPlan:
    """Return the plan that the counts stand for: workers packed into nodes, flow over nodes, goodput with queues."""
    problem, carried = _rated(performance, problem, counts)
    workers = _placed(packed(problem, counts))
    flow = most_flow(_sites(problem, workers), problem.inventory, problem.kv_bytes_per_request)
    return PlacementPlan(
        goal=goal,
        workers=workers,
        pools=_pools(workers, flow),
        routes=_pool_routes(workers, flow.routes),
        node_routes=flow.routes,
        goodput=min(carried, flow.rate),
        estimate=min(carried, flow.rate),
        linked=bool(carried <= flow.rate * (1 + 1e-6)),
        flow_rate=flow.rate,
        bound=bound,
        bottlenecks=_bottlenecks(flow, workers),
        price_per_hour=problem.price(counts),
        gpus_used=sum(len(worker.gpus) for worker in workers),
        gpus=problem.inventory.gpus,
    )


def _rated(performance: Performance, problem: Problem, counts: Counts) -> tuple[Problem, float]:
    """Return the problem with the rates of workers in this placement, and its goodput without regard to links.

    A role carries what would be carried if there were plenty of the other: never less than the goodput.
    """
    of = stations_of(problem, counts)
    carried = carried_by(performance, of)
    scales = dict.fromkeys(Role, 1.0)
    for role, stations in of.items():
        if stations:
            beside_mixed = (
                performance.alone(of[Role.MIXED], Role.MIXED) if role is not Role.MIXED and of[Role.MIXED] else 0.0
            )
            least = 0.0 if role is Role.MIXED else carried - beside_mixed
            scales[role] = max(performance.alone(stations, role), least) / summed_rate(problem, counts, role)
    rated = tuple(
        replace(
            assignment,
            option=assignment.option.scaled(scales),
        )
        for assignment in problem.assignments
    )
    return replace(problem, assignments=rated), carried


def _placed(by_node: dict[str, list[Assignment]]) -> tuple[PlacedWorker, ...]:
    placed, names = [], _PoolNames()
    for node in sorted(by_node):
        first = 0
        for assignment in by_node[node]:
            size = assignment.option.gpus
            gpus = tuple(range(first, first + size))
            pool = names.of(assignment.option, assignment.role)
            placed.append(PlacedWorker(node=node, gpus=gpus, option=assignment.option, role=assignment.role, pool=pool))
            first += size
    return tuple(placed)


def _sites(problem: Problem, workers: Sequence[PlacedWorker]) -> list[Site]:
    """Return the nodes that hold workers."""
    nodes = {node.name: node for node in problem.inventory.nodes}
    rates: dict[str, dict[Role, float]] = {}
    for worker in workers:
        of_node = rates.setdefault(worker.node, dict.fromkeys(Role, 0.0))
        of_node[worker.role] += worker.option.rate(worker.role)
    return [
        Site(
            name=name,
            region=nodes[name].region,
            prefill_rate=each[Role.PREFILL],
            decode_rate=each[Role.DECODE],
            mixed_rate=each[Role.MIXED],
            local_bytes_per_second=nodes[name].gpus * nodes[name].accelerator.local_bytes_per_second,
            network_bytes_per_second=nodes[name].network_bytes_per_second,
        )
        for name, each in rates.items()
    ]


def _shares(workers: Sequence[PlacedWorker], role: Role) -> dict[str, dict[str, float]]:
    """Return for each node which share of what it carries in a role each pool carries."""
    rates: dict[str, dict[str, float]] = {}
    for worker in workers:
        if worker.role is role:
            of_node = rates.setdefault(worker.node, {})
            of_node[worker.pool] = of_node.get(worker.pool, 0.0) + worker.option.rate(role)
    return {node: {pool: rate / sum(pools.values()) for pool, rate in pools.items()} for node, pools in rates.items()}


def _pool_routes(workers: Sequence[PlacedWorker], routes: Sequence[Route]) -> tuple[Route, ...]:
    """Return the routes of nodes, added up by pool."""
    sources, targets = _shares(workers, Role.PREFILL), _shares(workers, Role.DECODE)
    found: dict[tuple[str, str], float] = {}
    for route in routes:
        for source, sent in sources[route.source].items():
            for target, taken in targets[route.target].items():
                found[source, target] = found.get((source, target), 0.0) + route.rate * sent * taken
    return tuple(Route(source=source, target=target, rate=rate) for (source, target), rate in sorted(found.items()))


def _pools(workers: Sequence[PlacedWorker], flow: Flow) -> tuple[PlacedPool, ...]:
    routes = _pool_routes(workers, flow.routes)
    counted: dict[str, list[PlacedWorker]] = {}
    for worker in workers:
        counted.setdefault(worker.pool, []).append(worker)
    pools = []
    for name, alike in sorted(counted.items()):
        option, role = alike[0].option, alike[0].role
        carried = sum(worker.option.rate(role) for worker in alike)
        flowing = sum(
            route.rate for route in routes if name == (route.source if role is Role.PREFILL else route.target)
        )
        used = 1.0 if role is Role.MIXED else flowing / carried
        pools.append(PlacedPool(name=name, option=option, role=role, workers=len(alike), utilisation=min(used, 1.0)))
    return tuple(pools)


def _bottlenecks(flow: Flow, workers: Sequence[PlacedWorker]) -> tuple[str, ...]:
    """Return what would have to grow for more to flow, by pool and link."""
    if flow.cut is None:
        return ("mixed workers",)
    found = set(flow.cut.link_names)
    for role, nodes in ((Role.PREFILL, flow.cut.prefill), (Role.DECODE, flow.cut.decode)):
        found |= {worker.pool for worker in workers if worker.role is role and worker.node in nodes}
    return tuple(sorted(found))
