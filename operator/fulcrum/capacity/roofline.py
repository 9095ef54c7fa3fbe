"""How fast an engine should be, from its model and its accelerator.

A step multiplies every token with the weights (bound by compute, or by reading the weights), attends, talks to its
neighbours and pays for its launch. The constants in `Efficiency` are what real engines reach of the peaks; they were
fitted once to published measurements (`benchmarks/capacity.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.accelerators import Accelerator
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.kv import Link, kv_bytes_per_token, kv_capacity_tokens, transfer_cost
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.speed import MAX_BATCH, SpeedSource, WorkerSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What an engine reaches of the peaks, and what it pays per step."""

    bf16_flops: float = 0.78
    """Share of peak FLOP/s in linear layers."""
    fp8_flops: float = 0.53
    expert_flops: float = 0.28
    """Factor on the above in mixtures of experts."""
    attention_flops: float = 0.45
    """Share of peak BF16 FLOP/s in prefill attention."""
    weight_bandwidth: float = 0.9
    """Share of peak memory bandwidth while reading weights."""
    kv_bandwidth: float = 0.9
    """The same for the KV cache, whose blocks are scattered."""
    link_bandwidth: float = 0.65
    """Share of a link's rate in large all-reduces."""
    step_seconds: float = 0.5e-3
    """Scheduling, sampling and launch of one step."""
    layer_seconds: float = 38e-6
    """Small kernels of one layer (norms, rotary, quantization, routing) and the gaps between all of them."""
    host_layer_seconds: float = 0.0
    """What the host takes to launch one layer, while the GPU works: the longer of the two counts."""
    request_seconds: float = 20e-6
    """Sampling and bookkeeping of one request in a step."""
    all_reduce_seconds: float = 6e-6
    """Latency of one all-reduce inside a machine, per doubling of the group."""
    network_seconds: float = 25e-6
    """Latency that an all-reduce over machines, or a hop between pipeline stages, adds."""


GRAPHS: Final = Efficiency()
"""Engines of today: CUDA graphs, overlapped scheduling. Fitted to the H100 rows of silicon_h100.csv."""
EAGER: Final = Efficiency(
    bf16_flops=0.65,
    fp8_flops=0.45,
    attention_flops=0.16,
    weight_bandwidth=0.7,
    link_bandwidth=0.24,
    layer_seconds=22e-6,
    host_layer_seconds=380e-6,
    request_seconds=310e-6,
    all_reduce_seconds=42e-6,
)
"""Engines that launch every kernel from Python (`--enforce-eager`, all of 2023). Fitted to splitwise_perf_model.csv."""

_PROMPTS: Final = ((128,), (512,), (1024,), (2048,), (4096,), (8192,), (512,) * 4, (1024,) * 8)
_BATCHES: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
"""A worker under load; a mixture of experts with fewer requests reads fewer experts and is quicker than this line."""
_CONTEXTS: Final = (256, 1024, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Step times of one engine. `coefficients` is the linear form of it that the rest of Fulcrum computes with."""

    shape: EngineShape
    efficiency: Efficiency = GRAPHS

    def prefill_seconds(self, lengths: Sequence[int]) -> float:
        """Seconds until prompts of these lengths, scheduled together, have their first token.

        Beyond the step's token budget they run in chunks. Pipeline stages work on different chunks at once; filling and
        emptying the pipeline is what is lost (`stages - 1` chunks).
        """
        shape = self.shape
        tokens = sum(lengths)
        chunks = math.ceil(tokens / shape.max_batched_tokens)
        pairs = sum(length * length for length in lengths) / 2
        window = self._windowed_pairs(lengths)
        chunk = tokens / chunks
        steps = chunks * self._step_seconds(tokens=chunk, heads=len(lengths) / chunks)
        attention = self._attention_seconds(pairs, window)
        stages = shape.pipeline
        return (steps + attention) * (chunks + stages - 1) / (chunks * stages) + self._hops_seconds(chunk)

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Seconds between two tokens of each of `batch` requests whose contexts sum up to `context_tokens`.

        With a pipeline the batch is cut into one part per stage; a token passes all stages, so weights are read as
        often as without one, and requests and contexts count only for their part.
        """
        shape, model = self.shape, self.shape.model
        part, context = batch / shape.pipeline, context_tokens / shape.pipeline
        full = model.layers - model.windowed_layers
        seen = full * context
        if model.window_tokens is not None:
            seen += model.windowed_layers * min(context, part * model.window_tokens)
        read_bytes = seen / model.layers * kv_bytes_per_token(model, shape.kv) / shape.kv_split
        read = read_bytes / (shape.accelerator.memory_bytes_per_second * self.efficiency.kv_bandwidth)
        return self._step_seconds(tokens=part, heads=part) + read + self._hops_seconds(part)

    def coefficients(self) -> SpeedCoefficients:
        """The linear form nearest to this, in relative error, over common prompts, batches and contexts."""
        lengths = list(_PROMPTS)
        prefill = fit_relative(
            [(1.0, float(sum(each)), float(sum(length * length for length in each))) for each in lengths],
            [self.prefill_seconds(each) for each in lengths],
        )
        points = [
            (batch, batch * each) for batch in _BATCHES if batch <= max(8, self.shape.max_batch) for each in _CONTEXTS
        ]
        decode = fit_relative(
            [(1.0, float(batch), float(context)) for batch, context in points],
            [self.decode_step_seconds(batch, context) for batch, context in points],
        )
        return SpeedCoefficients.of(prefill=prefill, decode=decode)

    def _step_seconds(self, *, tokens: float, heads: float) -> float:
        """One pass of `tokens` through all layers, attention left out; `heads` of them go on to the vocabulary."""
        shape, model, spent = self.shape, self.shape.model, self.efficiency
        gpu = shape.accelerator
        read_bytes = model.weight_bytes(shape.weights)
        if model.tied_embeddings is False:
            read_bytes -= model.head_parameters * Precision.BF16.bytes  # a look-up reads rows, not the table
        if (moe := model.moe) is not None:
            # Chosen at random, an expert stays untouched by all tokens with (1 - k/E)^tokens.
            untouched = (1 - moe.active_experts / moe.experts) ** tokens
            read_bytes -= model.expert_parameters * shape.weights.bytes * untouched
        reading = read_bytes / (shape.tensor * gpu.memory_bytes_per_second * spent.weight_bandwidth)
        flops = (
            2 * (model.dense_parameters + model.active_expert_parameters) * tokens + 2 * model.head_parameters * heads
        )
        share = spent.fp8_flops if shape.compute_flops == gpu.fp8_flops else spent.bf16_flops
        if moe is not None:
            share *= spent.expert_flops
        computing = flops / (shape.tensor * shape.compute_flops * share)
        launching = spent.step_seconds + model.layers * spent.layer_seconds + heads * spent.request_seconds
        busy = max(reading, computing) + launching + self._all_reduces_seconds(tokens)
        return max(busy, model.layers * spent.host_layer_seconds)

    def _attention_seconds(self, pairs: float, windowed_pairs: float) -> float:
        shape, model = self.shape, self.shape.model
        layers = (model.layers - model.windowed_layers) * pairs + model.windowed_layers * windowed_pairs
        rate = shape.tensor * shape.accelerator.bf16_flops * self.efficiency.attention_flops
        return 2 * model.attention_dims * layers / rate

    def _windowed_pairs(self, lengths: Sequence[int]) -> float:
        if (window := self.shape.model.window_tokens) is None:
            return 0.0
        return sum(length * min(length / 2, window) for length in lengths)

    def _all_reduces_seconds(self, tokens: float) -> float:
        """Two all-reduces of the hidden states per layer: a ring inside the machine, one more over machines."""
        shape, model, spent = self.shape, self.shape.model, self.efficiency
        if shape.tensor == 1:
            return 0.0
        gpu = shape.accelerator
        inside = min(shape.tensor, gpu.per_machine)
        machines = math.ceil(shape.tensor / gpu.per_machine)
        volume = tokens * model.hidden * Precision.BF16.bytes
        seconds = spent.all_reduce_seconds * math.log2(inside) if inside > 1 else 0.0
        seconds += 2 * (inside - 1) / inside * volume / (gpu.local_bytes_per_second * spent.link_bandwidth)
        if machines > 1:
            share = volume / inside  # each GPU of a machine reduces its part with its peers
            seconds += spent.network_seconds
            seconds += 2 * (machines - 1) / machines * share / (gpu.network_bytes_per_second * spent.link_bandwidth)
        return 2 * model.layers * seconds

    def _hops_seconds(self, tokens: float) -> float:
        """Hidden states from stage to stage, over the network when the stages do not fit into one machine."""
        shape, spent = self.shape, self.efficiency
        if shape.pipeline == 1:
            return 0.0
        gpu = shape.accelerator
        one_machine = shape.tensor * shape.pipeline <= gpu.per_machine
        rate = gpu.local_bytes_per_second if one_machine else gpu.network_bytes_per_second
        volume = tokens * shape.model.hidden * Precision.BF16.bytes / shape.tensor
        return (shape.pipeline - 1) * (spent.network_seconds + volume / (rate * spent.link_bandwidth))


def worker_speed(
    model: ModelConfig,
    accelerator: Accelerator,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    weights: Precision | None = None,
    kv: Precision = Precision.FP8,
    link: Link = Link.NETWORK,
    max_batch: int = MAX_BATCH,
    max_batched_tokens: int = 8192,
    memory_utilization: float = 0.9,
    kv_memory_bytes: int | None = None,
    efficiency: Efficiency = GRAPHS,
) -> WorkerSpeed:
    """Speed and room of a worker that was not measured yet.

    `weights` None takes the format the model is published in; `kv_memory_bytes` is the cache per GPU where it is set by
    hand.

    Raises:
        EngineShapeError: the parallelism does not fit the model, the weights do not fit the memory, or there is no such
            link.
    """
    shape = EngineShape(
        model=model,
        accelerator=accelerator,
        tensor=tensor,
        pipeline=pipeline,
        weights=weights or model.weights,
        kv=kv,
        max_batch=max_batch,
        max_batched_tokens=max_batched_tokens,
        memory_utilization=memory_utilization,
    )
    return shape_speed(shape, link=link, kv_memory_bytes=kv_memory_bytes, efficiency=efficiency)


def shape_speed(
    shape: EngineShape,
    *,
    link: Link = Link.NETWORK,
    kv_memory_bytes: int | None = None,
    efficiency: Efficiency = GRAPHS,
) -> WorkerSpeed:
    """`worker_speed` of an engine shape."""
    transfer = transfer_cost(shape, link)
    return WorkerSpeed(
        coefficients=Roofline(shape=shape, efficiency=efficiency).coefficients(),
        kv_capacity_tokens=kv_capacity_tokens(shape, kv_memory_bytes=kv_memory_bytes),
        max_batch=shape.max_batch,
        max_batched_tokens=shape.max_batched_tokens,
        transfer_base_seconds=transfer.base_seconds,
        transfer_seconds_per_token=transfer.seconds_per_token,
        source=SpeedSource.ROOFLINE,
    )
