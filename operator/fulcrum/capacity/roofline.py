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

from fulcrum.api.parallelism import PLAIN_BACKEND
from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.accelerators import MEMORY_UTILIZATION, Accelerator
from fulcrum.capacity.decode_curve import fitted_curve
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.experts import Exchange, busiest_reads, busiest_tokens, touched_share
from fulcrum.capacity.kv import Link, kv_bytes_per_token_and_layer, kv_capacity_tokens, transfer_cost
from fulcrum.capacity.model import ModelConfig
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.capacity.precision import Precision
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed


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
    step_seconds: float = 0.7e-3
    """Scheduling, sampling and launch of one step."""
    layer_seconds: float = 39e-6
    """Small kernels of one layer (norms, rotary, quantization, routing) and the gaps between all of them."""
    host_layer_seconds: float = 0.0
    """What the host takes to launch one layer, while the GPU works: the longer of the two counts."""
    routing_seconds: float = 1.6e-6
    """What a layer of experts takes besides, for each expert that a token uses: choosing, sorting, adding up."""
    expert_seconds: float = 0.035e-6
    """What each expert that a layer touches takes besides its bytes: its own tiles and launch, on every GPU."""
    serving: float = 1.0
    """Share of the accelerator's `serving_seconds` that prefills pay."""
    request_seconds: float = 21e-6
    """Sampling and bookkeeping of one request in a step."""
    all_reduce_seconds: float = 4e-6
    """Latency of one all-reduce inside a machine, per doubling of the group."""
    exchange_seconds: float = 15e-6
    """Latency of one all-to-all between ranks that share experts, inside a machine."""
    exchange_network_seconds: float = 10e-6
    """What it takes longer over machines: with the share below, what DeepEP measured on 2 to 8 of them within 3 %."""
    exchange_bandwidth: float = 0.86
    """Share of a link's rate in these: 43 of 50 GB/s in DeepEP's own measurements (README), on H800 with 400 Gb/s."""
    network_seconds: float = 54e-6
    """Latency that an all-reduce over machines, or a hop between pipeline stages, adds. Fitted to rows of two machines
    by `benchmarks/capacity_groups.py`."""


GRAPHS: Final = Efficiency()
"""Engines of today: CUDA graphs, overlapped scheduling. Fitted to the rows of silicon_h100.csv; what decode steps take
to those of vLLM first, by `benchmarks/capacity_held_out.py`."""
EAGER: Final = Efficiency(
    bf16_flops=0.65,
    fp8_flops=0.45,
    attention_flops=0.16,
    weight_bandwidth=0.7,
    link_bandwidth=0.24,
    layer_seconds=22e-6,
    host_layer_seconds=380e-6,
    serving=0.0,
    step_seconds=0.5e-3,
    request_seconds=310e-6,
    all_reduce_seconds=42e-6,
)
"""Engines that launch every kernel from Python (`--enforce-eager`, all of 2023). Fitted to splitwise_perf_model.csv."""

USUAL_BATCHES: Final = (8, 16, 32, 64, 128, 256)
"""A worker under load: what the straight line nearest to the curve is fitted to."""


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
        serving = shape.accelerator.serving_seconds * self.efficiency.serving
        return (steps + attention) * (chunks + stages - 1) / (chunks * stages) + self._hops_seconds(chunk) + serving

    def decode_step_seconds(self, batch: float, context_tokens: float) -> float:
        """Seconds between two tokens of each of `batch` requests whose contexts sum up to `context_tokens`.

        With a pipeline the batch is cut into one part per stage; a token passes all stages, so weights are read as
        often as without one, and requests and contexts count only for their part.
        """
        shape, model = self.shape, self.shape.model
        part, context = batch / shape.pipeline, context_tokens / shape.pipeline
        seen = model.full_layers * context
        if model.window_tokens is not None:
            seen += model.windowed_layers * min(context, part * model.window_tokens)
        read_bytes = seen * kv_bytes_per_token_and_layer(model, shape.kv) / shape.kv_split
        read_bytes += 2 * part * model.state_bytes / shape.tensor  # states are written back, too
        read = read_bytes / (shape.accelerator.memory_bytes_per_second * self.efficiency.kv_bandwidth)
        return self._step_seconds(tokens=part, heads=part) + read + self._hops_seconds(part)

    def coefficients(self) -> SpeedCoefficients:
        """The form that all of Fulcrum computes with, nearest to this in relative error at common sizes."""
        lengths = [(128,), (512,), (1024,), (2048,), (4096,), (8192,), (512,) * 4, (1024,) * 8]
        prefill = fit_relative(
            [(1.0, float(sum(each)), float(sum(length * length for length in each))) for each in lengths],
            [self.prefill_seconds(each) for each in lengths],
        )
        # The window of some layers ends their growth between these contexts.
        rows = [
            (float(batch), float(batch * each), self.decode_step_seconds(batch, batch * each))
            for batch in (1, 2, 4, *USUAL_BATCHES, 512)
            for each in (256, 1024, 4096)
        ]
        usual = [row for row in rows if row[0] in USUAL_BATCHES]
        line = fit_relative([(1.0, batch, context) for batch, context, _ in usual], [row[2] for row in usual])
        return SpeedCoefficients.of(prefill=prefill, decode=line, decode_curve=fitted_curve(rows, line))

    def _step_seconds(self, *, tokens: float, heads: float) -> float:
        """One pass of `tokens` through all layers, attention left out; `heads` of them go on to the vocabulary."""
        shape, model, spent = self.shape, self.shape.model, self.efficiency
        gpu = shape.accelerator
        rate = gpu.memory_bytes_per_second * spent.weight_bandwidth
        read_bytes, routing, experts, busiest = model.weight_bytes(shape.weights), 0.0, 0.0, 1.0
        if model.tied_embeddings is False:
            read_bytes -= model.head_parameters * Precision.BF16.bytes  # a look-up reads rows, not the table
        if (moe := model.moe) is not None:
            touched, gpus = touched_share(moe, tokens * shape.data), shape.expert_gpus
            expert_bytes = model.expert_parameters * shape.weights.bytes
            read_bytes -= expert_bytes
            sparse_layers = model.layers - moe.dense_layers
            routing = sparse_layers * moe.active_experts * spent.routing_seconds
            tiles = float(moe.experts)
            if shape.experts:
                touched *= busiest_reads(moe, tokens * shape.data, gpus)
                busiest = busiest_tokens(moe, tokens * shape.data, gpus)
                tiles /= gpus
            experts = touched * sparse_layers * tiles * spent.expert_seconds
            experts += touched * expert_bytes / (gpus * min(rate, gpu.expert_bytes_per_second or rate))
        reading = read_bytes / (shape.tensor * rate) + experts
        flops = (
            2 * (model.dense_parameters + busiest * model.active_expert_parameters) * tokens
            + 2 * model.head_parameters * heads
        )
        share = spent.bf16_flops if shape.compute_flops == gpu.bf16_flops else spent.fp8_flops
        if moe is not None:
            share *= spent.expert_flops
        computing = flops / (shape.tensor * shape.compute_flops * share)
        launching = spent.step_seconds + model.layers * spent.layer_seconds + routing + heads * spent.request_seconds
        busy = max(reading, computing) + launching + self._all_reduces_seconds(tokens) + self._exchange_seconds(tokens)
        return max(busy, model.layers * spent.host_layer_seconds)

    def _attention_seconds(self, pairs: float, windowed_pairs: float) -> float:
        shape, model = self.shape, self.shape.model
        layers = model.full_layers * pairs + model.windowed_layers * windowed_pairs
        rate = shape.tensor * shape.accelerator.bf16_flops * self.efficiency.attention_flops
        return 2 * model.attention_dims * layers / rate

    def _windowed_pairs(self, lengths: Sequence[int]) -> float:
        if (window := self.shape.model.window_tokens) is None:
            return 0.0
        return sum(length * min(length / 2, window) for length in lengths)

    def _all_reduces_seconds(self, tokens: float) -> float:
        """Two all-reduces of the hidden states per layer: a ring inside the machine, one more over machines.

        Where ranks share experts, all-to-alls stand for the second one of layers that have them.
        """
        shape, model, spent = self.shape, self.shape.model, self.efficiency
        if shape.tensor == 1:
            return 0.0
        gpu = shape.accelerator
        inside = min(shape.tensor, gpu.per_machine)
        machines = math.ceil(shape.tensor / gpu.per_machine)
        volume = tokens * model.hidden * Precision.BF16.bytes
        seconds = spent.all_reduce_seconds * math.log2(inside) if inside > 1 else 0.0
        seconds += 2 * (inside - 1) / inside * volume / (gpu.local_bytes_per_second * spent.link_bandwidth)
        if inside > gpu.joined_directly:
            seconds *= gpu.shared_pcie_factor
        if machines > 1:
            share = volume / inside  # each GPU of a machine reduces its part with its peers
            seconds += spent.network_seconds
            seconds += 2 * (machines - 1) / machines * share / (gpu.network_bytes_per_second * spent.link_bandwidth)
        shared = model.layers - model.moe.dense_layers if model.moe is not None and shape.data > 1 else 0
        return (2 * model.layers - shared) * seconds

    def _exchange_seconds(self, tokens: float) -> float:
        """What tokens of a rank take to their experts and back, in all layers that have some."""
        shape, spent, moe = self.shape, self.efficiency, self.shape.model.moe
        if moe is None or shape.data == 1:
            return 0.0
        exchange = Exchange(accelerator=shape.accelerator, gpus=shape.expert_gpus, backend=shape.expert_backend)
        seconds = exchange.seconds(
            moe,
            tokens=tokens / shape.tensor,  # each GPU of a rank sends its part
            hidden=shape.model.hidden,
            sent=shape.weights if shape.weights is Precision.FP8 else Precision.BF16,
            bandwidth=spent.exchange_bandwidth,
            latency_seconds=spent.exchange_seconds + (spent.exchange_network_seconds if exchange.machines > 1 else 0.0),
        )
        return (shape.model.layers - moe.dense_layers) * seconds

    def _hops_seconds(self, tokens: float) -> float:
        """Hidden states from stage to stage, over the network when the stages do not fit into one machine."""
        shape, spent = self.shape, self.efficiency
        if shape.pipeline == 1:
            return 0.0
        gpu = shape.accelerator
        one_machine = shape.rank_gpus <= gpu.per_machine
        rate = gpu.local_bytes_per_second if one_machine else gpu.network_bytes_per_second
        volume = tokens * shape.model.hidden * Precision.BF16.bytes / shape.tensor
        return (shape.pipeline - 1) * (spent.network_seconds + volume / (rate * spent.link_bandwidth))


def worker_speed(
    model: ModelConfig,
    accelerator: Accelerator,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    experts: bool = False,
    expert_backend: str = PLAIN_BACKEND,
    weights: Precision | None = None,
    kv: Precision = Precision.FP8,
    link: Link = Link.NETWORK,
    max_batch: int = 0,
    max_batched_tokens: int = 0,
    memory_utilization: float = MEMORY_UTILIZATION,
    kv_memory_bytes: int | None = None,
    efficiency: Efficiency = GRAPHS,
) -> WorkerSpeed:
    """Speed and room of a worker that was not measured yet.

    `weights` None takes the format the model is published in, `max_batch` and `max_batched_tokens` 0 vLLM's defaults;
    `kv_memory_bytes` is the cache per GPU where it is set by hand.

    Raises:
        EngineShapeError: the parallelism does not fit the model, the weights do not fit the memory, or there is no such
            link.
    """
    shape = EngineShape(
        model=model,
        accelerator=accelerator,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        experts=experts,
        expert_backend=expert_backend,
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
        ranks=shape.data,
        max_batch=shape.max_batch,
        max_batched_tokens=shape.max_batched_tokens,
        transfer_base_seconds=transfer.base_seconds,
        transfer_seconds_per_token=transfer.seconds_per_token,
        source=SpeedSource.ROOFLINE,
    )
