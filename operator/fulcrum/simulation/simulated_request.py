"""One request under way, and what it needs of the workers that serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Final, Protocol

from fulcrum.capacity.speed import Speed
from fulcrum.simulation.workload import Workload

_CHUNK: Final = 65_536


class Leg(IntEnum):
    """What a worker is asked to do for a request."""

    WHOLE = 0
    PREFILL = 1
    DECODE = 2


class RequestWorker(Protocol):
    """A worker as the requests see it that it serves, or whose KV it holds (`worker.SimulatedWorker`)."""

    pod: str
    """Name of the worker."""
    name: str
    """The same, with its rank of data parallel where it has several."""
    pool: str
    speed: Speed
    prefill_legs: int
    """Prefill legs under way, as a gateway counts them."""
    decode_legs: int
    """Requests promised to or under way on this worker as their last leg."""
    stopped: bool

    @property
    def waiting(self) -> Iterable[SimulatedRequest]:
        """Requests that have not begun."""

    @property
    def batch(self) -> int:
        """Requests that decode."""

    @property
    def context_tokens(self) -> int:
        """Sum of their contexts."""

    def steps_until(self, now: float) -> int:
        """Decode steps that it has taken."""

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Take a request's leg."""

    def cancel(self, request: SimulatedRequest, now: float) -> None:
        """Drop a request that was sent here."""

    def loaded(self, request: SimulatedRequest, now: float) -> None:
        """The KV of a request has arrived."""

    def restored(self, request: SimulatedRequest, now: float) -> None:
        """The rest of a prompt's prefix is loaded."""

    def release(self, request: SimulatedRequest, now: float) -> None:
        """The KV that was held for a peer is no longer needed."""

    def kv_lost(self, request: SimulatedRequest) -> None:
        """The KV of a waiting request is gone before it was pulled."""

    def forget(self, request: SimulatedRequest, now: float) -> None:
        """The KV of a request that was on its way here will not come."""


class SimulatedRequest:
    """A request from its arrival to its end."""

    __slots__ = (
        "arrival_seconds",
        "attempts",
        "cached",
        "computed",
        "context",
        "decode",
        "done",
        "due",
        "event",
        "expected",
        "first_token_seconds",
        "held_by",
        "held_pins",
        "index",
        "joined_step",
        "lease_until",
        "left",
        "leg",
        "limit",
        "loading",
        "output",
        "pinned",
        "prefill",
        "prefill_seconds",
        "prefix_ids",
        "prompt",
        "qos_class",
        "restoring",
        "started_seconds",
        "tried",
    )  # fmt: skip

    def __init__(
        self,
        *,
        index: int,
        arrival_seconds: float,
        prompt: int,
        output: int,
        qos_class: str | None,
        prefix_ids: tuple[int, ...],
        due: Callable[[SimulatedRequest, float], None],
    ) -> None:
        self.index = index
        self.arrival_seconds = arrival_seconds
        self.prompt = prompt
        """Prompt tokens."""
        self.qos_class = qos_class
        self.prefix_ids = prefix_ids
        self.output = output
        """Output tokens. A policy that reads this knows the future."""
        self.due = due
        """What its next event (a hop, a transfer) does."""
        self.event = -1
        self.attempts = 0
        self.tried: tuple[str, ...] = ()
        """Workers that lost it."""
        self.leg = Leg.WHOLE
        self.prefill: RequestWorker | None = None
        self.decode: RequestWorker | None = None
        self.first_token_seconds = -1.0
        """Below 0 until it is known."""
        self.expected = 0.0
        """Output tokens that a gateway expects of it."""
        self.computed = 0
        """Prompt tokens that were computed for it, all attempts together."""
        self.restart()

    def restart(self) -> None:
        """Begin anew: nothing is computed, nothing is held."""
        self.context = self.prompt
        """Tokens that the next decode step attends to; while waiting for prefill, the tokens to prefill."""
        self.left = self.output
        """Tokens that are still to come, as of `joined_step`."""
        self.done = 0
        """Tokens of the prefill whose KV is there."""
        self.cached = 0
        """Tokens that the prefix cache of the worker had."""
        self.pinned = 0
        """Leading prefix ids in use on the worker."""
        self.limit: int | None = None
        """Tokens up to which it may be computed until the rest of its prefix is loaded; None: all of them."""
        self.restoring = 0
        """Tokens that are being loaded behind `limit`."""
        self.joined_step = -1
        """Below 0 while it does not decode."""
        self.started_seconds = 0.0
        self.prefill_seconds = 0.0
        """From its first chunk to the end of its last."""
        self.held_by: RequestWorker | None = None
        """The worker that keeps the prompt's KV until it is pulled."""
        self.held_pins = 0
        self.lease_until = 0.0
        self.loading = False

    def made_tokens(self, now: float) -> int:
        """Tokens of the answer so far, of one that has begun."""
        made = self.output - self.left
        if self.joined_step >= 0 and self.decode is not None:
            made += self.decode.steps_until(now) - self.joined_step
        return max(made, 1)

    def fire(self, now: float) -> None:
        """Its own event is due."""
        self.due(self, now)


def requests_of(workload: Workload, *, due: Callable[[SimulatedRequest, float], None]) -> Iterator[SimulatedRequest]:
    """Yield the requests in order of arrival; only a part of the columns is turned into objects at a time."""
    classes, ids = workload.classes, workload.prefix_ids
    for start in range(0, len(workload), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = zip(
            workload.arrival_seconds[part].tolist(),
            workload.prompt_tokens[part].tolist(),
            workload.output_tokens[part].tolist(),
            workload.qos_class[part].tolist(),
            strict=True,
        )
        for index, (arrival_seconds, prompt, output, qos_class) in enumerate(rows, start):
            yield SimulatedRequest(
                index=index,
                arrival_seconds=arrival_seconds,
                prompt=prompt,
                output=output,
                qos_class=classes[qos_class],
                prefix_ids=ids[index] if ids is not None else (),
                due=due,
            )
