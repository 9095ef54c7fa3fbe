"""`spec.batch`: OpenAI's files and batches, kept on a claim."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api.base import ApiStruct, ObjectName, PositiveDuration, Quantity, Rules, rule
from fulcrum.api.batch import MAX_FILES, MAX_IN_FLIGHT, MAX_LINES
from fulcrum.api.serving_types import Admission, ClassKind, QosClass

_MAX_FILE_SIZE: Final = "1Gi"


class Batch(ApiStruct, frozen=True, kw_only=True):
    """Files and batches at the cluster's endpoint, answered by a class of kind Batch."""

    claim: Annotated[
        ObjectName,
        Meta(
            description="PersistentVolumeClaim of this namespace in which files and the state of batches are kept. One "
            "Pod writes to it, so ReadWriteOnce will do. It stays when the cluster goes."
        ),
    ]
    max_file_size: Annotated[Quantity, Meta(description="Largest file that may be uploaded, at most 1Gi.")] = "200Mi"
    max_files: Annotated[
        int, Meta(ge=1, le=10_000, description="Most uploaded files of one API key; results do not count.")
    ] = MAX_FILES
    max_lines: Annotated[int, Meta(ge=1, le=200_000, description="Most requests of one batch.")] = MAX_LINES
    max_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Most requests of all batches that are sent to the gateways at once. Fewer are sent while "
            "nothing is idle.",
        ),
    ] = MAX_IN_FLIGHT
    retention: Annotated[
        PositiveDuration,
        Meta(description="Files, and batches that have ended, are removed after this time, 1h to 8760h."),
    ] = "720h"

    rules: ClassVar[Rules] = (
        rule(
            f"quantity(self.maxFileSize).compareTo(quantity('{_MAX_FILE_SIZE}')) <= 0",
            f"maxFileSize must not be above {_MAX_FILE_SIZE}; split the file",
        ),
        rule(
            "duration(self.retention) >= duration('1h') && duration(self.retention) <= duration('8760h')",
            "retention must be 1h to 8760h",
        ),
    )


BATCH_RULES: Final[Rules] = (
    rule(
        "!has(self.batch) || (has(self.admission.classes) && self.admission.classes.exists(c, c.kind == 'Batch'))",
        "batch: no class has kind Batch, so no request of a batch could be told from an online one; add one to "
        "admission.classes, such as {name: batch, kind: Batch, priority: 0, match: {header: x-class, value: batch}}",
    ),
)


def batch_class(admission: Admission) -> QosClass | None:
    """Return the class of the lines of batches: the first of kind Batch."""
    return next((each for each in admission.classes if each.kind is ClassKind.BATCH), None)
