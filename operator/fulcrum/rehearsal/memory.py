"""What is remembered from one rehearsal to the next: when to ask again, and how far plays were off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from fulcrum.decide.rehearsed import Rehearsed, Wanted, few_miss
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.play import Stage, Stood
from fulcrum.rehearsal.rehearse import Answer, Offset, Question
from fulcrum.rehearsal.stretch import newest_stretch
from fulcrum.rehearsal.trust import Forecast, Trust
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one cluster."""

    since: float = 0.0
    """Since when the load was of one kind, at the last rehearsal."""
    asked_at: float = 0.0
    key: str = ""
    """Of the workers and the promise, then."""
    stayed: Layout | None = None
    """What stood, where the last rehearsal left it."""
    offsets: Mapping[Layout, Offset] = field(default_factory=dict)
    stood: tuple[tuple[Layout, float], ...] = ()
    """What stood in the last minutes, the oldest first, each with the time since when."""
    trust: Trust = field(default_factory=Trust)
    """In plays; the forecast in it is kept with the real layout, also where a scale model was played."""

    def asks(self, seen: Seen, since: float, now: float, attainment: float, *, of: tuple[str, Layout]) -> bool:
        """Report whether there is something to look for, and more is known than at the last time.

        `of`: key of the workers and the promise, and what stands.
        """
        stretch = seen.since(since)
        if len(stretch) < TUNING.least_requests or few_miss(float(stretch.missed.mean()), attainment):
            return False
        more = now >= self.asked_at + TUNING.more * (self.asked_at - self.since)
        return (self.key, self.stayed) != of or more or self._other_load(since, now)

    def known_offsets(self, since: float, now: float, key: str) -> Mapping[Layout, Offset]:
        """Return how far plays of layouts of these workers were off under the load of now."""
        return {} if key != self.key or self._other_load(since, now) else self.offsets

    def before(self, since: float, now: float) -> tuple[Stood, ...]:
        """Return what stood in the last minutes before what stands `since` then."""
        older = [each for each in self.stood if each[1] < since]
        ends = [*(began for _, began in older), since][1:]
        ago = zip((layout for layout, _ in older), (now - end for end in ends), strict=True)
        return tuple(Stood(*each) for each in ago if each[1] < TUNING.memory_seconds)

    def distrusts(self, now: float) -> bool:
        """Report whether nothing is done by plays. That they were wrong is forgotten with the requests of then."""
        return self.trust.known(now).lost

    def known_trust(self, question: Question, key: str) -> Trust:
        """Return the trust in plays, with what came of the last forecast, unless that was about other workers."""
        stage, now = question.stage, question.now
        trust = self.trust.known(now)
        if key != self.key:
            return replace(trust, forecast=None)
        return trust.after(question.seen, now, question.since, stage.standing, stage.slo)

    def _other_load(self, since: float, now: float) -> bool:
        """Report whether the load began anew. That its oldest requests are forgotten is no new beginning."""
        began = max(self.since, now - TUNING.memory_seconds)
        return since > began + TUNING.more * (self.asked_at - self.since)


def remembered(answer: Answer, wanted: Wanted, question: Question, memory: Memory) -> Memory:
    """Return what is remembered after a rehearsal; `memory` is what was before it."""
    standing, since, now = wanted.standing, question.stands_since, question.now
    told = Forecast(foretold=answer.foretold, layout=answer.chosen, asked_at=now, until=now + answer.future_seconds)
    stood = (*[each for each in memory.stood if each[1] < since], (standing, since))
    return Memory(
        since=question.since,
        asked_at=now,
        key=wanted.key,
        stayed=standing if answer.chosen == standing else None,
        offsets=answer.offsets,
        stood=stood[-1 - len(question.stage.stood) :],
        trust=question.trust.expecting(told),
    )


def question_of(
    wanted: Wanted,
    stage: Stage,
    seen: Seen,
    now: float,
    *,
    memory: Memory,
    stands_since: float,
    known_from: float | None,
    seed: int,
) -> Question | None:
    """Return what a rehearsal is asked; None: it is not worth one now.

    `now`, `stands_since` and `known_from` (as in `Question`) in seconds on the clock of `seen`.
    """
    if len(seen) < TUNING.least_requests:
        return None
    since = newest_stretch(seen, now, known_from or 0.0)
    if not memory.asks(seen, since, now, stage.slo.attainment, of=(wanted.key, wanted.standing)):
        return None
    question = Question(
        stage=replace(stage, stood=memory.before(stands_since, now)),
        seen=seen,
        since=since,
        now=now,
        flexible=wanted.flexible,
        mixes=wanted.mixes,
        offsets=memory.known_offsets(since, now, wanted.key),
        stands_since=stands_since,
        known_from=known_from,
        seed=seed,
    )
    return replace(question, trust=memory.known_trust(question, wanted.key))


def rehearsed(wanted: Wanted, answer: Answer, question: Question, time: datetime) -> Rehearsed:
    """Return the answer to what was asked at `time`, as a plan reads it."""
    return Rehearsed(
        key=wanted.key,
        time=time,
        chosen=answer.chosen,
        compared=answer.compared,
        requests=answer.requests,
        future_seconds=answer.future_seconds,
        gain=answer.gain,
        error=answer.error,
        off=answer.offsets[wanted.standing].share if wanted.standing in answer.offsets else 0.0,
        checked=question.trust.last,
    )
