"""What is under way in a cluster as one gateway (or the simulator) knows it, kept up to date event by event. Pure.

A request goes through three phases (`Flight.phase`); an event that is not listed for its phase changes nothing:

| event | phase before | phase after | what changes |
|---|---|---|---|
| `start` | | prefilling | queued at the prefill worker, promised to the decode worker |
| `expect_first_token` | prefilling | prefilling | its first token comes at that time, unless it is heard of before |
| the time of that token passes | prefilling | decoding | moves to the decode worker; nothing is learnt about speeds |
| `prefill_done` | prefilling | decoding | moves to the decode worker; the prefill's speed is learnt |
| `answered` | prefilling | decoding | as `prefill_done`, at the share of its time that was predicted for the prefill |
| `pulled` | decoding | decoding | its KV has arrived: the transfer's speed is learnt |
| `given_up` | prefilling | prefilling | its prefill is overdue: that is learnt |
| `finish` | any but ended | ended | taken off both workers |

Every function that takes the time first lets the expected first tokens come that are due until then.

What changes the workers themselves is told to `ClusterView.workers` (`worker_set`), but for what they `report`. `tick`
now and then lets time-outs pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.serving_types import Slo
from fulcrum.api.worker import LoadReport
from fulcrum.routing.affinity import AffinityMemory
from fulcrum.routing.flight import DECODING, ENDED, PREFILLING, Flight
from fulcrum.routing.foreign import take_report
from fulcrum.routing.kv_routes import KvRoutes
from fulcrum.routing.path import Incoming, Route
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.timing import StepTimes
from fulcrum.routing.transfers import Transfers
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView
from fulcrum.routing.worker_set import WorkerSet

DEFAULT_TTFT_SECONDS: Final = seconds(Slo().ttft)
DEFAULT_TPOT_SECONDS: Final = seconds(Slo().tpot)


class ClusterView:
    """Workers, what is under way on them, and which of them holds which prefix."""

    def __init__(
        self,
        *,
        class_names: Sequence[str] = ("default",),
        ranks: Sequence[int] = (),
        batch: Sequence[bool] = (),
        ttft_seconds: float = DEFAULT_TTFT_SECONDS,
        tpot_seconds: float = DEFAULT_TPOT_SECONDS,
        affinity: AffinityMemory | None = None,
        units_per_token: float = TUNING.bytes_per_token,
    ) -> None:
        self.class_names = tuple(class_names)
        self.ranks = tuple(ranks) or (0,) * len(self.class_names)
        """By class: in which order engines prefill what waits; 0 comes first. Default: first come, first served."""
        self.batch_classes = tuple(batch) or (False,) * len(self.class_names)
        """By class: whether it gets only what is idle, and makes way."""
        self.batch: dict[Flight, None] = {}
        """What is under way of these, in the order of its start."""
        # Not `or`: a memory that is empty is false.
        self.affinity = AffinityMemory() if affinity is None else affinity
        self.units_per_token = units_per_token
        """Units of the affinity memory per token, as a guess of how much of them a KV cache holds."""
        self.workers = WorkerSet(
            class_names=self.class_names, ranks=self.ranks, affinity=self.affinity, units_per_token=units_per_token
        )
        self.steps = StepTimes()
        """How long the workers' steps took, to keep their speeds up to date."""
        self.transfers = Transfers()
        self.ttft_seconds = ttft_seconds
        self.tpot_seconds = tpot_seconds
        self.kv_routes = KvRoutes()
        self.prefill_use = [0.0] * len(self.class_names)
        """Seconds of queued prefill, by class."""
        self.decode_use = [0.0] * len(self.class_names)
        """Shares of the longest decode steps that are promised or in use, by class."""
        self.mean_prompt_tokens = self.mean_prompt_square = 0.0
        self.usual_ttft_seconds = 0.0
        """Predicted, the mean of those started lately, at most as promised. All hand-overs are predicted for so long
        after the arrival: if each were for its own time, long prompts would get the room that others leave until then,
        and shorter ones that come later none."""
        self.step_limit_seconds = 0.0
        """Predicted decode step up to which admission lets requests in now; 0 where it does not predict."""
        self.prefilling: dict[RequestLoad, Flight] = {}
        """Requests that wait for their prefill or are in it, by what their workers know of them."""
        self.decoding: dict[Flight, None] = {}
        """Requests whose answers are being made, in the order in which they began."""
        self._started = 0
        self._expected: list[tuple[float, int, Flight]] = []
        """First tokens of which nothing is heard, by when they are due. A timer for each would cost a twentieth of a
        request."""
        self._expectations = 0

    def pass_time(self, now_seconds: float) -> None:
        """It is so late: the expected first tokens that are due have come."""
        expected = self._expected
        while expected and expected[0][0] <= now_seconds:
            at_seconds, _, flight = heappop(expected)
            self._prefill_done(flight, at_seconds, None, seen=False)

    def tick(self, now_seconds: float) -> list[WorkerView]:
        """Time went by: call it a few times a second. Workers that are left alone from now on, as outliers."""
        self.pass_time(now_seconds)
        return self.workers.tick(now_seconds)

    def report(self, name: str, load: LoadReport, now_seconds: float) -> None:
        """A worker's own report: what it has beyond what was started here came from other gateways."""
        self.pass_time(now_seconds)
        mean = self.mean_prompt_tokens
        cv2 = self.mean_prompt_square / mean**2 - 1 if mean else 0.0
        views = self.workers.of_worker.get(name, ())
        for rank, view in enumerate(views):
            take_report(
                view,
                load.of_rank(rank, len(views)),
                now_seconds,
                mean_prompt_tokens=mean,
                cv2=cv2,
                tpot_seconds=self.tpot_seconds,
            )

    def start(self, incoming: Incoming, route: Route, now_seconds: float) -> Flight:
        """The request is sent on its way."""
        self.pass_time(now_seconds)
        flight = Flight(incoming, route, now_seconds, batch=self.batch_classes[incoming.qos])
        load = flight.load
        if load.batch:
            self.batch[flight] = None
        self.transfers.forget(now_seconds)
        prefill, decode = flight.prefill, flight.decode
        tokens = incoming.prompt_tokens, incoming.output_tokens
        if prefill is not decode:
            self.kv_routes.sent(prefill.pool, decode.pool)
        flight.step_limit_seconds = self.step_limit_seconds
        flight.busy_neighbours = self.workers.busy_neighbours(prefill)
        load.share = decode.engine.share_of(*tokens, self.tpot_seconds)
        load.step_share = decode.engine.step_share_of(*tokens, self.tpot_seconds)
        if not prefill.prompts.legs:
            self.steps.starts(prefill, now_seconds)
        self._started += 1
        self.prefilling[load] = flight
        prefill.queue(load, now_seconds)
        decode.answers.promise(load)
        prefill.take_turn(self._started)
        decode.take_turn(self._started)
        self.prefill_use[load.qos] += load.work_seconds
        self.decode_use[load.qos] += load.step_share
        rate = 1 / min(self._started, TUNING.recent_requests)
        self.mean_prompt_tokens += rate * (incoming.prompt_tokens - self.mean_prompt_tokens)
        self.mean_prompt_square += rate * (incoming.prompt_tokens**2 - self.mean_prompt_square)
        if not load.batch:
            self.usual_ttft_seconds += rate * (min(route.ttft_seconds, self.ttft_seconds) - self.usual_ttft_seconds)
        self.workers.taken(flight, now_seconds)
        if flight.prefix:
            computed = (incoming.prompt_tokens - route.cached_tokens) * incoming.units_per_token
            new = computed + route.loaded_tokens * incoming.units_per_token
            self.affinity.record(flight.prefix, prefill.index, new, computed)
        return flight

    def prefill_done(
        self, flight: Flight, now_seconds: float, *, prompt_tokens: float | None = None, seen: bool = True
    ) -> None:
        """The prefill leg was answered, or the first token of a whole request came; with `prompt_tokens` if known.

        `seen` is false where that time says nothing about speeds: none is learnt then.
        """
        self.pass_time(now_seconds)
        self._prefill_done(flight, now_seconds, prompt_tokens, seen=seen)

    def expect_first_token(self, flight: Flight, at_seconds: float) -> None:
        """Its answer comes as one, so that nothing is heard of its first token, which is due then."""
        self._expectations += 1
        heappush(self._expected, (at_seconds, self._expectations, flight))

    def answered(self, flight: Flight, now_seconds: float, *, later_seconds: float) -> None:
        """Its whole answer came. `later_seconds`: predicted for the tokens after the first.

        Where that was before its first token was expected, it is not known how wrong prefill and decode were each. So
        the time that it took is divided between them as predicted.
        """
        self.pass_time(now_seconds)
        ttft_seconds = flight.route.ttft_seconds
        if flight.phase == PREFILLING:
            share = ttft_seconds / (ttft_seconds + later_seconds)
            self._prefill_done(
                flight, flight.load.started_at + share * (now_seconds - flight.load.started_at), None, seen=True
            )

    def _prefill_done(self, flight: Flight, now_seconds: float, prompt_tokens: float | None, *, seen: bool) -> None:
        if flight.phase != PREFILLING:
            return
        flight.phase = DECODING
        decode = flight.decode
        if seen:
            self.steps.answered(flight, now_seconds)
        else:
            self.steps.broken_off(flight.prefill, now_seconds)
        self._prefill_ended(flight, now_seconds, done=True)
        if prompt_tokens is not None:
            flight.load.prompt_tokens = prompt_tokens
        decode.join(flight.load, now_seconds)
        self.decoding[flight] = None
        if decode is flight.prefill:
            return
        new_tokens = flight.load.prompt_tokens
        if flight.prefix:
            # The KV that it pulled stays with it, too.
            held = self.affinity.on_device(flight.prefix, decode.index)
            new = max(flight.load.prompt_tokens * self.units_per_token - held, 0.0)
            self.affinity.record(flight.prefix, decode.index, new, 0.0)
            new_tokens = new / self.units_per_token
        if seen:
            self.transfers.begin(flight, max(new_tokens, 1.0), now_seconds)

    def pulled(self, flight: Flight, now_seconds: float) -> None:
        """The first event of its decode leg came: its KV is there."""
        self.pass_time(now_seconds)
        if flight.phase == DECODING:
            self.transfers.ended(flight, now_seconds)

    def given_up(self, flight: Flight, now_seconds: float) -> None:
        """Its prefill took so long that another worker is asked; `finish` comes next."""
        self.pass_time(now_seconds)
        if flight.phase == PREFILLING:
            self.steps.overdue(flight, now_seconds)

    def finish(self, flight: Flight, now_seconds: float) -> None:
        """The request is over, for whatever cause and from any stage; a second time does nothing."""
        self.pass_time(now_seconds)
        if flight.phase == ENDED:
            return
        decode = flight.decode
        if flight.phase == PREFILLING:
            self.steps.broken_off(flight.prefill, now_seconds)
            self._prefill_ended(flight, now_seconds, done=False)
        else:
            decode.answers.leave(flight.load, now_seconds)
            del self.decoding[flight]
        flight.phase = ENDED
        if flight.load.batch:
            del self.batch[flight]
        if flight.pulled_tokens:
            self.transfers.drop(flight)
        decode.release(flight.load)
        self.decode_use[flight.load.qos] = max(self.decode_use[flight.load.qos] - flight.load.step_share, 0.0)

    def _prefill_ended(self, flight: Flight, now_seconds: float, *, done: bool) -> None:
        load = flight.load
        del self.prefilling[load]
        flight.prefill.unqueue(load, now_seconds, done=done)
        self.prefill_use[load.qos] = max(self.prefill_use[load.qos] - load.work_seconds, 0.0)
        flight.decode.answers.unpromise(load)
