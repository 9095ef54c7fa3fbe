"""Batch requests that make way for one that is promised a latency: which they are, and what is predicted then. Pure.

An engine prefers it to what waits of lower classes, and takes KV blocks from them when it needs more itself. But what
has begun keeps its place in the batch, and a long prompt its chunks. So the gateway ends batch requests: an engine
drops one that is aborted before its next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fulcrum.routing.flight import DECODING, Flight
from fulcrum.routing.path import Incoming, Prefill, Route
from fulcrum.routing.search import Search
from fulcrum.routing.view import ClusterView


class BatchInTheWay:
    """The batch requests on the path of another one."""

    def __init__(self, incoming: Incoming, found: Route, view: ClusterView, now_seconds: float) -> None:
        self._incoming, self._found, self._view, self._now_seconds = incoming, found, view, now_seconds
        self.prompts = [view.prefilling[leg] for leg in found.prefill.prompts.begun_batch()]
        """Those whose begun prompts would hold up its prefill for longer than the step under way."""
        self._answers = [
            flight for flight in reversed(view.batch) if flight.decode is found.decode and flight not in self.prompts
        ]
        # Those that decode on its worker, or will; the ones that have made the least come first.

    def without(self, answers: Sequence[Flight] = ()) -> Route:
        """Return the path as it is predicted without `prompts` and these."""
        found = self._found
        search, there = Search(self._incoming, self._view, self._now_seconds), found.decode.answers
        there.advance(self._now_seconds)
        decoding = there.decoding()
        for flight in answers:
            there.set_aside(flight.load, joined=flight.phase == DECODING)
        prefill = search.prefill_on(found.prefill)
        if self.prompts:
            prefill = _sooner(prefill, self.prompts)
        path = search.one_leg(prefill) if found.whole else search.two_legs(prefill, found.decode)
        there.put_back(decoding)
        return path

    def fewest(
        self, over: Callable[[Route], bool], helps: Callable[[Route], bool]
    ) -> tuple[Route, list[Flight]] | None:
        """Return the path with the fewest of them ended with which it is not `over` a limit; None: there is none.

        Where nothing else is on its workers, it is served over a limit, too, if that `helps`.
        """
        answers = self._answers
        path = self.without(answers)
        if over(path):
            return (path, [*self.prompts, *answers]) if self._only_batch() and helps(path) else None
        fewest, enough = 0, len(answers)
        while fewest < enough:
            middle = (fewest + enough) // 2
            fewer = self.without(answers[:middle])
            if over(fewer):
                fewest = middle + 1
            else:
                path, enough = fewer, middle
        return path, [*self.prompts, *answers[:enough]]

    def _only_batch(self) -> bool:
        prefill, decode = self._found.prefill, self._found.decode
        if prefill.foreign or decode.foreign or not all(leg.batch for leg in prefill.prompts.legs):
            return False
        if decode is not prefill and prefill.answers.running + prefill.answers.pending:
            return False
        there = sum(flight.decode is decode for flight in self._view.batch)
        return decode.answers.running + decode.answers.pending == there


def _sooner(prefill: Prefill, prompts: Sequence[Flight]) -> Prefill:
    """The chunk under way of these is computed to its end, and no other one."""
    chunk_tokens = prefill.prefill.engine.chunk_tokens
    saved = sum(each.load.work_seconds * (1 - chunk_tokens / each.load.new_tokens) for each in prompts)
    return msgspec.structs.replace(
        prefill,
        wait_seconds=max(prefill.wait_seconds - saved, 0.0),
        begun_seconds=max(prefill.begun_seconds - saved, 0.0),
    )
