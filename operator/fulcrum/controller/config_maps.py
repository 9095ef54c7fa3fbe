"""Documents in ConfigMaps that a spec names, read now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from fulcrum.api.messages import names_of, shortened
from fulcrum.controller.kube import CONFIG_MAP, ApiFailure, Kube
from fulcrum.kube import ApiError

READ_SECONDS: Final = 60.0
"""How long what a ConfigMap held is used before it is read again."""
ANSWER_SECONDS: Final = 5.0
"""Longest wait of a tick for ConfigMaps: what else it decides must not wait for a document."""
_UNUSED_SECONDS: Final = 600.0
"""How long what is known of a ConfigMap is kept that no cluster asks for: longer than any waits between two ticks."""


Document = TypeVar("Document")


class UnusableError(Exception):
    """No document can be had from a ConfigMap. Says where, why and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document is."""

    namespace: str
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class _Known(Generic[Document]):
    found: Document | UnusableError
    read_at: float


class ConfigMaps(Generic[Document]):
    """Reads documents of one kind, each once a minute at most."""

    def __init__(
        self, kube: Kube, parse: Callable[[str], Document], *, create: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`parse` raises ValueError for what cannot be used. `create` says from what a ConfigMap is made."""
        self._kube = kube
        self._parse = parse
        self._create = create
        self._clock = clock
        self._known: dict[Place, _Known[Document]] = {}

    async def read(self, places: Iterable[Place]) -> dict[Place, Document | UnusableError]:
        """Return what is in the `places` of a cluster, or why it cannot be used."""
        wanted, now = frozenset(places), self._clock()
        self._known = {place: each for place, each in self._known.items() if now - each.read_at < _UNUSED_SECONDS}
        await asyncio.gather(*(self._refresh(place) for place in wanted))
        return {place: self._known[place].found for place in wanted}

    async def _refresh(self, place: Place) -> None:
        now, before = self._clock(), self._known.get(place)
        if before is not None and now - before.read_at < READ_SECONDS:
            return
        found: Document | UnusableError
        try:
            found = await self._read(place)
        except UnusableError as error:
            found = error
        except (ApiFailure, TimeoutError) as error:
            # No answer is no news: what was read before stands.
            said = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
            unread = UnusableError(f"{_where(place)} cannot be read ({shortened(said)}); it is tried again.")
            found = before.found if before is not None else unread
        self._known[place] = _Known(found, now)

    async def _read(self, place: Place) -> Document:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await self._kube.get(CONFIG_MAP, place.namespace, place.name)
        except ApiError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            raise UnusableError(
                f"{_where(place)} may not be read ({shortened(str(error))}); let the operator's service account get "
                "it: apply the roles of this release (docs/operations/security.md)."
            ) from error
        if found is None:
            raise UnusableError(f"{_where(place)} does not exist; create it from {self._create}, or remove the field.")
        values = found.get("data")
        values = values if isinstance(values, dict) else {}
        if not isinstance(document := values.get(place.key), str):
            has = f"it has {names_of(sorted(map(str, values)))}" if values else "it has none"
            raise UnusableError(f"{_where(place)} has no key {place.key} ({has}); add it, or correct the field `key`.")
        try:
            return self._parse(document)
        except ValueError as error:
            raise UnusableError(f"{_where(place)}, key {place.key}: {shortened(str(error))}; correct it.") from None


def _where(place: Place) -> str:
    return f"ConfigMap {place.namespace}/{place.name}"
