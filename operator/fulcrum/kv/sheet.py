"""What restoring one prefix costs over several links, for people and for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fulcrum.capacity.engine import EngineShape, EngineShapeError
from fulcrum.capacity.kv import TransferCost, kv_bytes_per_token, kv_capacity_tokens
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.roofline import GRAPHS, Efficiency, Roofline
from fulcrum.kv.restore import Restore, restore

_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLink:
    """What lies between an engine and the tier that holds its KV."""

    name: str
    bytes_per_second: float
    """What large copies reach, one direction, for one GPU or for the whole engine."""
    per_gpu: bool = False
    """Each GPU has a link of its own (PCIe); otherwise all GPUs of the engine share one (a network card, a disk)."""


LINKS: Final = (
    NamedLink(name="PCIe Gen5 x16", bytes_per_second=50 * _GIGA, per_gpu=True),
    NamedLink(name="PCIe Gen4 x16", bytes_per_second=25 * _GIGA, per_gpu=True),
    NamedLink(name="100 Gb/s network", bytes_per_second=11.5 * _GIGA),
    NamedLink(name="one NVMe", bytes_per_second=6 * _GIGA),
    NamedLink(name="25 Gb/s network", bytes_per_second=2.9 * _GIGA),
    NamedLink(name="1 GB/s storage", bytes_per_second=1 * _GIGA),
)
"""Usual links, at about 80 to 93 % of their nominal rate, as large copies reach them."""


class RestoreLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One link. Seconds to the first token by each way, and what the best split gains over the better of both ends."""

    link: str
    bytes_per_second: float
    load_seconds: float
    recompute_seconds: float
    front_seconds: float
    front_recompute_tokens: int
    front_gain: float
    """Share of the time of the better of `load` and `recompute` that front recomputation saves."""
    layers_seconds: float
    layers_gain: float


class RestoreSheet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What `fulcrum kv` shows."""

    model: str
    accelerator: str
    tensor: int
    weights: str
    kv: str
    prefix_tokens: int
    prompt_tokens: int
    kv_bytes_per_token: float
    activation_bytes_per_token: float
    """What KVPR loads instead of KV for the part that it recomputes: the layers' inputs in BF16."""
    break_even_bytes_per_second: float
    """Below this rate computing the prefix is quicker than loading it."""
    lines: tuple[RestoreLine, ...]


def restore_sheet(
    shape: EngineShape,
    *,
    prefix_tokens: int,
    new_tokens: int,
    links: Sequence[NamedLink] = LINKS,
    efficiency: Efficiency = GRAPHS,
) -> RestoreSheet:
    """Lay out the restore of `prefix_tokens` before `new_tokens` that no engine has computed yet.

    Raises:
        EngineShapeError: the weights, or the prompt beside them, do not fit the memory.
    """
    capacity = kv_capacity_tokens(shape)
    if prefix_tokens + new_tokens > capacity:
        raise EngineShapeError(
            f"{prefix_tokens + new_tokens:,} tokens do not fit: the KV cache of {shape.model.name} on {shape.tensor} x "
            f"{shape.accelerator.name} holds {capacity:,}. Use a shorter prefix or more GPUs."
        )
    speed = Roofline(shape=shape, efficiency=efficiency).coefficients()
    per_token = kv_bytes_per_token(shape.model, shape.kv)
    compute = speed.prefill_b * prefix_tokens + speed.prefill_c * prefix_tokens**2
    lines = []
    for link in links:
        gpus = shape.kv_split * shape.pipeline if link.per_gpu else 1
        cost = TransferCost(base_seconds=0.0, seconds_per_token=per_token / (link.bytes_per_second * gpus))

        def way(*, front: bool = False, layers: int | None = None, cost: TransferCost = cost) -> Restore:
            return restore(
                matched_tokens=prefix_tokens,
                prompt_tokens=prefix_tokens + new_tokens,
                speed=speed,
                link=cost,
                front=front,
                layers=layers,
            )

        free = TransferCost(base_seconds=0.0, seconds_per_token=0.0)
        tail = way(cost=free).predicted_seconds
        load = cost.seconds(prefix_tokens) + tail
        recompute = compute + tail
        front, layerwise = way(front=True), way(layers=shape.model.layers)
        best_alone = min(load, recompute)
        lines.append(
            RestoreLine(
                link=link.name,
                bytes_per_second=link.bytes_per_second * gpus,
                load_seconds=load,
                recompute_seconds=recompute,
                front_seconds=front.predicted_seconds,
                front_recompute_tokens=front.recompute_tokens,
                front_gain=max(0.0, 1 - front.predicted_seconds / best_alone),
                layers_seconds=layerwise.predicted_seconds,
                layers_gain=max(0.0, 1 - layerwise.predicted_seconds / best_alone),
            )
        )
    return RestoreSheet(
        model=shape.model.name,
        accelerator=shape.accelerator.name,
        tensor=shape.tensor,
        weights=shape.weights.value,
        kv=shape.kv.value,
        prefix_tokens=prefix_tokens,
        prompt_tokens=prefix_tokens + new_tokens,
        kv_bytes_per_token=per_token,
        activation_bytes_per_token=shape.model.layers * shape.model.hidden * Precision.BF16.bytes,
        break_even_bytes_per_second=per_token * prefix_tokens / compute,
        lines=tuple(lines),
    )
