"""What one rehearsal of a cluster is made from, and what comes of it. Runs in the process that plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from zlib import crc32

from fulcrum.api.gateway import PairsReport
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.decide.rehearsed import Rehearsed, Wanted
from fulcrum.load.demand import LatencyTargets, promised
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.believed import believed
from fulcrum.rehearsal.future import answer_and_past_seconds
from fulcrum.rehearsal.memory import Memory, question_of, rehearsed, remembered
from fulcrum.rehearsal.play import Margins, Stage
from fulcrum.rehearsal.recorded import Recorded, recorded
from fulcrum.rehearsal.rehearse import rehearse
from fulcrum.rehearsal.rings import ReadRing, merge
from fulcrum.rehearsal.scale import Scale, scale_of, thinned
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.cluster import ClusterModel

_LEAST_PLAYS: Final = 5
"""So many plays must fit; where a play of all requests is too long for that, a scale model is played."""
_MOST_PACKED_BYTES: Final = 16 * 1024 * 1024
"""Of rings that are unpacked: twice as many are 230,000 requests, which take half of the memory that a play has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cluster in trouble, and what its gateways remember."""

    uid: str
    """Of the InferenceCluster: the draws of its rehearsals follow from it."""
    spec: InferenceClusterSpec
    wanted: Wanted
    time: datetime
    """When the rings were read."""
    rings: Sequence[ReadRing]
    memory: Memory
    """Times in it are Unix seconds."""
    speeds: Mapping[str, WorkerSpeed]
    start_seconds: float
    pairs: Sequence[PairsReport]
    model: ModelFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a case."""

    memory: Memory
    rehearsed: Rehearsed | None = None
    """None: it was not worth a rehearsal yet, or there can be none."""
    problem: str = ""
    """Why there can be none, for people; what is wrong may pass."""
    plays: int = 0
    played_requests: int = 0


def played(case: Case) -> Played:
    """Rehearse."""
    recording = merge(case.rings, least_rate=_least_rate(case))
    if not recording.complete:
        return _without(case, untold(recording.silent))
    if recording.covers_from_seconds < TUNING.shortest_seconds:
        return _without(
            case, f"only the last {recording.covers_from_seconds:.0f} s are known: a gateway is new, or went"
        )
    key_ends = next(ring.page.key_ends for ring in case.rings if ring.page is not None)
    standing, slo = case.wanted.standing, promised(case.spec)
    known = recorded(recording, key_ends, slo=slo)
    if known is None:
        return _without(case, "the load is not known")
    few = _most_share(known, recording.sampling_rate, slo)
    scale = scale_of(standing, few) or scale_of(standing, recording.sampling_rate)
    if scale is None:
        share = f"{recording.sampling_rate:.0%} of the requests are known"
        return _without(case, f"{share}, and {standing.total} workers have no scale model for them")
    cluster = believed(
        case.spec,
        speeds=case.speeds,
        start_seconds=case.start_seconds,
        pairs=case.pairs,
        gateways=max(1, round(len(case.rings) * scale.share)),
        model=case.model,
    )
    if cluster is None:
        return _without(case, "how fast all workers are is not known")
    known = replace(known, seen=thinned(known.seen, scale.share / recording.sampling_rate))
    return _rehearsed(replace(case, wanted=replace(case.wanted, standing=scale.played)), known, cluster, scale)


def _most_share(known: Recorded, sampling_rate: float, slo: LatencyTargets) -> float:
    """Return the share of the requests of which enough layouts can be played."""
    seen = known.seen
    if not seen.ended.any():
        return sampling_rate
    _, past_seconds = answer_and_past_seconds(seen.made_tokens[seen.ended], slo)
    seconds = past_seconds + TUNING.shortest_seconds / 2  # of the future that is played at least
    requests = len(seen) / known.now / sampling_rate * seconds
    return min(sampling_rate, TUNING.most_played / (_LEAST_PLAYS * max(requests, 1.0)))


def untold(silent: Sequence[tuple[str, str]]) -> str:
    """Return what is said where gateways told nothing, each with the reason, or all of them too little."""
    names = ", ".join(f"{gateway} ({why})" for gateway, why in silent)
    return f"not all gateways told their requests: {names or 'none is old enough'}"


def _least_rate(case: Case) -> float:
    """Return the share of the requests that is enough for the scale model, and that memory holds."""
    scale = scale_of(case.wanted.standing, 1.0)
    packed = sum(len(pack) for ring in case.rings if ring.page is not None for pack in ring.page.packed_rows)
    return min(1.0, 1.0 if scale is None else 2.0 * scale.share, _MOST_PACKED_BYTES / max(packed, 1))


def _without(case: Case, problem: str) -> Played:
    return Played(memory=case.memory, problem=problem)


def _rehearsed(case: Case, known: Recorded, cluster: ClusterModel, scale: Scale) -> Played:
    """Play `case`, whose layout and requests are scaled."""
    now, since = case.time.timestamp(), case.wanted.stands_since
    arrivals = known.seen.arrival_seconds + (now - known.now)
    question = question_of(
        case.wanted,
        _stage(case, cluster),
        replace(known.seen, load=replace(known.seen.load, arrival_seconds=arrivals)),
        now,
        memory=_retold(case.memory, lambda told: scale.played if told == scale.real else told),
        stands_since=0.0 if since is None else since.timestamp(),
        known_from=now - known.now,
        seed=crc32(case.uid.encode()),
    )
    answer = None if question is None else rehearse(question)
    if question is None or answer is None:
        return Played(memory=case.memory)
    if answer.compared_none:
        return _without(case, f"a play of {answer.played_requests} requests is too long to compare layouts")
    return Played(
        memory=_retold(remembered(answer, case.wanted, question, case.memory), scale.unscaled),
        rehearsed=_unscaled(rehearsed(case.wanted, answer, question, case.time), scale),
        plays=answer.plays,
        played_requests=answer.played_requests,
    )


def _retold(memory: Memory, layout_of: Callable[[Layout], Layout]) -> Memory:
    """Return a memory whose forecast is of another layout: it is kept with the real one.

    What stands then is scaled anew, which need not give the layout that was played.
    """
    told = memory.trust.forecast
    if told is None:
        return memory
    forecast = replace(told, layout=layout_of(told.layout))
    return replace(memory, trust=replace(memory.trust, forecast=forecast))


def _unscaled(found: Rehearsed, scale: Scale) -> Rehearsed:
    compared = tuple(replace(each, layout=scale.unscaled(each.layout)) for each in found.compared)
    return replace(found, chosen=scale.unscaled(found.chosen), compared=compared)


def _stage(case: Case, cluster: ClusterModel) -> Stage:
    pages = [ring.page for ring in case.rings if ring.page is not None]
    spec = case.spec
    return Stage(
        cluster=cluster,
        slo=promised(spec),
        admission=spec.admission.policy,
        classes=spec.admission.classes,
        queue=spec.admission.queue,
        admits={pool.name: pool.admits for pool in spec.pools},
        margins=tuple(Margins.of_state(page.admission, page.classes) for page in pages if page.admission is not None),
        standing=case.wanted.standing,
    )
