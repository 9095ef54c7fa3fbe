"""Layers of a `config.json` that have a state of fixed size: gated delta networks and Mamba 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fulcrum.capacity.config_fields import Fields
from fulcrum.capacity.model import StateConfig

_STATEFUL: Final = frozenset({"linear_attention", "mamba", "mamba2"})


def state_config(fields: Fields, layers: int, hidden: int) -> StateConfig | None:
    """Return the layers with a state, their weights and its size; None where all layers attend."""
    if fields.get("linear_num_value_heads") is not None:
        return _delta_network(fields, layers, hidden)
    if fields.get("mamba_n_heads") is not None:
        return _mamba(fields, layers, hidden)
    return None


def _delta_network(fields: Fields, layers: int, hidden: int) -> StateConfig | None:
    """Qwen3-Next and Qwen3.5."""
    every = fields.integer("full_attention_interval", default=4)
    return delta_network(
        _stateful_layers(fields, layers - layers // every),
        hidden,
        heads=(fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")),
        head_dims=(fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")),
        kernel=fields.integer("linear_conv_kernel_dim", default=4),
    )


def delta_network(
    layers: int, hidden: int, *, heads: tuple[int, int], head_dims: tuple[int, int] = (128, 128), kernel: int = 4
) -> StateConfig | None:
    """Return gated delta networks; `heads` and `head_dims` of keys and of values, `kernel` of the convolution."""
    (keys, values), (key_size, value_size) = heads, head_dims
    mixed = 2 * keys * key_size + values * value_size
    return _state(
        layers,
        parameters=hidden * (mixed + 2 * values * value_size + 2 * values) + mixed * kernel,
        state=_state_bytes(convolution=mixed * (kernel - 1), recurrent=values * key_size * value_size),
    )


def _mamba(fields: Fields, layers: int, hidden: int) -> StateConfig | None:
    """Granite 4 and others with Mamba 2."""
    heads, size = fields.integer("mamba_n_heads"), fields.integer("mamba_d_state")
    inner = fields.integer("mamba_expand", default=2) * hidden
    mixed = inner + 2 * fields.integer("mamba_n_groups", default=1) * size
    kernel = fields.integer("mamba_d_conv", default=4)
    return _state(
        _stateful_layers(fields, layers),
        parameters=hidden * (inner + mixed + heads + inner) + mixed * kernel,
        state=_state_bytes(convolution=mixed * (kernel - 1), recurrent=inner * size),
    )


def _state_bytes(*, convolution: int, recurrent: int) -> int:
    """Return the bytes of so many numbers.

    vLLM keeps the recurrent state in FP32 where the checkpoint asks for it, as the known ones do, and that of the
    convolution in BF16.
    """
    return 2 * convolution + 4 * recurrent


def _state(layers: int, *, parameters: int, state: int) -> StateConfig | None:
    return StateConfig(layers=layers, parameters=parameters, bytes=state) if layers else None


def _stateful_layers(fields: Fields, otherwise: int) -> int:
    for name in ("layer_types", "layers_block_type"):
        kinds = fields.get(name)
        if isinstance(kinds, Sequence) and not isinstance(kinds, str):
            return sum(1 for kind in kinds if kind in _STATEFUL)
    return otherwise
