"""Modes Auto and Observe: the stages of one decision, and its explanation. Without knowledge, what stands is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from fulcrum.api.names import Role
from fulcrum.api.quantities import three_digits
from fulcrum.api.reasons import Reason
from fulcrum.api.types import (
    BalanceMode,
    Candidate,
    DecidedLoad,
    Explanation,
    InferenceClusterSpec,
    InferenceClusterStatus,
)
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.assign import Assignment, Kept, follow, keep, layout_of, layout_of_places, place, roles_after
from fulcrum.decide.best_split import best_split
from fulcrum.decide.decision import BalanceDecision, Reasons, Trace
from fulcrum.decide.inputs import Inputs, Unknown, gather
from fulcrum.decide.kv_routes import kv_routes
from fulcrum.decide.last_layout import LayoutSaid, initial_layout, last_layout
from fulcrum.decide.measurements import Measurements, served_share
from fulcrum.decide.rehearsed import Rehearsed
from fulcrum.decide.roles import RoleChanges, dwelled, repairs, role_changes
from fulcrum.decide.size import Sizing, size
from fulcrum.decide.snapshot import ObservedWorker, live, served_roles
from fulcrum.decide.split import Move, after
from fulcrum.decide.target import make_target, ratio_text
from fulcrum.performance.layout import Layout


def manual(spec: InferenceClusterSpec, workers: Sequence[ObservedWorker]) -> BalanceDecision:
    """Return what is to be done in mode Manual: the workers and the ratio of the spec."""
    there = {pool.name: Counter(w.role for w in live(workers, pool.name)) for pool in spec.pools}
    # What flips while no worker serves a role takes that role over, whatever else it is for.
    reasons = Reasons(flip=Reason.ROLE_EMPTY) if len(served_roles(workers)) == 1 else Reasons()
    goal = make_target(spec, there=there)
    return BalanceDecision(assignment=follow(spec, workers, goal), reasons=reasons)


def decide(
    spec: InferenceClusterSpec,
    workers: tuple[ObservedWorker, ...],
    status: InferenceClusterStatus,
    measurements: Measurements,
    *,
    applied: Mapping[str, int],
    now: datetime,
) -> BalanceDecision:
    """Return what is to be done in modes Auto and Observe; `applied`: workers of each pool that there are to be now."""
    inputs = gather(spec, workers, status, measurements, now)
    observing, speeds = spec.balance.mode is BalanceMode.OBSERVE, measurements.speeds
    if isinstance(inputs, Unknown):
        decision = hold(spec, workers, status.layout, applied=applied, speeds=speeds, now=now, repair=not observing)
        return replace(decision, trace=replace(decision.trace, unknown=inputs.message, routes=None))
    decided = _decide(inputs, applied)
    if not observing:
        return decided
    observed = hold(spec, workers, status.layout, applied=applied, speeds=speeds, now=now, repair=False)
    return replace(observed, trace=replace(decided.trace, routes=()), proposal=decided, wanted=decided.wanted)


def _decide(inputs: Inputs, applied: Mapping[str, int]) -> BalanceDecision:
    sized = size(inputs, applied)
    goal = _goal(inputs, sized)
    kept = keep(inputs.workers, sized.workers, goal)
    if _forces_early_flip(inputs, sized, kept):
        sized = replace(sized, workers=dict(applied), reason=None, considered=())
        goal = _goal(inputs, sized)
        kept = keep(inputs.workers, sized.workers, goal)
    coming = _coming(inputs.spec, sized.workers, kept, goal)
    changes = role_changes(inputs, kept, coming)
    assignment = _assign(
        inputs.spec, sized.workers, kept, goal, moves=changes.moves, movable=changes.movable, coming=coming
    )
    return BalanceDecision(
        assignment=assignment,
        reasons=_reasons(inputs, applied, sized, changes),
        trace=_trace(inputs, sized, changes, assignment, goal),
        wanted=changes.wanted,
    )


def _reasons(inputs: Inputs, applied: Mapping[str, int], sized: Sizing, changes: RoleChanges) -> Reasons:
    grown = sum(sized.workers.values()) > sum(applied.values())
    return Reasons(
        flip=changes.reason or sized.reason or Reason.ROLE_FLIPPED,
        create=(sized.reason if grown else None) or Reason.WORKER_CREATED,
        drain=(sized.reason if not grown else None) or Reason.WORKER_DRAINING,
        load=str(inputs.load.current) if changes.reason not in (None, Reason.ROLE_EMPTY) else "",
    )


def _trace(inputs: Inputs, sized: Sizing, changes: RoleChanges, assignment: Assignment, goal: Layout) -> Trace:
    load = inputs.load.current
    serving = [(s.pool, s.role) for s in assignment.slots if s.worker is not None and s.worker.serving]
    result = layout_of_places(serving) if serving else goal
    known = load.rate > 0 and all(inputs.model.knows(pool) for pool in result.pools)
    reason = changes.reason or sized.reason
    said = reason is not None or inputs.spec.balance.mode is BalanceMode.OBSERVE
    return Trace(
        reason=reason,
        over_capacity=sized.over_capacity,
        calm=reason is None and not sized.over_capacity and changes.wanted is None and inputs.well,
        unreachable=inputs.model.slo != inputs.promise,
        routes=kv_routes(result, inputs.model, load, inputs.status.routes or ()) if known else None,
        explanation=explain(inputs, sized, changes) if known and said else None,
    )


def _goal(inputs: Inputs, sized: Sizing) -> Layout:
    """Return the roles that all workers together would best have; for places that have none yet."""
    load = inputs.load
    live = [w for w in inputs.workers if w.live]
    placed = Counter(w.pool for w in live if w.role is not Role.DRAINING)
    if sized.workers == {pool: placed[pool] for pool in sized.workers}:
        return layout_of(inputs.workers)  # no worker comes or goes
    there = Counter(w.pool for w in live)
    wanted = {pool: sum((inputs.status.layout or {}).get(pool, {}).values()) for pool in sized.workers}
    if sized.workers == {pool: there[pool] for pool in sized.workers} == wanted:
        # A worker that drains to change its role gets the one that it was told to drain for. Judged by what is left
        # without it, the load would send it back, and it would drain anew.
        return _last_layout(inputs, sized.workers)
    if inputs.together:
        mixing = {pool.name: sized.workers.get(pool.name, 0) for pool in inputs.pools if pool.mixes}
        if sum(mixing.values()) == sum(sized.workers.values()):
            return Layout.of(mixed=mixing)
    ahead = load.current if sized.reason is Reason.LOAD_FELL else load.current.at_least(load.forecast)
    found = best_split(inputs.pools, sized.workers, inputs.model, ahead) if ahead.rate > 0 else Layout()
    if found.complete:
        return found
    # Nothing arrives: what stands is held, and fewer workers begin anew.
    if sized.reason is None:
        return _last_layout(inputs, sized.workers)
    return initial_layout(inputs.spec, sized.workers, inputs.measurements.speeds)


def _last_layout(inputs: Inputs, applied: Mapping[str, int]) -> Layout:
    wanted, speeds = inputs.status.layout, inputs.measurements.speeds
    return last_layout(inputs.spec, applied, workers=inputs.workers, wanted=wanted, speeds=speeds)


def _coming(spec: InferenceClusterSpec, workers: Mapping[str, int], kept: Kept, goal: Layout) -> dict[str, Role]:
    """Return the role that each worker that drains, and stays, gets afterwards; by name."""
    if not any(worker.role is Role.DRAINING for worker in kept.workers):
        return {}
    assignment = _assign(spec, workers, kept, goal, moves=(), movable=frozenset())
    return {worker.name: role for worker, role in assignment.kept if worker.role is Role.DRAINING}


def hold(
    spec: InferenceClusterSpec,
    workers: Sequence[ObservedWorker],
    wanted: LayoutSaid,
    *,
    applied: Mapping[str, int],
    speeds: Mapping[str, WorkerSpeed],
    now: datetime,
    repair: bool,
) -> BalanceDecision:
    """Keep what stands and replace what died; a cluster with nothing at all starts small, in Observe as in Manual."""
    if not repair and not workers and not wanted:
        return manual(spec, workers)
    goal = last_layout(spec, applied, workers=workers, wanted=wanted, speeds=speeds)
    kept = keep(workers, applied, goal)
    moves = repairs(spec, workers, kept, now) if repair else ()
    assignment = _assign(spec, applied, kept, goal, moves=moves, movable=frozenset(w.name for w in kept.serving))
    reasons = Reasons(flip=Reason.ROLE_EMPTY if moves else Reason.ROLE_FLIPPED)
    return BalanceDecision(assignment=assignment, reasons=reasons)


def _assign(
    spec: InferenceClusterSpec,
    workers: Mapping[str, int],
    kept: Kept,
    goal: Layout,
    *,
    moves: tuple[Move, ...],
    movable: frozenset[str],
    coming: Mapping[str, Role] | None = None,
) -> Assignment:
    roles = roles_after(kept.serving, moves, movable) | dict(coming or {})
    roles |= {w.name: w.role for w in kept.workers if not w.serving and w.role is not Role.DRAINING}
    return place(spec, workers, kept, roles, goal)


def _forces_early_flip(inputs: Inputs, sized: Sizing, kept: Kept) -> bool:
    """A last worker takes both roles; when it has just flipped, the others stay until it may flip again."""
    if sized.reason is not Reason.LOAD_FELL or sum(sized.workers.values()) != 1:
        return False
    settled = {worker.uid for worker in dwelled(inputs, kept)}
    return any(worker.role is not Role.MIXED and worker.uid not in settled for worker in kept.serving)


def explain(inputs: Inputs, sized: Sizing, changes: RoleChanges) -> Explanation:
    """Return the explanation of a decision."""
    load, spec = inputs.load, inputs.spec
    traffic, forecast = inputs.measurements.traffic, inputs.measurements.forecast
    another = "another split, once a role cannot carry what surely comes, and the other one can spare workers"
    if inputs.measurements.rehearses:
        another = "another split, once the last minutes of requests, played under it, are served better beyond chance"
    return Explanation(
        load=DecidedLoad(
            rate=three_digits(load.measured_rate),
            lower_rate=three_digits(load.lower.rate),
            upper_rate=three_digits(load.upper.rate),
            forecast_rate=three_digits(load.forecast.rate) if forecast is not None else None,
            input_tokens=three_digits(load.current.prefill.isl_tokens),
            output_tokens=three_digits(load.current.decode.osl_tokens),
        ),
        attainment=_share(served_share(traffic)) if traffic is not None and traffic.attainment is not None else None,
        candidates=(*_sizes(inputs, sized), *_splits(inputs, changes)),
        changes=(
            another,
            f"more workers, once lower bound or forecast need them to keep {spec.slo.attainment:.0%} inside the SLO",
            f"fewer workers, once the most of the last {spec.balance.scale_down.stabilization} leaves some idle",
        ),
    )


def _splits(inputs: Inputs, changes: RoleChanges) -> tuple[Candidate, ...]:
    if not changes.current.complete or not changes.current.total:
        return ()
    if changes.rehearsed is not None:
        return _played(inputs, changes.rehearsed)
    stands = _candidate(inputs, changes.current, "stands" if changes.moves else "stands, and is kept")
    if not changes.moves:
        return (stands,)
    verdict = "chosen: relieves the role that cannot carry what comes" if changes.reason else "chosen: ends a stopgap"
    return stands, _candidate(inputs, after(changes.current, changes.moves), verdict)


def _played(inputs: Inputs, rehearsed: Rehearsed) -> tuple[Candidate, ...]:
    """Return what was played; layouts that could not win are not among it."""
    stands, *others = rehearsed.compared[:1] + rehearsed.compared[1:][-6:]  # a status has at most eight
    wins = rehearsed.chosen != stands.layout
    verdict = f"stands{'' if wins else ', and is kept'}; {rehearsed.requests} requests were played"
    rows = [(stands, verdict)] + [(each, "served more than those above") for each in others]
    if others:
        ahead = f"{rehearsed.gain:+.1f} requests, with an error of {rehearsed.error:.1f}"
        distrusted = inputs.measurements.plays_distrusted
        held = "what plays foretold did not come, so that roles stay" if distrusted else "that may be chance"
        rows[-1] = (others[-1], f"chosen: {ahead}" if wins else f"{ahead}; {held}")
    return tuple(
        Candidate(layout=ratio_text(played.layout.counts()), attainment=_share(played.inside), verdict=said)
        for played, said in rows
    )


def _sizes(inputs: Inputs, sized: Sizing) -> tuple[Candidate, ...]:
    """Return the layout that the number of workers was changed for, at the load that it was sized by."""
    found = []
    for layout, load in sized.considered:
        share = inputs.model.served(layout, load)
        most = sum(pool.high for pool in inputs.pools)
        what = "all workers that there can be" if layout.total >= most else "the fewest workers"
        found.append(
            Candidate(layout=ratio_text(layout.counts()), attainment=_share(share), verdict=f"{what} for {load}")
        )
    return tuple(found)


def _candidate(inputs: Inputs, layout: Layout, verdict: str) -> Candidate:
    shares = [inputs.model.served(layout, load) for load in (inputs.load.current, inputs.load.upper)]
    return Candidate(
        layout=ratio_text(layout.counts()), attainment=_share(shares[0]), lowest=_share(min(shares)), verdict=verdict
    )


def _share(value: float) -> float:
    return round(min(max(value, 0.0), 1.0), 3)
