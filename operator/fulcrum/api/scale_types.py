"""InferenceScale: how many workers a role of a pool is to have, as a `/scale` for HPA, KEDA and `kubectl scale`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from fulcrum.api.base import MAX_WORKERS, ApiStruct, Name, Rules, rule
from fulcrum.api.names import API_VERSION, SCALE_KIND, Role
from fulcrum.api.pool_types import Pool
from fulcrum.api.status import ConditionStatus, Count, Message, ReasonWord, Time
from fulcrum.api.types import ObjectMeta


def scaled_roles(pool: Pool) -> tuple[Role, ...]:
    """Roles of a pool that have an InferenceScale each: `mixed` only where it is the pool's only role.

    A pool that is switched off (`workers.max` 0) has none.
    """
    if pool.workers.max == 0:
        return ()
    single = tuple(role for role in (Role.PREFILL, Role.DECODE) if role in pool.roles)
    return single or (Role.MIXED,)


class InferenceScaleSpec(ApiStruct, frozen=True, kw_only=True):
    """Which workers, and how many of them."""

    cluster: Annotated[Name, Meta(description="InferenceCluster of the workers, in the same namespace.")]
    pool: Annotated[Name, Meta(description="Pool of the workers.")]
    role: Annotated[
        Role,
        Meta(
            description="Role of the workers.",
            extra_json_schema={"enum": [Role.PREFILL.value, Role.DECODE.value, Role.MIXED.value]},
        ),
    ]
    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_WORKERS,
            description="Workers that the role is to have in the pool; the only field to change, through `/scale`.",
        ),
    ] = 1

    rules: ClassVar[Rules] = (
        rule(
            "self.cluster == oldSelf.cluster && self.pool == oldSelf.pool && self.role == oldSelf.role",
            "cluster, pool and role say whose workers are counted and cannot be changed; change replicas",
        ),
    )


class ScaleConditionType(StrEnum):
    LIMITED = "Limited"


class ScaleCondition(ApiStruct, frozen=True, kw_only=True):
    """A standard `metav1.Condition`."""

    type: Annotated[
        ScaleConditionType,
        Meta(description="Limited: another number of workers than `spec.replicas` is aimed for."),
    ]
    status: Annotated[ConditionStatus, Meta(description="True, False or Unknown.")]
    reason: ReasonWord
    message: Annotated[Message, Meta(description="Why, for people.")]
    observed_generation: Annotated[Count, Meta(description="Generation of the spec that the condition is about.")]
    last_transition_time: Annotated[Time, Meta(description="When `status` last changed.")]


class InferenceScaleStatus(ApiStruct, frozen=True, kw_only=True):
    """Workers of the role in the pool."""

    replicas: Annotated[Count, Meta(description="Workers that have the role now.")] = 0
    ready_replicas: Annotated[Count, Meta(description="Of these, workers that serve.")] = 0
    desired_replicas: Annotated[
        Count, Meta(description="Workers that are aimed for: `spec.replicas` within the pool's bounds.")
    ] = 0
    selector: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Selects the Pods of the workers that have the role now."),
    ] = None
    observed_generation: Annotated[int | None, Meta(description="Generation of the spec that was last acted on.")] = (
        None
    )
    conditions: Annotated[
        tuple[ScaleCondition, ...],
        Meta(
            max_length=8,
            description="Limited.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()


class InferenceScale(ApiStruct, frozen=True, kw_only=True):
    """The number of workers of one role in one pool, where `balance.mode` is External; made by the operator."""

    api_version: str = API_VERSION
    kind: str = SCALE_KIND
    metadata: ObjectMeta
    spec: Annotated[InferenceScaleSpec, Meta(description="Which workers, and how many of them.")]
    status: Annotated[InferenceScaleStatus, Meta(description="What is there; written by the operator.")] = (
        InferenceScaleStatus()
    )
