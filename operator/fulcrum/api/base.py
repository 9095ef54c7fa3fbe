"""What every type of the API shares: the base struct, and strings that Kubernetes writes in its own way."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from fulcrum.api import durations, quantities


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False):
    """Base of everything in an InferenceCluster: the API server prunes unknown fields, and they are ignored here."""


Rules = tuple[dict[str, str], ...]


def rule(expression: str, message: str) -> dict[str, str]:
    """One CEL rule (`x-kubernetes-validations`) with the message a person reads when it is broken."""
    return {"rule": expression, "message": message}


def _with_rules(*rules: dict[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(rules)}


Name = Annotated[
    str, Meta(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="DNS label.")
]
ObjectName = Annotated[
    str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="Object name.")
]
"""Name of another Kubernetes object in the same namespace."""
NamespaceName = Annotated[
    str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Namespace.")
]
ConfigMapKey = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""Key of a ConfigMap's `data`, as Kubernetes has it."""
Image = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[^\s]+$")]

Duration = Annotated[str, Meta(min_length=2, max_length=durations.MAX_LENGTH, pattern=durations.PATTERN)]
"""As Kubernetes writes it: `500ms`, `1m30s`. Read with `api.durations.seconds`."""
PositiveDuration = Annotated[
    str,
    Meta(
        min_length=2,
        max_length=durations.MAX_LENGTH,
        pattern=durations.PATTERN,
        # Any digit but 0 makes it positive; cheaper than duration(), and it cannot overflow.
        extra_json_schema=_with_rules(rule("self.matches('[1-9]')", "must be longer than zero, such as 500ms or 30s")),
    ),
]
Quantity = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=quantities.MAX_LENGTH,
        pattern=quantities.PATTERN,
        extra_json_schema=_with_rules(rule("self.matches('[1-9]')", "must be more than zero, such as 64Gi")),
    ),
]
"""Memory as Kubernetes writes it: `64Gi`. Read with `api.quantities.number_of_bytes`."""

CpuQuantity = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=16,
        pattern=r"^([0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m)$",
        extra_json_schema=_with_rules(rule("self.matches('[1-9]')", "must be more than zero, such as 4 or 500m")),
    ),
]
"""CPU cores as Kubernetes writes them: `4`, `0.5`, `500m`."""

MAX_WORKERS: Final = 4096
"""Workers of one pool: also bounds the ordinal in a worker's name to four digits."""

WorkersOrPercent = (
    Annotated[int, Meta(ge=0, le=MAX_WORKERS)]
    | Annotated[str, Meta(min_length=2, max_length=4, pattern=r"^(100|[1-9]?[0-9])%$")]
)
"""A number of workers (`2`), or a share of a pool's (`25%`)."""
