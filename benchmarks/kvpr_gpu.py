"""KVPR's experiment on one GPU, with torch alone: KV in pinned host memory, loaded while its front is recomputed.

    python benchmarks/kvpr_gpu.py [--layers 16] [--contexts 2048 8192 32768] [--batches 1 8 32] [--dtypes bf16 fp8]

A Llama-shaped model of random weights (hidden 4096, 32 heads, 8 KV heads, feed-forward 14336) restores a context and
computes 64 new tokens, in four ways: load all, recompute all, layer by layer (each is computed once its KV is there),
and the front split of `fulcrum.kv.restore` (compute [0, s) while [s, m) loads). Copies and kernels are on two CUDA
streams. Speed and link are measured first, with other lengths than those that are predicted. Prints the median time of
each way, how much of the shorter of both was hidden behind the longer, and the formula's error; beside it the paper's
-35.8 % latency and +46.2 % throughput (arXiv 2411.17089). Without CUDA it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from this_gpu import why_skipped

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.nonnegative import fit_relative
from fulcrum.kv import restore

if TYPE_CHECKING:
    import torch

HIDDEN, HEADS, KV_HEADS, HEAD, FEED = 4096, 32, 8, 128, 14336
NEW_TOKENS: Final = 64
BLOCK: Final = 16
CHUNK: Final = 8192
"""Tokens of the whole batch in one forward pass, as an engine's step budget."""
TIMES: Final = 5
PAPER: Final = "paper: latency -35.8 %, throughput +46.2 % (arXiv 2411.17089, OPT on A100 and PCIe Gen4)"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    batch: int
    context: int
    kv: str


class Model:
    """Random weights, shared by all layers: only the time counts, and 16 layers of 436 MB are 7 GB."""

    def __init__(self, layers: int, setting: Setting) -> None:
        import torch
        from torch.nn.attention.bias import causal_lower_right

        self.causal = causal_lower_right
        self.torch, self.layers, self.setting = torch, layers, setting
        self.kv_dtype = torch.float8_e4m3fn if setting.kv == "fp8" else torch.bfloat16
        generator = torch.Generator(device="cuda").manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator) * 0.02

        self.qkv = weight(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD)
        self.out = weight(HEADS * HEAD, HIDDEN)
        self.up, self.down = weight(HIDDEN, 2 * FEED), weight(FEED, HIDDEN)
        tokens = setting.context + NEW_TOKENS
        shape = (layers, 2, setting.batch, KV_HEADS, tokens, HEAD)
        self.cache = torch.zeros(shape, device="cuda", dtype=self.kv_dtype)
        # Token-major on the host, so that each range of tokens of a layer is one contiguous copy.
        self.host = torch.zeros(
            (layers, tokens // BLOCK, 2, setting.batch, KV_HEADS, BLOCK, HEAD), dtype=self.kv_dtype, pin_memory=True
        )
        self.hidden = weight(setting.batch, tokens, HIDDEN)
        self.copies = torch.cuda.Stream()

    @property
    def bytes_per_token(self) -> int:
        """Of one request, over all layers."""
        return self.layers * 2 * KV_HEADS * HEAD * self.cache.element_size()

    def load(self, start: int, end: int, layers: range | None = None) -> list[Any]:
        """Copy tokens `start` to `end`, whole blocks, layer by layer; returns an event for each layer."""
        events = []
        with self.torch.cuda.stream(self.copies):
            for layer in layers or range(self.layers):
                staged = self.host[layer, start // BLOCK : end // BLOCK].to("cuda", non_blocking=True)
                blocks = staged.permute(1, 2, 3, 0, 4, 5).reshape(2, self.setting.batch, KV_HEADS, end - start, HEAD)
                self.cache[layer, :, :, :, start:end].copy_(blocks)
                event = self.torch.cuda.Event()
                event.record(self.copies)
                events.append(event)
        return events

    def compute(self, start: int, end: int, ready: list[Any] | None = None) -> None:
        """Compute tokens `start` to `end` in chunks; layer k waits for `ready[k]`."""
        size = max(CHUNK // self.setting.batch, BLOCK)
        for first in range(start, end, size):
            last = min(first + size, end)
            hidden = self.hidden[:, first:last]
            for layer in range(self.layers):
                if ready is not None:
                    self.torch.cuda.current_stream().wait_event(ready[layer])
                hidden = self._layer(layer, hidden, first, last)

    def _layer(self, layer: int, hidden: torch.Tensor, first: int, last: int) -> torch.Tensor:
        torch, batch = self.torch, self.setting.batch
        heads = (hidden @ self.qkv).view(batch, last - first, HEADS + 2 * KV_HEADS, HEAD).transpose(1, 2)
        query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        self.cache[layer, 0, :, :, first:last] = key.to(self.kv_dtype)
        self.cache[layer, 1, :, :, first:last] = value.to(self.kv_dtype)
        keys, values = (self.cache[layer, part, :, :, :last].to(torch.bfloat16) for part in (0, 1))
        keys, values = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (keys, values))
        bias = self.causal(last - first, last)
        seen = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
        hidden = hidden + seen.transpose(1, 2).reshape(batch, last - first, HEADS * HEAD) @ self.out
        gate, up = (hidden @ self.up).chunk(2, dim=-1)
        done: torch.Tensor = hidden + (torch.nn.functional.silu(gate) * up) @ self.down
        return done

    def seconds(self, work: Callable[[], object]) -> float:
        """Median time of some runs, both streams idle before and after."""
        taken = []
        for number in range(TIMES + 1):
            self.torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            self.torch.cuda.synchronize()
            if number:  # the first one warms up
                taken.append(time.perf_counter() - began)
        return median(taken)


def measured(model: Model) -> tuple[SpeedCoefficients, TransferCost]:
    """Fit the speed of computing and the rate of the link, from lengths that no way below has."""
    context = model.setting.context
    rows, seconds = [], []
    lengths = ((0, 64), (0, context // 5), (0, context // 3), (context // 2, context * 3 // 4), (0, context - 80))
    for start, end in ((first // BLOCK * BLOCK, max(last // BLOCK, 1) * BLOCK) for first, last in lengths):
        rows.append((1.0, float(end - start), float(end * end - start * start)))
        seconds.append(model.seconds(lambda start=start, end=end: model.compute(start, end)))
    prefill = fit_relative(rows, seconds)
    small, large = context // 4 // BLOCK * BLOCK, context * 3 // 4 // BLOCK * BLOCK
    low, high = (model.seconds(lambda end=end: model.load(0, end)) for end in (small, large))
    rate = (high - low) / (large - small)
    link = TransferCost(base_seconds=max(low - rate * small, 0.0), seconds_per_token=rate)
    return SpeedCoefficients.of(prefill=prefill, decode=(0.0, 0.0, 0.0)), link


def show(model: Model) -> None:
    """Measure one setting, and print its line."""
    setting = model.setting
    prompt, matched = setting.context + NEW_TOKENS, setting.context
    speed, link = measured(model)
    way = restore(matched_tokens=matched, prompt_tokens=prompt, speed=speed, link=link, block_tokens=BLOCK)
    split = way.recompute_tokens

    def loaded() -> None:
        model.load(0, matched)
        model.torch.cuda.current_stream().wait_stream(model.copies)
        model.compute(matched, prompt)

    def layerwise() -> None:
        model.compute(matched, prompt, model.load(0, matched))

    def front() -> None:
        if split < matched:
            model.load(split, matched)
        model.compute(0, split)
        model.torch.cuda.current_stream().wait_stream(model.copies)
        model.compute(matched, prompt)

    load, recompute = model.seconds(loaded), model.seconds(lambda: model.compute(0, prompt))
    by_layer, both = model.seconds(layerwise), model.seconds(front)
    copy, compute = model.seconds(lambda: model.load(split, matched)), model.seconds(lambda: model.compute(0, split))
    tail = model.seconds(lambda: model.compute(matched, prompt))
    hidden = f"{(copy + compute + tail - both) / min(copy, compute):4.0%}" if 0 < split < matched else "   -"
    best = min(load, recompute)
    rate = model.bytes_per_token * setting.batch / link.seconds_per_token / 1e9
    print(
        f"{setting.kv:4} batch {setting.batch:3} context {setting.context:6}: link {rate:5.1f} GB/s, "
        f"load {load * 1e3:8.1f} ms, recompute {recompute * 1e3:8.1f}, layers {by_layer * 1e3:8.1f}, "
        f"front {both * 1e3:8.1f} at {split:6}, hidden {hidden}; latency {both / best - 1:+.1%}, "
        f"throughput {best / both - 1:+.1%} of the better of both, predicted {way.predicted_seconds / both - 1:+.1%}",
        flush=True,
    )


def main() -> int:
    """Print the table, or why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp8"], choices=["bf16", "fp8"])
    asked = parser.parse_args()
    if (why := why_skipped()) is not None:
        print(why)
        return 0
    import torch

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {asked.layers} layers; {PAPER}")
    with torch.inference_mode():
        for kv in asked.dtypes:
            for batch in asked.batches:
                for context in asked.contexts:
                    try:
                        show(Model(asked.layers, Setting(batch, context, kv)))
                    except torch.cuda.OutOfMemoryError:
                        print(f"{kv:4} batch {batch:3} context {context:6}: does not fit")
                    torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
