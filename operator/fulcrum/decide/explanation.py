"""What a decision rests on, as the status says it: load and bounds, the layouts compared, what would change it."""

from __future__ import annotations

from fulcrum.api.quantities import three_digits
from fulcrum.api.types import Candidate, DecidedLoad, Explanation
from fulcrum.decide.inputs import Inputs
from fulcrum.decide.measurements import served_share
from fulcrum.decide.rehearsed import Rehearsed
from fulcrum.decide.roles import RoleChanges
from fulcrum.decide.size import Sizing
from fulcrum.decide.split import after
from fulcrum.decide.target import ratio_text
from fulcrum.performance.layout import Layout


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
        return _played(changes.rehearsed)
    stands = _candidate(inputs, changes.current, "stands" if changes.moves else "stands, and is kept")
    if not changes.moves:
        return (stands,)
    verdict = "chosen: relieves the role that cannot carry what comes" if changes.reason else "chosen: ends a stopgap"
    return stands, _candidate(inputs, after(changes.current, changes.moves), verdict)


def _played(rehearsed: Rehearsed) -> tuple[Candidate, ...]:
    """Return what was played; layouts that could not win are not among it."""
    stands, *others = rehearsed.compared[:1] + rehearsed.compared[1:][-6:]  # a status has at most eight
    wins = rehearsed.chosen != stands.layout
    verdict = f"stands{'' if wins else ', and is kept'}; {rehearsed.requests} requests were played"
    rows = [(stands, verdict)] + [(each, "served more than those above") for each in others]
    if others:
        ahead = f"{rehearsed.gain:+.1f} requests, with an error of {rehearsed.error:.1f}"
        rows[-1] = (others[-1], f"chosen: {ahead}" if wins else f"{ahead}; that may be chance")
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
