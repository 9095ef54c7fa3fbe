"""How a prefix whose KV left the accelerator comes back soonest (KVPR, arXiv 2411.17089).

A prompt has `prompt_tokens`. The first `present_tokens` are in the KV cache, those up to `matched_tokens` can be loaded
over a link, the rest is new. Computing tokens x to y takes `C(x, y) = b (y - x) + c (y^2 - x^2)` with the fitted
`prefill_b` and `prefill_c`, and `prefill_a` for each engine step. Four ways, each with its time to the first token:

    none     W_gpu + a + C(d, n)                                              nothing is loaded
    load     max(W_link + L(m - d), W_gpu) + a + C(m, n)                      then only new tokens are computed
    front    max(W_link + L(m - s), W_gpu + a + C(d, s)) + a + C(m, n)        d to s is computed while s to m is loaded
    layers   layer k is computed when its KV is there; d to x is loaded, x to n is computed

The best split is where loading and computing end together, or at an end: each is the maximum of functions that have no
minimum of their own inside. Such a point is the root of a quadratic, rounded to the block on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import BLOCK_TOKENS, TransferCost


class How(StrEnum):
    """The way in which a prefix is restored."""

    NONE = "none"
    LOAD = "load"
    LAYERS = "layers"
    FRONT = "front"


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until the link and the accelerator are free for this request."""

    link_seconds: float = 0.0
    compute_seconds: float = 0.0


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on one prefix. `recompute_tokens + load_tokens` is the part of the match that was not present."""

    how: How
    recompute_tokens: int
    load_tokens: int
    predicted_seconds: float
    """From now to the first token: waits, restoring, and computing what is new."""


_NO_WAITS: Final = Waits()
_NONE, _LOAD, _FRONT = How.NONE, How.LOAD, How.FRONT
"""Looking up a member of an enum takes as long as a split's arithmetic, and admission asks for every worker."""


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    present: int
    matched: int
    prompt: int
    speed: SpeedCoefficients
    link: TransferCost
    waits: Waits
    block: int
    tail_seconds: float
    """What computing the new tokens takes, once the match is there."""

    def compute(self, start: int, end: int) -> float:
        return _compute_seconds(self.speed, start, end)

    def none(self) -> Restore:
        seconds = self.waits.compute_seconds + self.speed.prefill_a + self.compute(self.present, self.prompt)
        return self._restore(_NONE, self.matched - self.present, seconds)

    def front(self, split: int) -> Restore:
        """Compute present to `split` while `split` to matched is loaded; without a front it is a plain load."""
        loaded = self.waits.link_seconds + self.link.seconds(self.matched - split)
        computed = self.waits.compute_seconds
        if split > self.present:
            computed += self.speed.prefill_a + self.compute(self.present, split)
        seconds = max(loaded, computed) + self.tail_seconds
        return self._restore(_FRONT if split > self.present else _LOAD, split - self.present, seconds)

    def layerwise(self, split: int, layers: int) -> Restore:
        """Load present to `split` layer by layer while `split` to the end of the prompt is computed."""
        load = self.link.seconds(split - self.present)
        compute = self.speed.prefill_a + self.compute(split, self.prompt)
        begins = max(self.waits.compute_seconds, self.waits.link_seconds + load / layers)
        seconds = max(begins + compute, self.waits.link_seconds + load + compute / layers)
        return self._restore(How.LAYERS, self.matched - split, seconds)

    def blocks_beside(self, token: float) -> Iterator[int]:
        """Whole blocks on both sides of `token`, kept between present and matched."""
        below = math.floor(token / self.block) * self.block
        for candidate in (below, below + self.block):
            yield min(max(candidate, self.present), self.matched)

    def _restore(self, how: How, recompute: int, seconds: float) -> Restore:
        return Restore(
            how=how,
            recompute_tokens=recompute,
            load_tokens=self.matched - self.present - recompute,
            predicted_seconds=seconds,
        )


def _compute_seconds(speed: SpeedCoefficients, start: int, end: int) -> float:
    """C(start, end)."""
    return speed.prefill_b * (end - start) + speed.prefill_c * (end * end - start * start)


def restore(
    *,
    matched_tokens: int,
    prompt_tokens: int,
    speed: SpeedCoefficients,
    link: TransferCost,
    present_tokens: int = 0,
    waits: Waits = _NO_WAITS,
    within_seconds: float | None = None,
    layers: int | None = None,
    front: bool = True,
    block_tokens: int = BLOCK_TOKENS,
) -> Restore:
    """Return how to restore a prefix: never slower than the better of loading all of it and recomputing all of it.

    Args:
        matched_tokens: tokens of the prompt whose KV can be loaded, those present included; less than the prompt.
        prompt_tokens: length of the prompt.
        speed: what computing takes.
        link: what loading takes.
        present_tokens: tokens whose KV is in the cache already.
        waits: queues ahead of this request.
        within_seconds: the promise. Compute is shared, so of the ways that keep it the one that computes least is
            taken. None, or a promise that no way keeps: the quickest.
        layers: layers of the model where they may be loaded one by one, which holds up the whole batch; None: not.
        front: the engine can compute the front of a prefix while the rest of it is loaded.
        block_tokens: tokens of a KV block; splits are whole blocks, but for the ends.

    Raises:
        ValueError: the counts of tokens are not `0 <= present <= matched < prompt`.
    """
    if not 0 <= present_tokens <= matched_tokens < prompt_tokens:
        raise ValueError(
            f"present, matched and prompt tokens must be 0 <= present <= matched < prompt: "
            f"{present_tokens}, {matched_tokens}, {prompt_tokens}"
        )
    case = _Case(
        present=present_tokens,
        matched=matched_tokens,
        prompt=prompt_tokens,
        speed=speed,
        link=link,
        waits=waits,
        block=block_tokens,
        tail_seconds=speed.prefill_a + _compute_seconds(speed, matched_tokens, prompt_tokens),
    )
    recomputed = case.none()
    if present_tokens == matched_tokens:
        return recomputed
    loaded = case.front(present_tokens)
    quickest = min((recomputed, loaded, *_splits(case, layers, front=front)), key=_by_time)
    if within_seconds is None:
        return quickest
    alone = min(recomputed.predicted_seconds, loaded.predicted_seconds)
    bound = max(quickest.predicted_seconds, min(within_seconds, alone))
    frugal = [quickest, *_frugal(case, bound, quickest, layers, front=front)]
    return min((each for each in frugal if each.predicted_seconds <= bound), key=_by_compute)


def _by_time(way: Restore) -> tuple[float, int]:
    return way.predicted_seconds, way.recompute_tokens


def _by_compute(way: Restore) -> tuple[int, float]:
    return way.recompute_tokens, way.predicted_seconds


def _splits(case: _Case, layers: int | None, *, front: bool) -> Iterator[Restore]:
    """The blocks beside the points where loading and computing end together."""
    root = _front_root(case) if front else 0.0
    if root > case.present:
        for split in case.blocks_beside(root):
            # A front up to the end of the match loads nothing: that is `none`, in one step less.
            if split < case.matched:
                yield case.front(split)
    if layers is not None:
        for root in _layer_roots(case, layers):
            for split in case.blocks_beside(root):
                if split > case.present:
                    yield case.layerwise(split, layers)


def _front_root(case: _Case) -> float:
    """`s` with `W_link + L(m - s) = W_gpu + a + C(d, s)`."""
    b, c, rate = case.speed.prefill_b, case.speed.prefill_c, case.link.seconds_per_token
    d = case.present
    spare = case.waits.link_seconds + case.link.seconds(case.matched) - case.waits.compute_seconds
    return _root(c, b + rate, spare - case.speed.prefill_a + b * d + c * d * d)


def _layer_roots(case: _Case, layers: int) -> Iterable[float]:
    """Splits at which two of these three are equal, and both ends of the range.

    W_gpu + C(x, n),  W_link + load / layers + C(x, n),  W_link + load + C(x, n) / layers
    """
    b, c, rate = case.speed.prefill_b, case.speed.prefill_c, case.link.seconds_per_token
    whole = case.speed.prefill_a + b * case.prompt + c * case.prompt * case.prompt
    loaded_before = case.link.base_seconds - rate * case.present
    ahead = case.waits.link_seconds - case.waits.compute_seconds
    share = 1 - 1 / layers
    yield case.matched
    yield case.present + case.block
    yield _root(c, b + rate, whole - loaded_before)
    yield _root(share * c, share * b + rate, share * whole - loaded_before - ahead)
    yield _root(0.0, rate, -ahead * layers - loaded_before)


def _root(square: float, linear: float, constant: float) -> float:
    """The root >= 0 of `square x^2 + linear x = constant`, 0 where there is none; exact for small `square`, too."""
    if constant <= 0:
        return 0.0
    return 2 * constant / (linear + math.sqrt(linear * linear + 4 * square * constant)) if linear > 0 else math.inf


def _frugal(case: _Case, bound: float, quickest: Restore, layers: int | None, *, front: bool) -> Iterator[Restore]:
    """Ways that compute less than the quickest and may still end by `bound`."""
    rate = case.link.seconds_per_token
    if rate <= 0:
        return
    yield case.front(case.present)
    free = bound - case.waits.link_seconds - case.link.base_seconds
    if front:
        least = case.matched - (free - case.tail_seconds) / rate
        for split in case.blocks_beside(least):
            if split < case.matched:
                yield case.front(split)
    if layers is not None and quickest.how is How.LAYERS:
        # What is left to compute only shrinks when more is loaded, so this many tokens are there in time.
        held = case.speed.prefill_a + case.compute(case.present + quickest.load_tokens, case.prompt)
        for split in case.blocks_beside(case.present + (free - held / layers) / rate):
            if split > case.present:
                yield case.layerwise(split, layers)
