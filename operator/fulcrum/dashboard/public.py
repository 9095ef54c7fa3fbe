"""Which messages a page without authentication may repeat.

A message may quote what an engine, a registry or a spec said, and there secrets and prompts can stand. So only the
messages of reasons on this list are repeated: Fulcrum makes them of its own words, names and figures.
"""

from __future__ import annotations

import re
from typing import Final

from fulcrum.api.reasons import Reason

_OWN_WORDS: Final = frozenset(
    {
        Reason.READY, Reason.GATEWAY_NOT_READY, Reason.NO_READY_WORKERS, Reason.ROLE_EMPTY, Reason.WORKERS_STARTING,
        Reason.RECONCILED, Reason.PAUSED, Reason.HEALTHY, Reason.WORKER_UNSCHEDULABLE, Reason.NODE_LOST,
        Reason.GPU_FAILED,
        Reason.METRICS_UNKNOWN, Reason.OVER_CAPACITY, Reason.REQUESTS_REJECTED, Reason.OBSERVING,
        Reason.KV_TRANSFER_FAILING, Reason.WORKER_CREATED, Reason.WORKER_REPLACED, Reason.WORKER_DRAINING,
        Reason.WORKER_DRAINED, Reason.WORKER_REMOVED, Reason.DRAIN_TIMED_OUT, Reason.ROLE_FLIPPED, Reason.LOAD_FORECAST,
        Reason.LOAD_SHIFTED, Reason.LOAD_FELL,
    }
)  # fmt: skip
_LONGEST_CHARACTERS: Final = 400
"""Longest message that is repeated: more does not fit on a phone's screen."""
_USER_OF_URL: Final = re.compile(r"://[^/@\s]*@")
_QUERY_OF_URL: Final = re.compile(r"(://[^\s?#]*)[?#]\S*")


def message_of(reason: str, message: str, *, key: str) -> str:
    """Return the message where it may be repeated, else where to read it; `key` is the cluster's namespace/name."""
    if reason not in _OWN_WORDS:
        namespace, _, name = key.partition("/")
        return f"The details are not shown here. Read them with: kubectl describe ic {name} -n {namespace}"
    first = message.strip().partition("\n")[0]
    plain = _QUERY_OF_URL.sub(r"\1", _USER_OF_URL.sub("://", first))
    return plain if len(plain) <= _LONGEST_CHARACTERS else plain[: _LONGEST_CHARACTERS - 1] + "…"
