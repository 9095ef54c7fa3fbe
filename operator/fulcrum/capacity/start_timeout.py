"""How long the start of an engine may take: what `engine.startTimeout` comes to where the spec leaves it out."""

from __future__ import annotations

import math
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.engine_types import LONGEST_START_TIMEOUT, USUAL_START_TIMEOUT
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import LONGEST_START_FACTOR
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name

SLOWEST_LOAD_BYTES_PER_SECOND: Final = 50e6
"""Rate of a slow network or disk from which weights come: 4 h for the 689 GB of DeepSeek-V3."""


def start_timeout(spec: InferenceClusterSpec, model: ModelFacts | None) -> str:
    """Return `engine.startTimeout`, or where it is absent a time that follows from the bytes of the weights.

    The longest start (`LONGEST_START_FACTOR` times the time-out) has to take in the load of all weights at
    `SLOWEST_LOAD_BYTES_PER_SECOND`, and then the usual time-out for compilation and graph capture. `model` is what is
    known of the model; None: what its name says. Where its size is unknown the usual time-out stays.
    """
    if spec.engine.start_timeout is not None:
        return spec.engine.start_timeout
    dimensions = (model or facts_of_name(spec.model.name)).dimensions
    if dimensions is None:
        return USUAL_START_TIMEOUT
    usual_seconds = seconds(USUAL_START_TIMEOUT)
    longest_seconds = dimensions.weight_bytes() / SLOWEST_LOAD_BYTES_PER_SECOND + usual_seconds
    needed_seconds = min(longest_seconds / LONGEST_START_FACTOR, seconds(LONGEST_START_TIMEOUT))
    return f"{math.ceil(max(usual_seconds, needed_seconds) / 60)}m"


def start_timeout_seconds(spec: InferenceClusterSpec, model: ModelFacts | None) -> float:
    """Return `start_timeout` in seconds."""
    return seconds(start_timeout(spec, model))
