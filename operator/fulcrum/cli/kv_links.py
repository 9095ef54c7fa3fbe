"""`--host-link` and `--pool-link`: how quickly KV comes back from the tiers below the engines' caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from fulcrum.cli.number_range import NumberRange

GIGA: Final = 1e9
"""Bytes/s of the unit of both options."""
_GIGABYTES: Final = NumberRange(min=0, min_open=True)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def kv_link_options(command: _Command) -> _Command:
    """Add both options, in GB/s; they are passed as `host_link` and `pool_link`."""
    host = click.option(
        "--host-link", type=_GIGABYTES, default=50.0, show_default=True,
        help="GB/s of a worker's link to its host memory.",
    )  # fmt: skip
    pool = click.option(
        "--pool-link", type=_GIGABYTES, default=2.9, show_default=True, help="GB/s of a worker's link to the KV pool."
    )
    return host(pool(command))
