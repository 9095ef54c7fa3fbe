"""Events are kept for an hour after they were last seen, as in a real cluster."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Final

from fulcrum_local.apiserver.errors import Json
from fulcrum_local.apiserver.store import Store
from fulcrum_local.apiserver.times import now, parse_time

LIFETIME: Final = dt.timedelta(hours=1)
_INTERVAL_SECONDS: Final = 60.0


async def expire_events(store: Store) -> None:
    """Remove old Events until cancelled."""
    while True:
        remove_expired(store, now())
        await asyncio.sleep(_INTERVAL_SECONDS)


def remove_expired(store: Store, moment: dt.datetime) -> None:
    """Remove the Events that were last seen more than an hour before `moment`."""
    for stored in store.scan("events"):
        if moment - last_seen(stored.obj) > LIFETIME:
            store.remove("events", stored.key)


def last_seen(event: Json) -> dt.datetime:
    """When an Event last happened; its creation when it does not say (or says nonsense)."""
    created = parse_time(event["metadata"]["creationTimestamp"])
    times = [created]
    for text in (
        event.get("lastTimestamp"),
        event.get("eventTime"),
        (event.get("series") or {}).get("lastObservedTime"),
    ):
        try:
            times.append(parse_time(text) if text else created)
        except (TypeError, ValueError):
            continue
    return max(time for time in times if time.tzinfo is not None)
