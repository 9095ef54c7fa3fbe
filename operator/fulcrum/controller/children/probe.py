"""HTTP probes of our containers."""

from __future__ import annotations

from typing import Final

from fulcrum.controller.children.owner import Manifest

TIMEOUT_SECONDS: Final = 5
"""A busy node answers late. Taking a slow worker out of service moves its load onto the others and slows them, too;
one that is gone is noticed by the gateway at its first refused connection, long before a probe fails."""


def http_probe(path: str, *, port: int, period_seconds: int, failures: int) -> Manifest:
    """Return a probe that gives up after `failures` answers in a row that were not 2xx."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_seconds,
        "timeoutSeconds": TIMEOUT_SECONDS,
        "failureThreshold": failures,
    }
