"""Contract between gateways and what reads their rings: the last requests of one gateway, as numbers and keyed hashes.

`GET /record` on a gateway's inner port answers with one `RingPage` in MessagePack. Its rows are packed already, because
a gateway must not spend its event loop's time on encoding 50,000 objects; `decode` makes requests of them. No time in
it is one of a clock: all are ages, or count from the ring's start, whose age is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from math import isfinite
from typing import Annotated, Final

import msgspec

from fulcrum.api.admission_state import MOST_CLASSES, AdmissionState

PATH: Final = "/record"
CONTENT_TYPE: Final = "application/msgpack"
VERSION: Final = 1
MOST_BYTES: Final = 12 * 1024 * 1024
"""Most of an answer: a full ring (8 MiB) and 16,384 requests that are under way."""
MOST_ROWS: Final = 262_144
"""Most requests of an answer: twice what a full ring holds where no prompt has a prefix key."""
MOST_KEYS: Final = 64
"""Prefix keys of one request: enough for a prompt of 2 MiB."""
BY_NUMBER: Final = MOST_KEYS + 1
"""Depth at which neither keys nor the identity decide: requests are drawn by their number."""
_CROWD: Final = 64
"""What more than one of this many requests share (a system prompt) must not decide about all of them."""
_LOOKED_AT: Final = 8
"""Packs in which a crowd is looked for."""
MOST_TOKENS: Final = 0x7FFFFFFF
"""Most of a number of tokens or bytes; what engines report can be anything."""
SPREAD: Final = 0x9E3779B97F4A7C15
"""Spreads numbers in a row over 64 bits (2^64 divided by the golden ratio)."""
_FIRST_BIT: Final = 40
_WORD: Final = (1 << 64) - 1
MOST_PACKS: Final = 16_384
"""Most packs of an answer; a full ring has some hundred."""
MOST_HALVINGS: Final = 64
_ClassName = Annotated[str, msgspec.Meta(max_length=253)]
_Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class RecordError(ValueError):
    """An answer that is no ring, or one of another release; the message says what to do."""


class Outcome(IntEnum):
    """What became of a request."""

    SERVED = 0
    REJECTED = 1
    """Turned away without any work: 429, or 503 without a worker."""
    FAILED = 2
    """Broken off by a server's fault or a time-out."""
    LEFT = 3
    """Its client left before the end."""
    INVALID = 4
    """No cluster of this kind would serve it: 400, or every engine fails at it."""
    PENDING = 5
    """It is under way."""
    UNREAD = 6
    """Turned away before it was read, by a gateway whose connections are all taken: its lengths are unknown."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request as a ring packs it: an array of these fields."""

    arrival: float
    """Seconds since the ring's start."""
    duration: float
    ttft: float
    """Seconds; below 0: unknown."""
    retry_after: float
    """Seconds; below 0: none."""
    prompt_tokens: _Amount
    units: _Amount
    output_tokens: Annotated[int, msgspec.Meta(ge=-1, le=MOST_TOKENS)]
    """-1: unknown."""
    identity: int
    number: Annotated[int, msgspec.Meta(ge=0)]
    qos: Annotated[int, msgspec.Meta(ge=0)]
    outcome: Outcome
    keys: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_KEYS)]


class RingPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One gateway's ring."""

    version: int = VERSION
    age_of_start_seconds: float
    """Since the ring's start, from which arrivals are counted: the age of a request is this less its arrival."""
    covers_from_seconds: float
    """All requests that came since then (an age) are here, as far as they were sampled."""
    neighbour_left_seconds: float | None = None
    """Age of the last time that a gateway of the cluster went, and took its ring along; None: none has gone."""
    sampling_depths: Annotated[tuple[_Amount, ...], msgspec.Meta(max_length=MOST_HALVINGS)] = ()
    """Place of the prefix key that decided, for each halving."""
    classes: Annotated[tuple[_ClassName, ...], msgspec.Meta(max_length=MOST_CLASSES)] = ()
    batch: Annotated[tuple[bool, ...], msgspec.Meta(max_length=MOST_CLASSES)] = ()
    """Which of the classes are of kind Batch."""
    key_ends: Annotated[tuple[int, ...], msgspec.Meta(max_length=MOST_KEYS)] = ()
    """Length of each prefix of a prompt, in its units (bytes)."""
    admission: AdmissionState | None = None
    """What the gateway's admission has learnt, of these classes."""
    packed_rows: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=MOST_PACKS)] = ()
    """Requests in the order of their ends, and then those that are under way, each a part of `pack_rows`."""


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a ring."""

    age_seconds: float
    """Since it came."""
    duration_seconds: float
    """From then to its end; of one that is under way: so far."""
    outcome: Outcome
    qos_class: str
    batch: bool
    """Of a class of kind Batch: it fills what is idle, and is no load."""
    prompt_tokens: int
    output_tokens: int | None
    """In all where it was served, otherwise so far; None: unknown."""
    ttft_seconds: float | None
    retry_after_seconds: float
    """What it was told with a 429 or 503; 0: nothing."""
    identity: int
    """Equal prompts have equal ones (but for what follows the last prefix key of a long one)."""
    units: int
    """Length of the prompt in units; `key_ends` are in these, too."""
    number: int
    keys: tuple[int, ...]
    """Keys of its prefixes, shortest first; empty where gateways share no token."""

    @property
    def ended_age_seconds(self) -> float:
        """Since its end."""
        return self.age_seconds - self.duration_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first one; None where it cannot be known."""
        tokens = self.output_tokens
        if self.outcome is not Outcome.SERVED or self.ttft_seconds is None or tokens is None or tokens < 2:
            return None
        return (self.duration_seconds - self.ttft_seconds) / (tokens - 1)


def is_sampled(keys: Sequence[int], identity: int, number: int, depths: Sequence[int], begin: int = 0) -> bool:
    """Whether a request stays in a ring that was halved once for each of `depths`; those before `begin` are known."""
    for level in range(begin, len(depths)):
        if _draw(keys, identity, number, depths[level]) >> (_FIRST_BIT + level) & 1:
            return False
    return True


def _draw(keys: Sequence[int], identity: int, number: int, depth: int) -> int:
    """What decides about a request: the prefix key at the depth, so that a conversation stays whole, or goes.

    Shorter prompts have none there: their identity decides, so that a request that comes again goes with its first try.
    """
    if depth < len(keys):
        return keys[depth]
    return identity if identity and depth < BY_NUMBER else number * SPREAD & _WORD


def uncrowded_depth(packs: Sequence[bytes]) -> int:
    """The first depth at which nothing decides that a crowd shares, seen on some of these packs. Raises RecordError."""
    rows = [row for packed in packs[:: max(1, len(packs) // _LOOKED_AT)] for row in read_rows(packed)]
    longest = max([len(row.keys) for row in rows], default=0)
    for depth in range(longest + 1):
        there = Counter([_draw(row.keys, row.identity, row.number, depth) for row in rows])
        if max(there.values(), default=0) * _CROWD <= len(rows):
            return depth
    return BY_NUMBER


def sampling_rate(depths: Sequence[int]) -> float:
    """Share that is kept after these halvings, where no crowd came up since."""
    return 0.5 ** len(depths)


_PAGE: Final = msgspec.msgpack.Decoder(RingPage)
_ROWS: Final = msgspec.msgpack.Decoder(list[Row])
_ENCODE: Final = msgspec.msgpack.Encoder().encode
unpack_rows: Final = _ROWS.decode
"""Rows of a pack. Raises msgspec.DecodeError."""


def pack_rows(rows: Sequence[Row] | Sequence[tuple[float | int | tuple[int, ...], ...]]) -> bytes:
    """Pack rows, or tuples of their fields. Of `struct` each 64-bit key takes 100 ns, of this one 12."""
    return memoryview(_ENCODE(rows)).tobytes()  # a copy: behind what it returns an encoder leaves up to a half more


def read_page(body: bytes) -> RingPage:
    """A gateway's answer. Raises RecordError."""
    try:
        page = _PAGE.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordError(f"its answer is no ring: {error}") from None
    if page.version != VERSION:
        raise RecordError(f"its ring is of version {page.version}, and this release reads {VERSION}: use its release")
    ages = (page.age_of_start_seconds, page.covers_from_seconds, page.neighbour_left_seconds or 0.0)
    if not all(map(isfinite, ages)):
        raise RecordError("its ring has an age that is none")
    if page.admission is not None and len(page.admission.ttft_margins) != len(page.classes):
        raise RecordError("its ring has margins of other classes than its requests")
    return page


def read_rows(packed: bytes) -> list[Row]:
    """Requests of a pack. Raises RecordError."""
    try:
        return unpack_rows(packed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordError(f"its ring cannot be read: {error}") from None


def decode(
    page: RingPage, *, depths: Sequence[int] | None = None, older_by_seconds: float = 0.0
) -> list[RecordedRequest]:
    """The requests of a page, in the order of their ends; those that its sampling leaves out are not there.

    `depths`: halvings to go through, which begin with those of the page. `older_by_seconds`: how long ago the page was
    written. Raises RecordError.
    """
    depths = page.sampling_depths if depths is None else depths
    found: list[RecordedRequest] = []
    age_of_start_seconds, count = page.age_of_start_seconds + older_by_seconds, 0
    for packed in page.packed_rows:
        rows = read_rows(packed)
        count += len(rows)
        if count > MOST_ROWS:
            raise RecordError(f"its ring has more than {MOST_ROWS} requests")
        found += [
            _request(page, row, age_of_start_seconds - row.arrival)
            for row in rows
            if not depths or is_sampled(row.keys, row.identity, row.number, depths)
        ]
    return found


def _request(page: RingPage, row: Row, age_seconds: float) -> RecordedRequest:
    if row.qos >= len(page.classes) or not isfinite(row.arrival + row.duration + row.ttft + row.retry_after):
        raise RecordError("its ring does not fit together")
    return RecordedRequest(
        age_seconds=age_seconds,
        duration_seconds=row.duration,
        outcome=row.outcome,
        qos_class=page.classes[row.qos],
        batch=row.qos < len(page.batch) and page.batch[row.qos],
        prompt_tokens=row.prompt_tokens,
        output_tokens=None if row.output_tokens < 0 else row.output_tokens,
        ttft_seconds=None if row.ttft < 0 else row.ttft,
        retry_after_seconds=max(row.retry_after, 0.0),
        identity=row.identity,
        units=row.units,
        number=row.number,
        keys=row.keys,
    )
