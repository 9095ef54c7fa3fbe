"""What is known of the model that a cluster serves: by the tables of models, else by a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from fulcrum.api.attention import AttentionKind
from fulcrum.capacity.config_fields import MOST_BYTES, ModelConfigError, relevant
from fulcrum.capacity.hf_config import parse_model_config
from fulcrum.capacity.known_models import UnknownModelError, known_model
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.model_kinds import ModelKind, kind_of_config, kind_of_name

MOST_PARAMETERS: Final = 10**14
"""Largest model that a config.json can describe: 100 times the largest ones of 2026. Sizes of disks follow from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One model. None is unknown."""

    kind: ModelKind | None = None
    dimensions: ModelConfig | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is unknown."""
        return self.kind is not None and self.dimensions is not None

    @property
    def attention(self) -> AttentionKind:
        """The kind of attention that engines are set up for."""
        return self.kind.attention if self.kind is not None else AttentionKind.DENSE

    @property
    def kv_heads(self) -> int | None:
        """KV heads of one layer."""
        if self.dimensions is not None:
            return self.dimensions.kv_heads
        return self.kind.kv_heads if self.kind is not None else None

    def or_else(self, other: ModelFacts) -> ModelFacts:
        """Return these facts, with those of `other` where they are unknown."""
        return ModelFacts(kind=self.kind or other.kind, dimensions=self.dimensions or other.dimensions)

    def named(self, name: str) -> ModelFacts:
        """Return the facts with the name of the model in its dimensions, which messages show."""
        return self if self.dimensions is None else replace(self, dimensions=replace(self.dimensions, name=name))


@lru_cache(maxsize=1024)
def facts_of_name(name: str) -> ModelFacts:
    """Return what the tables say of a model by its hub id or path."""
    dimensions: ModelConfig | None = None
    with suppress(UnknownModelError):
        dimensions = known_model(name)
    return ModelFacts(kind=kind_of_name(name), dimensions=dimensions)


def facts_of_config(document: Mapping[str, Any]) -> ModelFacts:
    """Return what a config.json says, whoever wrote it.

    Raises:
        ModelConfigError: a field is missing or impossible.
    """
    fields = relevant(document)
    kind, dimensions = kind_of_config(fields), parse_model_config(fields)
    if dimensions.parameters > MOST_PARAMETERS:
        raise ModelConfigError("(the document)", f"describes more than {MOST_PARAMETERS:.0e} parameters")
    # Layers with a state of a kind that is not counted: its size and its KV stay unknown.
    counted = not kind.hybrid or dimensions.state is not None
    return ModelFacts(kind=kind, dimensions=dimensions if counted else None)


def parse_facts(text: bytes | str) -> ModelFacts:
    """Return what the text of a config.json says, whoever wrote it.

    Raises:
        ModelConfigError: too large, no JSON object, or as `facts_of_config`.
    """
    if len(text) > MOST_BYTES:
        raise ModelConfigError(
            "(the document)",
            f"has {len(text)} bytes, and {MOST_BYTES} are the most: leave out lists such as quantization_config.ignore",
        )
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ModelConfigError("(the document)", f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ModelConfigError("(the document)", "must be a JSON object, as in the model's folder")
    return facts_of_config(document)
