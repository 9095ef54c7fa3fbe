"""Keeps what rehearsals and `fulcrum record` read of each request, in a ring. Compiled (hatch_build.py).

A request is noted when it comes, and written once, when it ends. No text is kept: lengths, times, and keys of prompt
prefixes under a seed that only holders of the cluster's token can make.
"""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import parse_qs

import msgspec
from xxhash import xxh3_64_intdigest

from fulcrum.admission import Admission
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.record import CONTENT_TYPE, MOST_KEYS, MOST_TOKENS, Outcome, RingPage, pack_rows
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.exchange import Exchange
from fulcrum.gateway.dispatch.request_ring import LONGEST_SECONDS, Ring
from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.metrics.slo import SloOutcome, judge_refusal
from fulcrum.gateway.workers.prefix_sharing import prefix_seed
from fulcrum.routing import Incoming
from fulcrum.routing.prefixes import BYTE_ENDS

_OK: Final = 200
_CLIENT_CLOSED: Final = 499
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
_TEXT: Final = b"text/plain; charset=utf-8"
_MOST: Final = MOST_TOKENS
_SERVED: Final = int(Outcome.SERVED)
_REJECTED: Final = int(Outcome.REJECTED)
_FAILED: Final = int(Outcome.FAILED)
_LEFT: Final = int(Outcome.LEFT)
_INVALID: Final = int(Outcome.INVALID)
_PENDING: Final = int(Outcome.PENDING)
_UNREAD: Final = int(Outcome.UNREAD)


def thinned(prefix: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a prompt's prefix keys that are kept: the first one, and one for about 512 tokens (2,048 bytes).

    Of the ends up to 8 KiB every fourth, up to 16 KiB every second, and then all, of which the ring takes `MOST_KEYS`.
    """
    if len(prefix) <= 16:
        return prefix[:1] + prefix[3::4]
    return (prefix[:1] + prefix[3:16:4] + prefix[17:24:2] + prefix[24:])[:MOST_KEYS]


KEY_ENDS: Final = thinned(BYTE_ENDS)
"""Lengths of the prefixes whose keys are kept."""


class Recorder:
    """Requests of one gateway: those under way, and the ring of those that ended."""

    def __init__(self, admission: Admission, *, seed: int, shares_seed: bool, now: float) -> None:
        """`seed`: of hashes of short prompts; `shares_seed`: prefix keys mean the same on other gateways."""
        self.ring = Ring()
        self._admission = admission
        self._seed = seed
        self._shares_seed = shares_seed
        self._start = now
        self._neighbour_left_at = -1.0
        self._under_way: dict[Exchange, None] = {}

    def arrived(self, exchange: Exchange) -> None:
        """A request came that could be read."""
        self._under_way[exchange] = None

    def ended(self, exchange: Exchange, code: int, error: RequestError | None, now: float) -> None:
        """It is over, answered with `code`. One that could not be read is none."""
        if exchange.incoming is None:
            return
        self._under_way.pop(exchange, None)
        outcome, retry_after, output_tokens = _SERVED, -1.0, exchange.output_tokens
        if code != _OK:
            reason = error.reason if error is not None else None
            outcome = _outcome(code, "" if reason is None else reason)
            if outcome == _REJECTED and error is not None and error.retry_after_seconds is not None:
                retry_after = error.retry_after_seconds or 1.0  # as its client reads it
        if output_tokens is None and outcome != _SERVED and exchange.response.streaming:
            output_tokens = exchange.tokens_so_far()
        arrival, duration, ttft, prompt_tokens, units, identity, keys = self._numbers(exchange, exchange.incoming, now)
        self.ring.add(
            arrival, duration, ttft, retry_after, prompt_tokens, units,
            -1 if output_tokens is None or not 0 <= output_tokens <= _MOST else output_tokens,
            identity, exchange.incoming.qos, outcome, keys,
        )  # fmt: skip

    def unread(self, now: float) -> None:
        """A request was turned away before it was read; it counts for the class of those that match no other."""
        self.ring.add(now - self._start, 0.0, -1.0, -1.0, 0, 0, -1, 0, self._admission.classes.rest, _UNREAD, ())

    def neighbour_left(self, now: float) -> None:
        """Another gateway went, and with it what it knew."""
        self._neighbour_left_at = now - self._start

    def read(self, now: float, last_seconds: float = LONGEST_SECONDS) -> RingPage:
        """All that is known of the last seconds."""
        age_of_start = now - self._start
        kept = self.ring.read(age_of_start, last_seconds)
        under_way = []
        for number, exchange in enumerate(self._under_way):
            if (incoming := exchange.incoming) is None:
                continue
            arrival, duration, ttft, prompt_tokens, units, identity, keys = self._numbers(exchange, incoming, now)
            output_tokens = min(exchange.tokens_so_far(), _MOST)
            under_way.append(
                (
                    arrival, duration, ttft, -1.0, prompt_tokens, units, output_tokens, identity, number, incoming.qos,
                    _PENDING, keys,
                )
            )  # fmt: skip
        left_at = self._neighbour_left_at
        return RingPage(
            age_of_start_seconds=age_of_start,
            covers_from_seconds=min(age_of_start - kept.covers_from, LONGEST_SECONDS),
            neighbour_left_seconds=age_of_start - left_at if left_at >= 0 else None,
            sampling_depths=kept.depths,
            classes=self._admission.classes.names,
            batch=self._admission.classes.batch,
            key_ends=KEY_ENDS,
            admission=self._admission.learnt.state(now),
            packed_rows=(*kept.pages, pack_rows(under_way)),
        )

    def _numbers(
        self, exchange: Exchange, incoming: Incoming, now: float
    ) -> tuple[float, float, float, int, int, int, tuple[int, ...]]:
        """Arrival, duration, TTFT, prompt tokens, units, identity and kept prefix keys of a request."""
        started_at, prefix = exchange.started_at, incoming.prefix
        first_token_at = exchange.first_token_at or exchange.response.began_at  # of a stream that has not ended
        prompt_tokens = exchange.prompt_tokens
        if prompt_tokens is None or not 0 <= prompt_tokens <= _MOST:
            prompt_tokens = _whole(incoming.prompt_tokens)
        identity = 0
        if prefix:
            identity = prefix[-1]
        elif exchange.request is not None and not exchange.request.pools:
            identity = xxh3_64_intdigest(bytes(exchange.request.prompt), self._seed)
        return (
            started_at - self._start,
            now - started_at,
            first_token_at - started_at if first_token_at else -1.0,
            prompt_tokens,
            _whole(incoming.units_per_token * incoming.prompt_tokens + 0.5),
            identity,
            thinned(prefix) if self._shares_seed and prefix else (),
        )


def _whole(amount: float) -> int:
    return int(amount) if amount < _MOST else _MOST


def _outcome(code: int, reason: str) -> int:
    """What became of a request that was not answered with 200."""
    if code == _CLIENT_CLOSED:
        return _LEFT
    judged = judge_refusal(code, reason)
    if judged is None:
        return _INVALID
    return _REJECTED if judged is SloOutcome.REJECTED else _FAILED


def recorder_of(config: GatewayConfig, admission: AdmissionControl, token: str | None, now: float) -> Recorder | None:
    """The recorder of a gateway; None where nothing is to be recorded: then no memory is taken."""
    if not config.record:
        return None
    seed = prefix_seed(token)
    return Recorder(
        admission.core,
        seed=secrets.randbits(64) if seed is None else seed,
        shares_seed=seed is not None,
        now=now,
    )


def record_page(recorder: Recorder | None, query: str, now: float) -> tuple[int, bytes, bytes]:
    """Status, content type and body of the answer to `GET /record?last=SECONDS`."""
    if recorder is None:
        return _NOT_FOUND, _TEXT, b"spec.gateway.record is Off: set it to On, and ask again some minutes later.\n"
    last_seconds = LONGEST_SECONDS
    if asked := parse_qs(query).get("last"):
        try:
            last_seconds = float(asked[-1])
        except ValueError:
            last_seconds = 0.0
        if not 0 < last_seconds <= LONGEST_SECONDS:
            return _BAD_REQUEST, _TEXT, b"last: give seconds, above 0 and at most %d.\n" % int(LONGEST_SECONDS)
    return _OK, CONTENT_TYPE.encode(), msgspec.msgpack.encode(recorder.read(now, last_seconds))
