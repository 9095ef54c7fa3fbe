"""Contract of the batch process: its configuration, and how it and the gateways of its cluster know each other.

A gateway passes `/v1/files` and `/v1/batches` on with the cluster's token and the name of the client's API key. The
batch process sends the lines of a batch to the gateways with the same token and the same name: keys themselves are
neither sent nor kept. Whoever has the token may ask the workers anyway.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fulcrum.api.names import PORT_BATCH, PORT_GATEWAY
from fulcrum.api.serving_types import ModelTask

PATHS: Final = ("/v1/files", "/v1/batches")
KEY_HEADER: Final = "x-fulcrum-key-name"
"""Names an API key, together with the cluster's token in `Authorization`."""

MAX_FILE_BYTES: Final = 200 * 1024 * 1024
MAX_LINES: Final = 50_000
MAX_FILES: Final = 500
MAX_IN_FLIGHT: Final = 16
RETENTION_SECONDS: Final = 30 * 86_400.0


def is_batch_path(path: str) -> bool:
    """Report whether requests for `path` are the batch process's."""
    return path.startswith("/v1/") and any(path == each or path.startswith(each + "/") for each in PATHS)


class GatewayBatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a gateway knows of the batch process."""

    class_name: str
    """QoS class of the lines of batches, whatever the class of their key is."""
    host: str | None = None
    """None: that of the cluster's batch Pod, by the Pod watch."""
    port: int = PORT_BATCH


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bounds on what clients may keep. Defaults are those of `spec.batch`."""

    max_file_bytes: int = MAX_FILE_BYTES
    max_files: int = MAX_FILES
    """Of one API key."""
    max_lines: int = MAX_LINES
    max_line_bytes: int = 8 * 1024 * 1024
    """As the gateways' largest body."""
    max_in_flight: int = MAX_IN_FLIGHT
    """Lines of all batches that are sent to the gateways at once."""
    retention_seconds: float = RETENTION_SECONDS


class BatchConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One JSON document in `FULCRUM_BATCH_CONFIG`."""

    cluster: str
    gateway_host: str
    gateway_port: int = PORT_GATEWAY
    task: ModelTask = ModelTask.GENERATE
    directory: str
    class_header: str | None = None
    class_value: str | None = None
    """Header with which a request is of the batch class where no API keys are asked for."""
    limits: BatchLimits = BatchLimits()


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`GET /progress` of the batch process."""

    waiting: int = 0
    running: int = 0
    requests: int = 0
    """Of the batches that run, as are the next two."""
    completed: int = 0
    failed: int = 0
