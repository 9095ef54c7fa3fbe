"""What came in the last minutes, played under the layout that stands and under each candidate.

Pure: the same question has the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

import numpy as np

from fulcrum.decide.rehearsed import PlayedLayout
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.candidates import candidates
from fulcrum.rehearsal.difference import Bools, difference, mean_difference, over_draws
from fulcrum.rehearsal.foretold import Course, Foretold
from fulcrum.rehearsal.future import Future, Span, future, span_of
from fulcrum.rehearsal.lengths import AnswerLengths
from fulcrum.rehearsal.play import Stage, play
from fulcrum.rehearsal.trust import Trust
from fulcrum.rehearsal.tuning import TUNING
from fulcrum.simulation.policy import known_speeds
from fulcrum.simulation.seen import Seen


@dataclass(frozen=True, slots=True)
class Offset:
    """By how much a layout served another share of the requests that came than plays of the same requests say."""

    share: float = 0.0
    error: float = 0.0
    """Standard error."""


_NONE = Offset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a rehearsal is asked."""

    stage: Stage
    seen: Seen
    since: float
    """Since when the load is of one kind."""
    now: float
    flexible: Collection[str]
    """Pools whose workers change their roles."""
    mixes: bool = True
    """They may do both."""
    offsets: Mapping[Layout, Offset] = field(default_factory=dict)
    """Of layouts that stood before, under this load."""
    stands_since: float = 0.0
    """Since when what stands does."""
    trust: Trust = field(default_factory=Trust)
    """In plays; where it is lost, nothing wins."""
    known_from: float | None = None
    """Nothing is known of the time before; None: before second 0 nothing came."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rehearsal came to."""

    chosen: Layout
    """What stands, where nothing wins."""
    foretold: Foretold
    requests: int
    """That were counted."""
    future_seconds: float
    compared: tuple[PlayedLayout, ...]
    """What stands first, the best last. Layouts that could not win were given up, and are not here."""
    gain: float = 0.0
    """Requests by which the best one is ahead of what stands."""
    error: float = 0.0
    """Standard error of the gain."""
    offsets: Mapping[Layout, Offset]
    """As in the question, with that of what stands."""
    plays: int
    played_requests: int
    compared_none: bool = False
    """What stands has so many requests that no other layout was played."""


def rehearse(question: Question) -> Answer | None:
    """Choose a layout; None: too little is known.

    A layout is chosen on one draw of what is unknown, and wins when another draw confirms it (no winner's curse): by
    more than chance, and by more than a hundredth of the requests.
    """
    stage, seen = question.stage, question.seen
    stretch = seen.since(question.since)
    known = ~seen.refused & (seen.made_tokens > 0)
    if len(stretch) < TUNING.least_requests or not known.any():
        return None
    random = np.random.default_rng([question.seed, 0])
    lengths = AnswerLengths(seen.made_tokens[known], seen.ended[known], random.random())
    outputs = lengths.draw(np.zeros(len(stretch), dtype=np.int64), random)
    span = span_of(seen, question.since, question.now, outputs, stage.slo, known_from=question.known_from)
    plays = _Plays(question)
    first, second = (_drawn(question, span, longer=longer) for longer in (False, True))
    total = len(first.seen_seconds)
    if not (total and len(second.seen_seconds)):
        return None
    stands = plays.stands(first)
    best, inside, compared = stage.standing, stands, [plays.expected(stage.standing, stands)]
    too_many = False
    for layout in candidates(
        stage.standing,
        known_speeds(stage.cluster),
        stretch.load.prompt_tokens.astype(np.float64),
        outputs.astype(np.float64),
        stage.slo.tpot_seconds,
        flexible=question.flexible,
        mixes=question.mixes,
    ):
        if plays.requests > TUNING.most_played:
            too_many = plays.count == 1
            break
        # It must bring more than the best so far, and enough more than what stands: with more misses it cannot win.
        least = max(
            inside.sum() + plays.off(best, layout) * total,
            stands.sum() + (plays.off(stage.standing, layout) + TUNING.least_gain) * total,
        )
        found = plays.play(first, layout, spare=total - least)
        if found is not None and found.sum() > least:
            best, inside = layout, found
            compared.append(plays.expected(layout, found))
    verdict = _confirm(plays, best, first, second, inside=inside, stands=stands, trusted=not question.trust.lost)
    chosen = best if verdict.wins else stage.standing
    return Answer(
        chosen=chosen,
        foretold=plays.foretold(chosen, (first, inside if verdict.wins else stands), (second, verdict.again)),
        requests=total,
        future_seconds=span.scored_seconds,
        compared=tuple(compared),
        gain=verdict.gain,
        error=verdict.error,
        offsets=plays.offsets,
        plays=plays.count,
        played_requests=plays.requests,
        compared_none=too_many,
    )


def _drawn(question: Question, span: Span, *, longer: bool) -> Future:
    """Return one of two draws of what is unknown.

    What outlasts all answers that ended is short in one of them and long in the other: what wins in both does not hang
    on a length that nobody knows.
    """
    random = np.random.default_rng([question.seed, 1 + longer])
    return future(question.seen, span, random, longer=longer, stands_since=question.stands_since)


class _Verdict(NamedTuple):
    """What two draws together say of the layout that was best on the first one."""

    wins: bool
    gain: float
    """As in the answer."""
    error: float
    again: Bools | None = None
    """Which scored requests of the second draw are inside under what wins, or stands; None: it was not played."""


def _confirm(
    plays: _Plays, best: Layout, first: Future, second: Future, *, inside: Bools, stands: Bools, trusted: bool
) -> _Verdict:
    """Play `best` and what stands on the second draw as well.

    `inside` and `stands` are which of the scored requests of the first draw `best` and what stands serve in time.
    """
    standing, total = plays.standing, len(first.seen_seconds)
    if best == standing:
        return _Verdict(wins=False, gain=0.0, error=0.0)
    again = plays.whole(second, best), plays.whole(second, standing)
    ahead = [
        difference(inside, stands, first.seen_seconds),
        difference(*again, second.seen_seconds),
    ]
    offset = plays.off(standing, best) * -total
    gain, chance = over_draws(ahead)
    gain += offset
    error = sqrt(chance**2 + total**2 * plays.off_variance(standing, best))
    agree = all(each + offset > 0 for each, _ in ahead)
    wins = trusted and agree and gain > max(TUNING.sigmas * error, TUNING.least_gain * total)
    return _Verdict(wins=wins, gain=gain, error=error, again=again[0 if wins else 1])


class _Plays:
    """Plays of one question, counted."""

    def __init__(self, question: Question) -> None:
        self._stage, self.standing = question.stage, question.stage.standing
        self.offsets = dict(question.offsets)
        self.count = 0
        self.requests = 0

    def play(self, played: Future, layout: Layout, *, spare: float) -> Bools | None:
        """Return which of the scored requests are inside; None: more than `spare` missed the promise.

        With requests that have not ended when the play ends, more than `spare` can be outside: compare the sum.
        """
        if spare < 0:
            return None
        found = self._play(played, layout, spare=spare)
        return None if found is None else found[played.scored]

    def whole(self, played: Future, layout: Layout) -> Bools:
        """Play to the end."""
        found = self._play(played, layout, spare=len(played.load))
        assert found is not None
        return found[played.scored]

    def stands(self, played: Future) -> Bools:
        """Play what stands; its offset is how far its play of the past is from what came of those requests."""
        found = self._play(played, self.standing, spare=len(played.load))
        assert found is not None
        self.offsets.pop(self.standing, None)
        if len(played.known_inside) >= TUNING.least_requests:
            arrivals = played.load.arrival_seconds[played.known]
            found_off = Offset(*mean_difference(played.known_inside, found[played.known], arrivals))
            if abs(found_off.share) > TUNING.sigmas * found_off.error:
                self.offsets[self.standing] = found_off
        return found[played.scored]

    def _play(self, played: Future, layout: Layout, *, spare: float) -> Bools | None:
        self.count += 1
        self.requests += len(played.load)
        return play(self._stage, played, layout, spare=spare)

    def expected(self, layout: Layout, inside: Bools) -> PlayedLayout:
        """Return what the play of a layout says, less how far it is off."""
        share = float(inside.mean()) + self.offsets.get(layout, _NONE).share
        return PlayedLayout(layout=layout, inside=min(max(share, 0.0), 1.0))

    def foretold(self, layout: Layout, *draws: tuple[Future, Bools | None]) -> Foretold:
        """Return what plays say of the requests to come, given which of the scored requests of each draw are inside."""
        courses = [_course(drawn, inside) for drawn, inside in draws if inside is not None]
        off = self.offsets.get(layout, _NONE)
        return Foretold(draws=tuple(courses), off=off.share, off_error=off.error)

    def off(self, one: Layout, other: Layout) -> float:
        """Share of requests by which `one` does better, beside `other`, than its plays say."""
        return self.offsets.get(one, _NONE).share - self.offsets.get(other, _NONE).share

    def off_variance(self, *layouts: Layout) -> float:
        """Of what `off` says."""
        return sum(self.offsets.get(layout, _NONE).error ** 2 for layout in layouts)


def _course(future: Future, inside: Bools) -> Course:
    """Return what becomes of the requests to come; where none is expected, of those that run or wait."""
    after_seconds = future.load.arrival_seconds[future.scored] - future.changes_at
    comes = after_seconds >= 0
    if not comes.any():
        comes = ~comes
    return Course(tuple(after_seconds[comes].tolist()), tuple(inside[comes].tolist()))
