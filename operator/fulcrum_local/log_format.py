"""One line per log record: time, level, logger, message, then what was passed in `extra` as key=value."""

from __future__ import annotations

import logging
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """The message, and every extra field as key=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class' name
        fields = (f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        return " ".join([super().formatMessage(record), *fields])


def log_to_stderr() -> None:
    """Set up logging of a process of local mode."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
