"""A request: what is known when it arrives, the path that was found for it, where it stands once it was started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from fulcrum.routing.latency import HandOver
    from fulcrum.routing.worker import WorkerView

UNBOUNDED: Final = float("inf")

PREFILLING: Final = 0
DECODING: Final = 1
ENDED: Final = 2


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A request that asks for a path. Token counts may be estimates."""

    prompt_tokens: float
    output_tokens: float
    """Expected; never more than the client's `max_tokens`."""
    qos: int = 0
    """Index of its class in `ClusterView.class_names`."""
    ttft_seconds: float = UNBOUNDED
    """The promise for this request; taken together with the cluster's: the tighter one holds."""
    tpot_seconds: float = UNBOUNDED
    prefix: tuple[int, ...] = ()
    """Keys of the prompt's prefixes, shortest first (`affinity.prefix_keys`)."""
    units_per_token: float = 1.0
    """Units in which the affinity memory measures prefixes (bytes, or tokens), per token."""
    whole: bool = False
    """Two legs cannot carry it: prefill and decode on one worker."""
    exclude: frozenset[str] = frozenset()
    """Workers that already failed it."""


class Route(msgspec.Struct, frozen=True):
    """A path, and what is predicted for a request on it."""

    prefill: WorkerView
    decode: WorkerView
    """The same worker as `prefill`: the whole request goes there in one leg."""
    cached_tokens: float
    """Prompt tokens that the prefill worker is believed to hold."""
    wait_seconds: float
    """Until the prefill has its turn."""
    work_seconds: float
    """Prefill of what is not cached."""
    ttft_seconds: float
    hand_over: HandOver
    known: bool
    """The speeds of its workers are known; otherwise the figures only compare paths."""
    score: float

    @property
    def whole(self) -> bool:
        """One leg."""
        return self.prefill is self.decode

    @property
    def tpot_seconds(self) -> float:
        """Average over the request's life."""
        return self.hand_over.tpot_seconds

    @property
    def idle(self) -> bool:
        """Nothing is on its workers."""
        return self.prefill.idle and (self.prefill is self.decode or self.decode.idle)


class Flight:
    """A started request. Made by `ClusterView.start`, moved on by its other methods; read-only for everybody else."""

    __slots__ = (
        "decode",
        "joined_steps",
        "output_tokens",
        "phase",
        "prefill",
        "prefix",
        "prompt_tokens",
        "qos",
        "route",
        "share",
        "started_at",
        "tight_tpot_seconds",
        "ttft_seconds",
        "work_seconds",
    )

    def __init__(self, incoming: Incoming, route: Route, now_seconds: float) -> None:
        self.qos = incoming.qos
        self.prompt_tokens = incoming.prompt_tokens
        self.output_tokens = incoming.output_tokens
        self.prefix = incoming.prefix
        self.route = route
        self.prefill: WorkerView = route.prefill
        self.decode: WorkerView = route.decode
        self.work_seconds = route.work_seconds
        """Prefill time that it occupies, without waiting."""
        self.share = 0.0
        """Part of its decode worker's capacity that it takes, 0 to 1."""
        self.tight_tpot_seconds = incoming.tpot_seconds
        self.started_at = now_seconds
        self.ttft_seconds = route.ttft_seconds
        """Predicted; admission raises it when a later request is prefilled in the same step."""
        self.phase = PREFILLING
        self.joined_steps = 0.0
        """Decode steps of its worker at which its own output began."""

    @property
    def whole(self) -> bool:
        """Prefill and decode on one worker."""
        return self.prefill is self.decode
