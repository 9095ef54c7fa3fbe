"""Spec and status, the part about LoRA adapters: changes of the model's weights, each with a name of its own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api.base import ApiStruct, Rules, rule

MAX_ADAPTERS: Final = 64
"""Adapters of one cluster: their list fits into one call of an agent (64 KiB)."""
RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's `--max-lora-rank` takes, beside 1."""

_ANY_RANK: Final = {"enum": [*RANKS]}

AdapterName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$",
        description="Name that clients send as `model`. It stands for these weights: other weights get another name.",
    ),
]


class Adapter(ApiStruct, frozen=True, kw_only=True):
    """One LoRA adapter."""

    name: AdapterName
    source: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            pattern=r"^(/[A-Za-z0-9._/=@+-]+|[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)$",
            description="Folder inside the worker, such as /cache/adapters/sql (model.cache is mounted at /cache) or "
            "one of the worker image; or a hub id, such as acme/sql-lora, read with model.credentials. It holds "
            "adapter_config.json and adapter_model.safetensors, as PEFT writes them.",
        ),
    ]
    revision: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] | None,
        Meta(description="Commit, branch or tag of a hub id. A commit makes all workers load the same weights."),
    ] = None
    rank: Annotated[
        Annotated[int, Meta(ge=1, le=512)] | None,
        Meta(description="Rank (`r` of adapter_config.json). Where it is written, it is checked at once."),
    ] = None

    rules: ClassVar[Rules] = (
        rule(
            "!has(self.revision) || !self.source.startsWith('/')",
            "revision: a folder has none; remove revision, or name a hub id in source",
        ),
        rule(
            "self.source == oldSelf.source && has(self.revision) == has(oldSelf.revision)"
            " && (!has(self.revision) || self.revision == oldSelf.revision)",
            "source, revision: a name stands for the same weights as long as it is listed, or answers would mix two; "
            "add the new weights under another name, then remove this one",
        ),
    )


class Adapters(ApiStruct, frozen=True, kw_only=True):
    """LoRA adapters of the model."""

    max: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_ADAPTERS,
            description="Most adapters at a time. Each worker keeps memory for as many of the largest rank. Changing "
            "it replaces the workers.",
        ),
    ]
    max_rank: Annotated[
        int,
        Meta(
            ge=1,
            le=512,
            description="Largest rank of an adapter. Changing it replaces the workers.",
            extra_json_schema=_ANY_RANK,
        ),
    ] = 16
    list: Annotated[
        tuple[Adapter, ...],
        Meta(
            max_length=MAX_ADAPTERS,
            description="The adapters. Workers load and unload them while they serve.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()

    rules: ClassVar[Rules] = (
        rule(
            "!has(self.list) || size(self.list) <= self.max",
            "list: has more adapters than max; remove some, or raise max (which replaces the workers)",
        ),
        rule(
            "!has(self.list) || self.list.all(a, !has(a.rank) || a.rank <= self.maxRank)",
            "list[].rank: is above maxRank; raise maxRank (which replaces the workers), or train a smaller adapter",
        ),
    )


class AdapterStatus(ApiStruct, frozen=True, kw_only=True):
    """One adapter on the workers."""

    name: Annotated[str, Meta(max_length=128, description="Its name.")]
    loaded: Annotated[int, Meta(ge=0, description="Ready workers that have loaded it.")]
    workers: Annotated[int, Meta(ge=0, description="Ready workers.")]
    message: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Why a worker has not loaded it, and what to do; absent while all have, or still load."),
    ] = None
