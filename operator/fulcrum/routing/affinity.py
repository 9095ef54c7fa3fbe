"""Which worker has which prompt prefix in its KV cache: a bounded memory of what was sent where."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from fulcrum.routing.prefixes import BYTE_ENDS
from fulcrum.routing.sent import MAX_BATCH_KEYS, Sent
from fulcrum.routing.tuning import TUNING

POOL: Final = 0
"""Stands for the KV pool that all workers share among the numbers of workers, which are above it."""


class _Segment:
    """Prefixes of one prompt, one longer than the other, that the same workers hold: a node of a radix tree.

    A key stands for all of a prefix, so a prompt that has the last key of a segment has all of them.
    """

    def __init__(self, before: _Segment | None, keys: tuple[int, ...]) -> None:
        self.before = before
        """What the prompt begins with."""
        self.keys: tuple[int, ...] = keys
        self.begin: int = 0 if before is None else before.begin + len(before.keys)
        """Number of shorter prefixes."""
        self.holders: dict[int, float] = {}
        """Workers by number, the latest last, and what each had been sent in all when it was sent this."""
        self.told = 0
        """Number of the group of other gateways that know these keys; 0: none."""


class AffinityMemory:
    """Prefix keys and the workers that hold them, at most `capacity` keys, least recently used first out.

    A holder is forgotten once it was sent more new tokens than its KV cache keeps. A prompt is recorded under all of
    its prefixes at once, so a worker that holds one of them holds the shorter ones, too. The KV pool (`POOL`) holds
    what any worker computed, as long as it has room.
    """

    def __init__(self, capacity: int = 65_536, ends: Sequence[int] = BYTE_ENDS) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self._ends = ends
        self._size = 0
        self._by_first: dict[int, _Segment] = {}
        self._by_last: dict[int, _Segment] = {}
        self._by_use: OrderedDict[_Segment, None] = OrderedDict()
        """The least recently used first; a segment comes before the one that it follows in its prompts."""
        self._sent: dict[int, float] = {}
        """Units of prompt that each worker was sent and did not hold, ever."""
        self._room: dict[int, float] = {}
        self._device_room: dict[int, float] = {}
        self._shares = False
        self._group = 1
        """Number of the present group of other gateways."""
        self._unshared: list[Sent] = []
        self._unshared_keys = 0

    def __len__(self) -> int:
        return self._size

    def join(self, worker: int, device_units: float, host_units: float = 0.0) -> None:
        """A worker (a number that is never reused) keeps so many units on its device and in its host memory."""
        self._sent.setdefault(worker, 0.0)
        self._device_room[worker] = device_units * TUNING.estimate_share
        self._room[worker] = self._device_room[worker] + host_units

    def leave(self, worker: int) -> None:
        """The worker is gone; its entries go when their keys get more holders than there are workers, or are old."""
        self._sent.pop(worker, None)
        self._room.pop(worker, None)
        self._device_room.pop(worker, None)

    def match(self, keys: Sequence[int]) -> tuple[int, list[int]]:
        """Longest prefix that a worker holds, in units, and its holders; (0, []) when there is none."""
        segment, known, _ = self._find(keys)
        while segment is not None:
            present: list[int] = []
            for worker, sent in reversed(segment.holders.items()):
                if worker != POOL and worker in self._sent and self._sent[worker] - sent <= self._room[worker]:
                    present.append(worker)
                    if len(present) == TUNING.most_holders:
                        break
            if present:
                return self._units(segment, known), present
            segment = segment.before
        return 0, []

    def held(self, keys: Sequence[int], worker: int) -> int:
        """Longest prefix that `worker` holds, in units."""
        return self._held(keys, worker, self._room.get(worker, 0.0))

    def on_device(self, keys: Sequence[int], worker: int) -> int:
        """Longest prefix that `worker` holds on its device, in units."""
        return self._held(keys, worker, self._device_room.get(worker, 0.0))

    def _held(self, keys: Sequence[int], worker: int, room: float) -> int:
        oldest = self._sent.get(worker, inf) - room
        segment, known, _ = self._find(keys)
        while segment is not None:
            if segment.holders.get(worker, -inf) >= oldest:
                return self._units(segment, known)
            segment = segment.before
        return 0

    def record(self, keys: tuple[int, ...], worker: int, new_units: float, computed_units: float) -> None:
        """`worker` was sent a prompt with these prefixes.

        `new_units` of it are not on its device, of which it computes `computed_units` and loads the rest.
        """
        last = self._put(keys, None)
        if last is None:
            return
        if self._shares and self._unshared_keys + len(keys) <= MAX_BATCH_KEYS:
            known, news = self._tell(last, keys)
            self._unshared_keys += len(news) + 1
            self._unshared.append(Sent(worker, max(int(new_units), 0), max(int(computed_units), 0), known, news))
        self._hold(last, worker, new_units, computed_units)

    def learn(self, numbers: Mapping[int, int], batch: Sequence[Sent]) -> None:
        """Another gateway sent this: like `record`, and not told on.

        `numbers` are those of the workers here, by the other gateway's. Of workers that are not known here only the
        keys are kept, as the other gateway does not tell them again.
        """
        for sent in batch:
            last: _Segment | None = None
            keys = sent.keys
            if sent.known:
                last, keys = self._by_last.get(keys[0]), keys[1:]
                if last is None:
                    continue  # It was lost, or forgotten.
            last = self._put(keys, last)
            if last is not None:
                self._tell(last, ())
                self._hold(last, numbers.get(sent.worker), sent.new_units, sent.computed_units)

    def share(self, *, others: bool) -> None:
        """Other gateways came or went, or missed a message: with `others`, keep what is sent from now on.

        One that came knows nothing yet, so each prefix is told once more when it is sent again.
        """
        self._shares = others
        self._group += 1
        if not others:
            self.take_sent()

    def take_sent(self) -> list[Sent]:
        """What was sent since the last time; what is more than `MAX_BATCH_KEYS` keys is left out."""
        taken, self._unshared, self._unshared_keys = self._unshared, [], 0
        return taken

    def _find(self, keys: Sequence[int], last: _Segment | None = None) -> tuple[_Segment | None, int, int]:
        """The last segment that has one of `keys`, how many of them are known, and how many keys it has up to there.

        The first of `keys` comes behind those of `last`.
        """
        known, inside = 0, 0 if last is None else len(last.keys)
        count = min(len(keys), len(self._ends))
        while known < count:
            segment = self._by_first.get(keys[known])
            if segment is None or segment.before is not last:
                break
            last, own = segment, segment.keys
            inside = len(own)
            if known + inside > count or keys[known + inside - 1] != own[-1]:
                inside, high = 1, min(inside, count - known)
                while inside < high:
                    middle = (inside + high + 1) // 2
                    if own[middle - 1] == keys[known + middle - 1]:
                        inside = middle
                    else:
                        high = middle - 1
                return last, known + inside, inside
            known += inside
        return last, known, inside

    def _units(self, segment: _Segment, known: int) -> int:
        """Length of what `known` keys and a segment have in common."""
        return self._ends[min(known, segment.begin + len(segment.keys)) - 1]

    def _put(self, keys: tuple[int, ...], before: _Segment | None) -> _Segment | None:
        """The segment that ends with the last of `keys`, which go on behind `before`."""
        segment, known, inside = self._find(keys, before)
        if segment is not None and inside < len(segment.keys):
            segment = self._split(segment, inside)
        new = keys[known : len(self._ends)]
        return self._add(segment, new) if new else segment

    def _split(self, segment: _Segment, count: int) -> _Segment:
        """The first `count` keys of a segment get one of their own. No other gateway knows that it ends there."""
        first = self._add(segment.before, segment.keys[:count])
        self._size -= count
        first.holders = segment.holders.copy()
        segment.before, segment.begin, segment.keys = first, first.begin + count, segment.keys[count:]
        self._by_first[segment.keys[0]] = segment
        return first

    def _add(self, before: _Segment | None, keys: tuple[int, ...]) -> _Segment:
        segment = _Segment(before, keys)
        self._by_first[keys[0]] = self._by_last[keys[-1]] = segment
        self._by_use[segment] = None
        self._size += len(keys)
        return segment

    def _tell(self, last: _Segment, keys: tuple[int, ...]) -> tuple[bool, tuple[int, ...]]:
        """All others know the prompt that ends with `last` from now on.

        Returns those of its keys that they did not know, behind the last one that they did, if any.
        """
        segment: _Segment | None = last
        while segment is not None and segment.told != self._group:
            segment.told = self._group
            segment = segment.before
        begin = 0 if segment is None else segment.begin + len(segment.keys) - 1
        return segment is not None, keys[begin : len(self._ends)]

    def _hold(self, last: _Segment, worker: int | None, new_units: float, computed_units: float) -> None:
        total = self._sent
        if worker is not None and worker in total:
            total[worker] += new_units
            if POOL in total:
                total[POOL] += computed_units
        # The last first, so that the shorter prefixes are younger and a prompt is forgotten from its end.
        segment: _Segment | None = last
        while segment is not None:
            self._by_use.move_to_end(segment)
            if worker is not None and worker in total:
                holders = segment.holders
                holders.pop(worker, None)
                if len(holders) >= len(total):
                    for gone in [other for other in holders if other not in total]:
                        del holders[gone]
                holders[worker] = total[worker]
                if POOL in total:
                    holders[POOL] = total[POOL]
            segment = segment.before
        while self._size > self.capacity:
            self._shorten(next(iter(self._by_use)), self._size - self.capacity)

    def _shorten(self, segment: _Segment, count: int) -> None:
        """Forget the last `count` keys of a segment that none follows, or all of them."""
        keys, kept = segment.keys, segment.keys[:-count]
        self._size -= len(keys) - len(kept)
        if self._by_last.get(keys[-1]) is segment:
            del self._by_last[keys[-1]]
        if kept:
            segment.keys, segment.told = kept, 0
            self._by_last[kept[-1]] = segment
        else:
            del self._by_use[segment]
            if self._by_first.get(keys[0]) is segment:
                del self._by_first[keys[0]]
