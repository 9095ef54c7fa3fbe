"""Which worker has which prompt prefix in its KV cache: a bounded memory of what was sent where."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import Final

from xxhash import xxh3_64_intdigest

from fulcrum.routing.sharing import MAX_BATCH_KEYS, MAX_PROMPT_KEYS, Sent
from fulcrum.routing.tuning import TUNING

POOL: Final = 0
"""Stands for the KV pool that all workers share among the numbers of workers, which are above it."""


def _byte_ends() -> tuple[int, ...]:
    # A long prompt has few keys.
    count = TUNING.prefixes_per_doubling
    ends = [TUNING.first_prefix_bytes * (number + 1) for number in range(count)]
    while len(ends) <= MAX_PROMPT_KEYS - count:
        base, step = ends[-1], ends[-1] // count
        ends.extend(base + step * (number + 1) for number in range(count))
    return tuple(ends)


BYTE_ENDS: Final = _byte_ends()
"""Prefix lengths in bytes at which prompts are compared: as many as a message between gateways can carry."""


def token_ends(block_tokens: int, blocks: int) -> tuple[int, ...]:
    """Prefix lengths in tokens for keys that come with a trace: one per block of `block_tokens`."""
    return tuple(block_tokens * (number + 1) for number in range(blocks))


def prefix_keys(prompt: bytes, seed: int, before: bytes = b"") -> tuple[int, ...]:
    """Keys of `prompt`'s prefixes at `BYTE_ENDS`, shortest first.

    Equal prefixes behind an equal `before` have equal keys under one `seed`, a secret of 64 bits. XXH3 takes a third of
    the time of Python's own hash; it is no cryptographic one, and what a collision does is a wrong guess of what a
    worker holds.
    """
    size = len(prompt)
    keys = []
    key = xxh3_64_intdigest(before, seed) if before else seed
    begin = 0
    for end in BYTE_ENDS:
        if end > size:
            break
        key = xxh3_64_intdigest(prompt[begin:end], key)
        keys.append(key)
        begin = end
    return tuple(keys)


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
        self._holders: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._sent: dict[int, float] = {}
        """Units of prompt that each worker was sent and did not hold, ever."""
        self._room: dict[int, float] = {}
        self._device_room: dict[int, float] = {}
        self._shares = False
        self._unshared: list[Sent] = []
        self._unshared_keys = 0
        self._shared_from: dict[int, float] = {}
        """By worker: what was last sent when it had been sent no more than this is news to some other gateway."""

    def __len__(self) -> int:
        return len(self._holders)

    def join(self, worker: int, device_units: float, host_units: float = 0.0) -> None:
        """A worker (a number that is never reused) keeps prefixes on its device and in its host memory.

        Sizes are in the units of `ends`.
        """
        self._sent.setdefault(worker, 0.0)
        self._device_room[worker] = device_units * TUNING.resident
        self._room[worker] = self._device_room[worker] + host_units

    def leave(self, worker: int) -> None:
        """The worker is gone; its entries go when their keys get more holders than there are workers, or are old."""
        self._sent.pop(worker, None)
        self._room.pop(worker, None)
        self._device_room.pop(worker, None)
        self._shared_from.pop(worker, None)

    def match(self, keys: Sequence[int]) -> tuple[int, list[int]]:
        """Longest prefix that a worker holds, in units, and its holders; (0, []) when there is none."""
        holders = self._holders
        # Keys live longer the shorter their prefix (see `record`), so those that are there come first.
        low = bisect_left(keys, True, hi=min(len(keys), len(self._ends)), key=lambda key: key not in holders)
        while low:
            latest = reversed(holders[keys[low - 1]].items())
            present = list(
                islice(
                    (worker for worker, sent in latest if worker != POOL and self._resident(worker, sent)),
                    TUNING.most_holders,
                )
            )
            if present:
                return self._ends[low - 1], present
            low -= 1
            while low and keys[low - 1] not in holders:
                low -= 1
        return 0, []

    def held(self, keys: Sequence[int], worker: int) -> int:
        """Longest prefix that `worker` holds, in units."""
        return self._held(keys, worker, self._room.get(worker, 0.0))

    def on_device(self, keys: Sequence[int], worker: int) -> int:
        """Longest prefix that `worker` holds on its device, in units."""
        return self._held(keys, worker, self._device_room.get(worker, 0.0))

    def _held(self, keys: Sequence[int], worker: int, room: float) -> int:
        holders, oldest = self._holders, self._sent.get(worker, inf) - room

        def gone(key: int) -> bool:
            entry = holders.get(key)
            return entry is None or entry.get(worker, -inf) < oldest

        count = bisect_left(keys, True, hi=min(len(keys), len(self._ends)), key=gone)
        return self._ends[count - 1] if count else 0

    def record(self, keys: Sequence[int], worker: int, new_units: float, computed_units: float) -> None:
        """`worker` was sent a prompt with these prefixes.

        `new_units` of it are not on its device, of which it computes `computed_units` and loads the rest.
        """
        total = self._sent.get(worker)
        if total is None:
            return
        if not self._shares:
            self._hold(keys, worker, new_units, computed_units)
            return
        news_before = max(self._shared_from.get(worker, 0.0), total - self._room[worker])
        news = tuple(key for key in keys if self._held_since(key, worker) <= news_before)
        self._hold(keys, worker, new_units, computed_units)
        if self._unshared_keys + len(news) <= MAX_BATCH_KEYS:
            self._unshared_keys += len(news) + 1
            self._unshared.append(Sent(worker, max(int(new_units), 0), max(int(computed_units), 0), news))

    def learn(self, keys: Sequence[int], worker: int, new_units: float, computed_units: float) -> None:
        """Another gateway sent `worker` a prompt: like `record`, and not told on."""
        if worker in self._sent:
            self._hold(keys, worker, new_units, computed_units)

    def share(self, *, others: bool) -> None:
        """Other gateways came or went: with `others`, keep what is sent from now on for `take_sent`.

        One that came knows nothing yet, so each prefix is told once more when it is sent again.
        """
        self._shares = others
        self._shared_from = dict(self._sent) if others else {}
        if not others:
            self.take_sent()

    def take_sent(self) -> list[Sent]:
        """What was sent since the last time; what is more than `MAX_BATCH_KEYS` keys is left out.

        Of each prompt there are the keys that its worker did not hold before. Other gateways know the rest.
        """
        taken, self._unshared, self._unshared_keys = self._unshared, [], 0
        return taken

    def _hold(self, keys: Sequence[int], worker: int, new_units: float, computed_units: float) -> None:
        sent = self._sent[worker] = self._sent[worker] + new_units
        pooled = self._sent.get(POOL)
        if pooled is not None:
            pooled = self._sent[POOL] = pooled + computed_units
        holders = self._holders
        # Longest first, so that the shorter ones are younger and a chain is forgotten from its end.
        for key in reversed(keys[: len(self._ends)]):
            entry = holders.get(key)
            if entry is None:
                entry = holders[key] = {}
            else:
                holders.move_to_end(key)
                entry.pop(worker, None)
                if len(entry) >= len(self._sent):
                    for gone in [other for other in entry if other not in self._sent]:
                        del entry[gone]
            entry[worker] = sent
            if pooled is not None:
                entry[POOL] = pooled
        while len(holders) > self.capacity:
            holders.popitem(last=False)

    def _held_since(self, key: int, worker: int) -> float:
        entry = self._holders.get(key)
        return -1.0 if entry is None else entry.get(worker, -1.0)

    def _resident(self, worker: int, sent: float) -> bool:
        total = self._sent.get(worker)
        return total is not None and total - sent <= self._room[worker]
