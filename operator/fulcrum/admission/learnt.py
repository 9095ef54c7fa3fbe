"""What became of predictions, and what is made of it for the next ones."""

from __future__ import annotations

from typing import Final

from fulcrum.admission.layout_memory import LayoutMemory
from fulcrum.admission.margin import Margin
from fulcrum.admission.neighbours import NeighbourSlowdown
from fulcrum.admission.outputs import OutputLengths
from fulcrum.api.admission_state import AdmissionState
from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, Flight, Route

# Looking up a member of an enum costs half a microsecond.
_PREFILL: Final = Role.PREFILL
_DECODE: Final = Role.DECODE


class Learnt:
    """Margins, lengths of answers, and how much busy neighbours slow a worker down."""

    def __init__(self, classes: int, *, ttft_seconds: float, tpot_seconds: float, attainment: float) -> None:
        """Know nothing yet; what is promised to all of so many classes."""
        self.ttft_seconds = ttft_seconds
        self.tpot_seconds = tpot_seconds
        self.outputs = OutputLengths(classes)
        self.ttft_margins = [Margin(attainment) for _ in range(classes)]
        """By class: engines prefill them in order, so that what comes later makes the lower ones later alone."""
        # A batch with too long steps is late for all requests in it, so it must be rarer: as if two came late at once.
        self.tpot_margin = Margin(1 - (1 - attainment) ** 2)
        self.neighbours = NeighbourSlowdown()
        self.prefilling, self.decoding = LayoutMemory(), LayoutMemory()

    def learn(
        self,
        flight: Flight,
        *,
        ttft_seconds: float | None = None,
        tpot_seconds: float | None = None,
        output_tokens: float | None = None,
    ) -> None:
        """A request was served: what became of its predictions. Leave out what is not known."""
        found = flight.route
        if output_tokens is not None and output_tokens > 0:
            self.outputs.learn(flight.load.qos, flight.load.prompt_tokens, output_tokens)
        if not found.known or flight.load.batch:
            return
        # A worker that flipped meanwhile did two things at once; that says nothing about the next request.
        if ttft_seconds is not None and (found.whole or flight.prefill.role is not _DECODE):
            # What busy neighbours explain is no error of the prediction: both would be taken off the same promise.
            slower = self.neighbours.factor(flight.busy_neighbours, flight.load.started_at)
            # Its wait at the gateway was no prediction.
            waited_seconds = flight.waited_seconds
            predicted_seconds = slower * (flight.load.ttft_seconds - waited_seconds)
            ttft_seconds = max(ttft_seconds - waited_seconds, 0.0)
            # Where it had to wait, requests before it may have been mispredicted, and not its worker.
            if found.wait_seconds <= 0 and found.hand_over.slot_seconds <= 0:
                self.neighbours.learn(
                    slower * ttft_seconds / predicted_seconds, flight.busy_neighbours, flight.load.started_at
                )
            self.ttft_margins[flight.load.qos].learn(
                predicted_seconds,
                ttft_seconds,
                self.ttft_seconds - waited_seconds,
                weight=self.prefilling.kept_since(flight.load.started_at),
            )
        if tpot_seconds is not None and (found.whole or flight.decode.role is not _PREFILL):
            # Later requests joined its batch, up to the limit of that time; what no batch can change is left out.
            least_seconds = flight.decode.engine.least_step
            limit_seconds = max(found.hand_over.step_seconds, flight.step_limit_seconds)
            # What was predicted is not above its shortest step only where the worker was measured again meanwhile. That
            # speed is given up already, so how wrong it was says nothing about the next prediction.
            if min(found.tpot_seconds, limit_seconds) > least_seconds:
                self.tpot_margin.learn(
                    found.tpot_seconds - least_seconds,
                    tpot_seconds - least_seconds,
                    self.tpot_seconds - least_seconds,
                    limit_seconds=limit_seconds - least_seconds,
                    weight=self.decoding.kept_since(flight.load.started_at),
                )

    def forget(self, view: ClusterView, now_seconds: float) -> None:
        """Keep what was learnt of the workers that still do what they did."""
        kept = self.prefilling.kept(view.workers.prefilling, now_seconds)
        if kept < 1.0:
            for margin in self.ttft_margins:
                margin.keep(kept)
        kept = self.decoding.kept(view.workers.decoding, now_seconds)
        if kept < 1.0:
            self.tpot_margin.keep(kept)

    def slower(self, found: Route, view: ClusterView, now_seconds: float) -> float:
        """How many times longer than predicted it takes, because workers that share its hardware are busy."""
        if not self.neighbours.per_neighbour:
            return 1.0
        return self.neighbours.factor(view.workers.busy_neighbours(found.prefill), now_seconds)

    def state(self, now_seconds: float) -> AdmissionState:
        """Return what a copy begins from; `now_seconds` on the clock that decisions are asked for with."""
        return AdmissionState(
            ttft_margins=tuple([margin.state() for margin in self.ttft_margins]),
            tpot_margin=self.tpot_margin.state(),
            busy=self.neighbours.state(now_seconds),
            outputs=self.outputs.state(),
            prefilling=self.prefilling.state(now_seconds),
            decoding=self.decoding.state(now_seconds),
        )

    def begin_with(self, state: AdmissionState, now_seconds: float) -> None:
        """Go on from what another one of the same classes had learnt at `now_seconds`; what this one had is gone.

        Raises ValueError where the classes are others.
        """
        if len(state.ttft_margins) != len(self.ttft_margins):
            raise ValueError(f"it is of {len(state.ttft_margins)} classes, and here are {len(self.ttft_margins)}")
        for margin, of_class in zip(self.ttft_margins, state.ttft_margins, strict=True):
            margin.begin_with(of_class)
        self.tpot_margin.begin_with(state.tpot_margin)
        self.neighbours.begin_with(state.busy, now_seconds)
        self.outputs.begin_with(state.outputs)
        self.prefilling.begin_with(state.prefilling, now_seconds)
        self.decoding.begin_with(state.decoding, now_seconds)
