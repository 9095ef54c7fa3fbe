"""API keys from a mounted Secret: which clients may ask, as which class, and how much."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fulcrum.admission import Client
from fulcrum.api.reasons import Reason
from fulcrum.gateway.errors import rejected, unauthorized

logger = logging.getLogger(__name__)

AUTHORIZATION: Final = "authorization"
X_API_KEY: Final = "x-api-key"
"""Where Anthropic's clients send their key."""
RELOAD_SECONDS: Final = 2.0
_MINUTE_SECONDS: Final = 60.0
_SHORTEST_KEY: Final = 8
_SECRET: Final = secrets.token_bytes(32)


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A value of the Secret that says more than the key."""

    key: str
    class_: str | None = msgspec.field(name="class", default=None)
    classes: tuple[str, ...] = ()
    requests_per_minute: Annotated[float, Meta(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Meta(gt=0)] | None = None
    weight: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0


class _Bucket:
    """One gateway's part of a limit.

    Fills up at its part of `per_minute`, to a minute's worth; may be overdrawn by what was only known afterwards.
    """

    __slots__ = ("_at", "_gateways", "_left", "_per_minute")

    def __init__(self, per_minute: float, gateways: int) -> None:
        self._per_minute = per_minute
        self._gateways = gateways
        self._left = self._full
        self._at = 0.0

    @property
    def _full(self) -> float:
        return max(self._per_minute / self._gateways, 1.0)

    @property
    def _per_second(self) -> float:
        return self._per_minute / self._gateways / _MINUTE_SECONDS

    def share(self, gateways: int, now: float) -> None:
        """So many gateways share the limit from now on.

        A gateway that comes brings a part of its own, so what is left here shrinks; what one that goes had left is not
        known here, so nothing is added. What is owed stays.
        """
        self.wait_seconds(0.0, now)
        if gateways > self._gateways and self._left > 0:
            self._left *= self._gateways / gateways
        self._gateways = gateways

    def wait_seconds(self, amount: float, now: float) -> float:
        """Time until `amount` may be taken; 0: now. What is more than a minute's worth may be taken from a full one."""
        full, per_second = self._full, self._per_second
        self._left = min(self._left + per_second * max(now - self._at, 0.0), full)
        self._at = now
        return max(min(amount, full) - self._left, 0.0) / per_second

    def take(self, amount: float) -> None:
        """Take `amount`; a negative one is given back."""
        self._left -= amount


class Allowance:
    """One gateway's part of what may be asked for in a minute; None is no limit."""

    __slots__ = ("_requests", "_tokens")

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None, gateways: int) -> None:
        self._requests = None if requests_per_minute is None else _Bucket(requests_per_minute, gateways)
        self._tokens = None if tokens_per_minute is None else _Bucket(tokens_per_minute, gateways)

    def share(self, gateways: int, now: float) -> None:
        """So many gateways share it from now on."""
        for bucket in (self._requests, self._tokens):
            if bucket is not None:
                bucket.share(gateways, now)

    def wait_seconds(self, tokens: float, now: float) -> float:
        """Time until a request of so many tokens may come; 0: now."""
        return max(
            0.0 if self._requests is None else self._requests.wait_seconds(1.0, now),
            0.0 if self._tokens is None else self._tokens.wait_seconds(tokens, now),
        )

    def take(self, tokens: float) -> None:
        """Count a request of so many tokens."""
        if self._requests is not None:
            self._requests.take(1.0)
        self.correct(tokens)

    def correct(self, tokens: float) -> None:
        """A request came to so many tokens more than it was counted for (or fewer, when negative)."""
        if self._tokens is not None:
            self._tokens.take(tokens)


class ApiKey:
    """One key, with this gateway's part of its limits."""

    __slots__ = ("_allowance", "_document", "class_name", "classes", "client", "digest", "name")

    def __init__(self, name: str, document: _Document, gateways: int) -> None:
        self.name = name
        self.digest = _digest(document.key)
        self.class_name = document.class_
        """Class of its requests; None: what `classes` and their headers say."""
        self.classes = frozenset(document.classes)
        """Classes that its requests may name in a header."""
        self.client = Client(name, document.weight)
        """Its share of what the admission queue lets in."""
        self._document = document
        self._allowance = Allowance(document.requests_per_minute, document.tokens_per_minute, gateways)

    def share(self, gateways: int, now: float) -> None:
        """So many gateways share its limits from now on."""
        self._allowance.share(gateways, now)

    def cache_salt(self, wanted: bytes) -> bytes:
        """A JSON string with which an engine's prefix cache tells this key's prompts from those of other keys.

        `wanted` is the client's own salt as raw JSON, which goes in. Every gateway makes the same; it does not tell the
        key.
        """
        salt = hmac.digest(
            self._document.key.encode("utf-8", "surrogatepass"), b"fulcrum cache_salt " + wanted, "sha256"
        )
        return b'"%b"' % base64.urlsafe_b64encode(salt)

    def charge(self, tokens: float, now: float) -> None:
        """Count a request of so many tokens. Raises RequestError (429) when that is over a limit."""
        wait_seconds = self._allowance.wait_seconds(tokens, now)
        if wait_seconds > 0:
            raise rejected(Reason.RATE_LIMITED, wait_seconds)
        self._allowance.take(tokens)

    def correct(self, tokens: float) -> None:
        """A request came to so many tokens more than it was charged for (or fewer, when negative)."""
        self._allowance.correct(tokens)

    def same(self, other: ApiKey) -> bool:
        """Whether nothing about it has changed, so that its buckets can go on."""
        return self._document == other._document


class KeyRing:
    """The keys in `directory`, one file each: the bare key, or JSON. Without any key no request is let in."""

    def __init__(self, directory: Path, *, gateways: int = 1) -> None:
        self._directory = directory
        self._gateways = gateways
        self._seen: dict[str, bytes] = {}
        self.keys: tuple[ApiKey, ...] = ()
        self._by_digest: dict[bytes, ApiKey] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the keys again if they changed; while they cannot be read, the last ones hold."""
        try:
            # The kubelet swaps what is behind names that begin with two dots.
            files = sorted(path for path in self._directory.iterdir() if not path.name.startswith("."))
            content = {path.name: path.read_bytes() for path in files if path.is_file()}
        except OSError as error:
            logger.warning("api_keys_unreadable error=%s keys_kept=%d", error.strerror, len(self.keys))
            return
        if content == self._seen:
            return
        self._seen = content
        before = {key.name: key for key in self.keys}
        keys = [key for name, value in content.items() if (key := self._read(name, value)) is not None]
        self.keys = tuple(
            known if (known := before.get(key.name)) is not None and known.same(key) else key for key in keys
        )
        self._by_digest = {key.digest: key for key in self.keys}
        if len(self._by_digest) < len(self.keys):
            logger.warning("api_keys_repeated keys=%d distinct=%d", len(self.keys), len(self._by_digest))
        logger.info("api_keys_loaded keys=%d", len(self.keys))

    def share(self, gateways: int, now: float) -> None:
        """So many gateways share the limits from now on. Say so again after `refresh`, which may run in a thread."""
        self._gateways = gateways
        for key in self.keys:
            key.share(gateways, now)

    def find(self, authorization: str | None, x_api_key: str | None = None) -> ApiKey:
        """The key of an `Authorization` header, or where there is none, of `x-api-key`. Raises RequestError (401)."""
        if authorization is None and x_api_key is not None:
            authorization = f"Bearer {x_api_key}"
        scheme, _, token = (authorization or "").partition(" ")
        digest = _digest(token.strip())
        # How long the search takes says nothing: digests are keyed with a secret of this process.
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest) or scheme.lower() != "bearer":
            raise unauthorized()
        return found

    def named(self, name: str) -> ApiKey:
        """The key of a name, for a caller that is known to be trusted. Raises RequestError (401) where it is gone."""
        for key in self.keys:
            if key.name == name:
                return key
        raise unauthorized()

    def _read(self, name: str, value: bytes) -> ApiKey | None:
        text = value.strip()
        try:
            if text.startswith(b"{"):
                document = msgspec.json.decode(text, type=_Document)
            else:
                document = _Document(key=text.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Without the error's text: it may quote the key.
            want = "a key, or JSON with key, class, limits and weight (0.01 to 1000)"
            logger.warning("api_key_invalid name=%s want=%s", name, want)
            return None
        if len(document.key) < _SHORTEST_KEY:
            logger.warning("api_key_too_short name=%s want_characters=%d", name, _SHORTEST_KEY)
            return None
        return ApiKey(name, document, self._gateways)


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32, key=_SECRET).digest()
