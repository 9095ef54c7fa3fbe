"""What a log may say of an unexpected exception: never its message, which may quote a prompt or a key."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

logger = logging.getLogger(__name__)


def describe(error: BaseException) -> str:
    """Its type, and where it came from: names and lines of code, no values."""
    lines = [f"{type(error).__name__} (message withheld)\n", *traceback.format_tb(error.__traceback__)]
    cause = error.__cause__ or error.__context__
    if cause is not None and cause is not error:
        lines.append(f"from {type(cause).__name__} (message withheld)\n")
        lines.extend(traceback.format_tb(cause.__traceback__))
    return "".join(lines).rstrip()


def log_unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of an event loop."""
    error = context.get("exception")
    message = context.get("message", "")
    if isinstance(error, OSError):
        logger.warning("connection_failed event=%r error=%s", message, type(error).__name__)
    else:
        logger.error("unhandled event=%r error=%s", message, describe(error) if error is not None else "-")
