"""What a gateway's admission has learnt, as numbers: a copy that begins from it decides as that one does.

Part of a gateway's ring (`fulcrum.api.record`). Demand by class and saturation are not in it: both are of the last 20
seconds, which whoever plays requests plays first. Times are ages.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MOST_CLASSES: Final = 64
"""Most classes of one answer; a spec has at most 32."""
MOST_SAMPLES: Final = 1024
"""Most samples of a kind, and output lengths of a class; admission keeps 50, and 25."""
MOST_WORKERS: Final = 16_384
"""Most names of workers."""
_Share = Annotated[float, Meta(ge=0, le=1)]
_Age = Annotated[float, Meta(ge=0, le=1e9)]
_Count = Annotated[int, Meta(ge=0)]
_Index = Annotated[int, Meta(ge=0, lt=MOST_SAMPLES)]


class MarginState(msgspec.Struct, frozen=True, array_like=True):
    """Of one `Margin`."""

    factor: Annotated[float, Meta(ge=1, le=100)]
    error: _Share
    samples: _Count
    silence: _Count


class BusySample(msgspec.Struct, frozen=True, array_like=True):
    """A first token that came beside busy neighbours."""

    age_seconds: _Age
    slower: Annotated[float, Meta(ge=-1, le=1e9)]
    """By which share it came later than predicted."""
    busy: Annotated[int, Meta(ge=1, le=MOST_WORKERS)]


class MeanOutput(msgspec.Struct, frozen=True, array_like=True):
    """Answers of one class to prompts of one length."""

    qos: _Index
    doubling: _Index
    """Of the prompt's length."""
    ended: Annotated[int, Meta(ge=1)]
    tokens: Annotated[float, Meta(ge=0, le=1e9)]


class LayoutChange(msgspec.Struct, frozen=True, array_like=True):
    """Workers came to a kind of work, or left it."""

    age_seconds: _Age
    kept: _Share
    """How much of what was learnt before it holds."""


class LayoutState(msgspec.Struct, frozen=True, array_like=True):
    """Which workers do a kind of work, and what has changed in that."""

    workers: Annotated[tuple[Annotated[str, Meta(max_length=253)], ...], Meta(max_length=MOST_WORKERS)] | None
    """None: admission has not seen any yet."""
    changes: Annotated[tuple[LayoutChange, ...], Meta(max_length=MOST_SAMPLES)]
    """The oldest first."""


class AdmissionState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it."""

    ttft_margins: Annotated[tuple[MarginState, ...], Meta(min_length=1, max_length=MOST_CLASSES)]
    """By class."""
    tpot_margin: MarginState
    busy: Annotated[tuple[BusySample, ...], Meta(max_length=MOST_SAMPLES)]
    """The oldest first."""
    outputs: Annotated[tuple[MeanOutput, ...], Meta(max_length=MOST_CLASSES * 32)]
    prefilling: LayoutState
    decoding: LayoutState
