"""A request that asks for a path, and the path that was found for it. Values only: they are made for each request."""

from __future__ import annotations

from enum import Enum
from math import inf

import msgspec

from fulcrum.routing.worker import WorkerView


class NoPath(Enum):
    """Why there is none."""

    NO_WORKER = "no worker is known at all: the cluster is empty, starting, or out of sight"
    NONE_FITS = "no worker can take this request now; later, or in a pool that has none yet, one can"
    NO_POOL = "no pool takes this request, now or later: it is too long for all, or admitted by none"


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A request that asks for a path. Token counts may be estimates."""

    prompt_tokens: float
    output_tokens: float
    """Expected; never more than the client's `max_tokens`."""
    qos: int = 0
    """Index of its class in `ClusterView.class_names`."""
    ttft_seconds: float = inf
    """The promise for this request; taken together with the cluster's: the tighter one holds."""
    tpot_seconds: float = inf
    prefix: tuple[int, ...] = ()
    """Keys of the prompt's prefixes, shortest first (`prefixes.prefix_keys`)."""
    units_per_token: float = 1.0
    """Units in which the affinity memory measures prefixes (bytes, or tokens), per token."""
    waited_seconds: float = 0.0
    """Since it was asked for: so much of its TTFT promise is gone."""
    whole: bool = False
    """Two legs cannot carry it: prefill and decode on one worker."""
    two_legs: bool = False
    """Prefill and decode on two workers, though one of them could do both sooner."""
    adapter: str = ""
    """LoRA adapter that it asks for; empty: the model itself."""
    exclude: frozenset[str] = frozenset()
    """Workers that already failed it."""


class HandOver(msgspec.Struct, frozen=True):
    """A decode worker with the new request in its batch."""

    step_seconds: float
    """One step at hand-over, all those promised to it included: what its residents will feel."""
    tpot_seconds: float
    """Average over the new request's life: some leave, others join, contexts grow."""
    kv_tokens: float
    """KV cache in use at its fullest: at hand-over, and half of what the others are yet to make."""
    context_tokens: float
    """KV cache that is asked for at hand-over."""
    slot_seconds: float
    """Wait for a place in the batch."""
    own_step_seconds: float
    """One step of the new request alone."""
    life_seconds: float
    """Mean time that its residents still stay."""


class Prefill(msgspec.Struct, frozen=True):
    """A prefill worker, and what is predicted for the prompt on it."""

    prefill: WorkerView
    cached_tokens: float
    """Prompt tokens that the worker need not compute: it is believed to hold them, or can load them."""
    wait_seconds: float
    """Until the prefill has its turn."""
    begun_seconds: float
    """Prefill of lower ranks ahead of it, which has begun and cannot be overtaken."""
    work_seconds: float
    """Prefill of what is not cached: what it takes of the worker's time."""
    own_seconds: float
    """From its turn to the end of its prefill."""
    loaded_tokens: float
    """Of `cached_tokens`, those that are loaded from host memory or the KV pool."""


class Route(Prefill, frozen=True):
    """A path, and what is predicted for a request on it."""

    decode: WorkerView
    """The same worker as `prefill`: the whole request goes there in one leg."""
    ttft_seconds: float
    hand_over: HandOver
    known: bool
    """The speeds of its workers are known; otherwise the figures only compare paths."""

    @property
    def whole(self) -> bool:
        """One leg."""
        return self.prefill is self.decode

    @property
    def tpot_seconds(self) -> float:
        """Average over the request's life."""
        return self.hand_over.tpot_seconds

    @property
    def slowest_seconds(self) -> float:
        """TPOT over the request's life or one step of all in its batch when it comes, whichever is longer."""
        return max(self.hand_over.step_seconds, self.hand_over.tpot_seconds)

    @property
    def idle(self) -> bool:
        """Nothing is on its workers; on other ranks of its prefill worker no prompt is, which its own would hold up."""
        lockstep = self.prefill.lockstep
        return (
            self.prefill.idle
            and (self.prefill is self.decode or self.decode.idle)
            and (lockstep is None or lockstep.idle)
        )
