"""Files and batches as they are kept, and as OpenAI's API shows them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec


class Status(StrEnum):
    """States of a batch, as OpenAI names them."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED: Final = frozenset((Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED))


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of one API key."""

    id: str
    owner: str
    """Name of the API key; empty where the cluster asks for none."""
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def shown(self) -> dict[str, Any]:
        """As a client reads it."""
        fields: dict[str, Any] = {**msgspec.structs.asdict(self), "object": "file", "status": "processed"}
        del fields["owner"]
        return fields


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a line of an input file cannot be run."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of one API key."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_file_id: str
    """Taken at the start, so that results have a place; shown once there are any."""
    error_file_id: str
    results_expire_seconds: int | None = None
    status: Status = Status.VALIDATING
    metadata: dict[str, str] | None = None
    errors: tuple[LineError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    has_output: bool = False
    has_errors: bool = False
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def ended(self) -> bool:
        """Nothing more happens to it."""
        return self.status in ENDED

    @property
    def ended_at(self) -> int:
        """When it ended; 0: it has not."""
        return self.completed_at or self.failed_at or self.expired_at or self.cancelled_at or 0

    def shown(self) -> dict[str, Any]:
        """As a client reads it."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        for own in ("owner", "results_expire_seconds", "has_output", "has_errors", "total", "completed", "failed"):
            del fields[own]
        return {
            **fields,
            "object": "batch",
            "errors": {"object": "list", "data": fields["errors"]} if self.errors else None,
            "output_file_id": self.output_file_id if self.has_output else None,
            "error_file_id": self.error_file_id if self.has_errors else None,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
        }
