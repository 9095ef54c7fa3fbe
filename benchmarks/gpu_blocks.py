"""Steps of transformer blocks on one GPU, with torch and Triton alone, beside what `fulcrum capacity` computes.

    python benchmarks/gpu_blocks.py [--save FILE]   measure on this machine's GPU, about two minutes
    python benchmarks/gpu_blocks.py --read          compare what was measured before (gpu_blocks.csv); needs no GPU

Random weights in two shapes: Llama-3.1-8B's layers (BF16 and FP8) and Qwen3-30B-A3B's (a mixture of 128 experts, 8 for
each token), eight layers of each, and the output head. Decode steps run as one CUDA graph at batches 1 to 512, prefill
steps at 128 to 8,192 tokens, both whole and in parts: linear layers (experts among them), attention, the small kernels
between. Copies between host and device are timed by size. Scheduling, sampling and the host are not in it, so the
terms for these are left out of the prediction. A line that is off by more than 20 % at batch 8 and above names the term
that is off by most. Without CUDA it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from this_gpu import why_skipped

if TYPE_CHECKING:
    from torch import Tensor

    from fulcrum.capacity.roofline import Roofline

LAYERS: Final = 8
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS: Final = (1024, 4096)
PROMPTS: Final = (128, 512, 2048, 8192)
KV_TOKENS: Final = 512 * 1024
"""The most that a setting keeps, over all requests: 17 GB of the Llama shape."""
COPY_BYTES: Final = (2**16, 2**20, 2**24, 2**28)
REPLAYS: Final = 15
COLUMNS: Final = (
    "gpu", "model", "weights", "kind", "kv", "batch", "context", "bytes", "all", "linear", "attention", "small",
)  # fmt: skip
TERMS: Final = ("linear", "attention", "small")
MEASURED: Final = Path(__file__).with_suffix(".csv")
"""One H100 and one H200 with torch 2.11: what this script saved there. Times are in microseconds."""
WITHIN: Final = 0.2
LEAST_BATCH: Final = 8
"""What has to be right: batches of a worker under load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Layers of one model."""

    name: str
    hidden: int
    kv_heads: int
    vocab: int
    feed: int
    weights: str = "bf16"
    experts: int = 0
    active: int = 0
    heads: int = 32
    head: int = 128


SHAPES: Final = (
    Shape(name="Llama-3.1-8B", hidden=4096, kv_heads=8, vocab=128256, feed=14336),
    Shape(name="Llama-3.1-8B", hidden=4096, kv_heads=8, vocab=128256, feed=14336, weights="fp8"),
    Shape(name="Qwen3-30B-A3B", hidden=2048, kv_heads=4, vocab=151936, feed=768, experts=128, active=8),
)


class Block:
    """Eight layers and a head on the GPU. `part` names what is run: all, linear, attention or small."""

    def __init__(self, shape: Shape) -> None:
        """Draw the weights."""
        import torch

        self.torch, self.shape = torch, shape
        self.one = torch.ones((), device="cuda")
        self.processors = torch.cuda.get_device_properties(0).multi_processor_count
        compiled = torch.compile(dynamic=True)
        self.norm, self.rotate, self.gated = compiled(_norm), compiled(_rotate), compiled(_gated)
        self.quantized = compiled(_quantized)
        wide = (shape.heads + 2 * shape.kv_heads) * shape.head
        self.qkv = [self.weight(wide, shape.hidden) for _ in range(LAYERS)]
        self.out = [self.weight(shape.hidden, shape.heads * shape.head) for _ in range(LAYERS)]
        if shape.experts:
            self.routed = self.drawn(max(*BATCHES, *PROMPTS), shape.hidden)
            self.router = [self.drawn(shape.experts, shape.hidden) for _ in range(LAYERS)]
            self.up = [self.drawn(shape.experts, 2 * shape.feed, shape.hidden) for _ in range(LAYERS)]
            self.down = [self.drawn(shape.experts, shape.hidden, shape.feed) for _ in range(LAYERS)]
        else:
            self.up = [self.weight(2 * shape.feed, shape.hidden) for _ in range(LAYERS)]
            self.down = [self.weight(shape.hidden, shape.feed) for _ in range(LAYERS)]
        self.lm_head = self.drawn(shape.vocab, shape.hidden)
        self.scale = torch.ones(shape.hidden, device="cuda", dtype=torch.bfloat16)

    def drawn(self, *size: int) -> Tensor:
        """Random BF16 values."""
        return self.torch.empty(size, device="cuda", dtype=self.torch.bfloat16).normal_(0, 0.03)

    def weight(self, *size: int) -> Tensor:
        """Random values in the format of the weights."""
        drawn = self.drawn(*size)
        return drawn.to(self.torch.float8_e4m3fn) if self.shape.weights == "fp8" else drawn

    def linear(self, x: Tensor, weight: Tensor, part: str) -> Tensor:
        """`x` times the transposed weight, or an empty result of its size where linear layers are not asked for."""
        if part in ("attention", "small"):
            return x.new_empty((x.shape[0], weight.shape[0]))
        if self.shape.weights != "fp8":
            return x @ weight.t()
        quantized = self.quantized(x) if part == "all" else x.new_empty(x.shape, dtype=self.torch.float8_e4m3fn)
        done: Tensor = self.torch._scaled_mm(  # noqa: SLF001 - torch has no public product of FP8 matrices
            quantized, weight.t(), scale_a=self.one, scale_b=self.one, out_dtype=self.torch.bfloat16
        )
        return done

    def feed(self, x: Tensor, layer: int, part: str) -> Tensor:
        """The feed-forward part, or the experts."""
        if self.shape.experts:
            return self.mixed(x, layer, part)
        wide = self.linear(x, self.up[layer], part)
        narrow = self.gated(wide) if part in ("all", "small") else wide[:, : self.shape.feed].contiguous()
        return self.linear(narrow, self.down[layer], part)

    def mixed(self, x: Tensor, layer: int, part: str) -> Tensor:
        """Each row through its eight experts: sorted by expert, one grouped product over all of them."""
        torch, shape = self.torch, self.shape
        if part == "attention":
            return x
        # The choice is drawn, not computed from `x`: layers of random weights make all tokens alike within a few steps.
        logits = self.routed[: x.shape[0]] @ self.router[layer].t()
        share, chosen = logits.float().softmax(-1).topk(shape.active)
        order = chosen.flatten().argsort()
        each = torch.arange(shape.experts, device="cuda")
        ends = (chosen.flatten()[:, None] == each).sum(0).cumsum(0).to(torch.int32)
        rows = x[order // shape.active]
        if part == "small":
            narrow, wide = rows.new_empty((rows.shape[0], shape.feed)), rows
        else:
            wide = torch.nn.functional.grouped_mm(rows, self.up[layer].transpose(1, 2), offs=ends)
            narrow = self.gated(wide)
            wide = torch.nn.functional.grouped_mm(narrow, self.down[layer].transpose(1, 2), offs=ends)
        back = torch.empty_like(wide)
        back[order] = wide
        summed = back.view(x.shape[0], shape.active, shape.hidden) * share[:, :, None].to(x.dtype)
        return summed.sum(1)

    def step(
        self, x: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor], last: slice, part: str
    ) -> Tensor:
        """All layers and the head. `attend` takes a layer's number, queries, keys and values."""
        shape, small = self.shape, part in ("all", "small")
        for layer in range(LAYERS):
            normal = self.norm(x, self.scale) if small else x
            heads = self.linear(normal, self.qkv[layer], part).view(x.shape[0], -1, shape.head)
            query, key, value = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
            if small:
                query, key = self.rotate(query), self.rotate(key)
            seen = query if part in ("linear", "small") else attend(layer, query, key, value)
            x = x + self.linear(seen.reshape(x.shape[0], -1), self.out[layer], part)
            normal = self.norm(x, self.scale) if small else x
            x = x + self.feed(normal, layer, part)
        return x if part in ("attention", "small") else x[last] @ self.lm_head.t()


def _norm(x: Tensor, scale: Tensor) -> Tensor:
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype) * scale


def _rotate(heads: Tensor) -> Tensor:
    left, right = heads.float().chunk(2, dim=-1)
    return (left * 0.6 - right * 0.8).to(heads.dtype).repeat(1, 1, 2)


def _gated(wide: Tensor) -> Tensor:
    gate, up = wide.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def _quantized(x: Tensor) -> Tensor:
    import torch

    return x.clamp(-448, 448).to(torch.float8_e4m3fn)


def graph_seconds(work: Callable[[], object]) -> float:
    """Median seconds of a CUDA graph of the work, which is run before, so that everything is compiled."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    taken = [_event_seconds(graph.replay) for _ in range(REPLAYS)]
    return median(taken[2:])


def _event_seconds(work: Callable[[], object]) -> float:
    import torch

    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def attending(block: Block, caches: list[tuple[Tensor, Tensor]]) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    """Decode attention over these caches; the new token's keys and values take their last place."""
    from gpu_kernels import decode_attention

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = caches[layer]
        keys[:, :, -1], values[:, :, -1] = key.to(keys.dtype), value.to(values.dtype)
        return decode_attention(query.contiguous(), keys, values, block.processors)

    return attend


def decode_rows(block: Block) -> Iterator[dict[str, Any]]:
    """Decode steps of one shape: by KV format, context and batch."""
    import torch

    shape = block.shape
    size = LAYERS * KV_TOKENS * shape.kv_heads * shape.head
    for kv in ("bf16", "fp8"):
        dtype = torch.bfloat16 if kv == "bf16" else torch.float8_e4m3fn
        flat = [torch.empty(size // LAYERS * 2, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
        flat = [each.normal_().to(dtype) for each in flat]
        for context, batch in itertools.product(CONTEXTS, BATCHES):
            if batch * context > KV_TOKENS:
                continue
            count = batch * context * shape.kv_heads * shape.head
            view = (batch, shape.kv_heads, context, shape.head)
            caches = [(each[:count].view(view), each[count : 2 * count].view(view)) for each in flat]

            attend = attending(block, caches)
            x = block.drawn(batch, shape.hidden)
            taken = {
                part: graph_seconds(lambda part=part, x=x, attend=attend: block.step(x, attend, slice(None), part))
                for part in ("all", *TERMS)
            }
            yield {"kind": "decode", "kv": kv, "batch": batch, "context": context, **taken}
        del flat


def prefill_rows(block: Block) -> Iterator[dict[str, Any]]:
    """Prefill steps of one shape: one prompt each."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
        seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return seen.squeeze(0).transpose(0, 1)

    for tokens in PROMPTS:
        x = block.drawn(tokens, block.shape.hidden)
        ways = []
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            try:
                with sdpa_kernel(backend):
                    ways.append({
                        part: graph_seconds(lambda part=part, x=x: block.step(x, attend, slice(-1, None), part))
                        for part in ("all", *TERMS)
                    })  # fmt: skip
            except RuntimeError as error:
                print(f"{backend}: {error}", file=sys.stderr)
        yield {"kind": "prefill", "kv": "bf16", "batch": 1, "context": tokens, **min(ways, key=lambda way: way["all"])}


def copy_rows() -> Iterator[dict[str, Any]]:
    """Pinned copies between host and device, and inside the device."""
    import torch

    for size in COPY_BYTES:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        device, other = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        ways = {"host to device": (device, host), "device to host": (host, device), "device": (other, device)}
        for way, (to, source) in ways.items():
            taken = [
                _event_seconds(lambda to=to, source=source: to.copy_(source, non_blocking=True)) for _ in range(REPLAYS)
            ]
            yield {"kind": way, "bytes": size, "all": median(taken[2:])}


def check_kernel() -> float:
    """Relative error of the attention kernel against float32.

    Raises:
        SystemExit: it computes something else.
    """
    import torch
    from gpu_kernels import decode_attention

    query = torch.randn(3, 32, 128, device="cuda", dtype=torch.bfloat16)
    keys, values = (torch.randn(3, 8, 1000, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    got = decode_attention(query, keys, values, 132).float()
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query.float().unsqueeze(2), *(each.float().repeat_interleave(4, 1) for each in (keys, values))
    ).squeeze(2)
    error = float((got - wanted).norm() / wanted.norm())
    if not error < 0.02:
        raise SystemExit(f"the attention kernel is wrong: relative error {error:.3g}")
    return error


def measure() -> list[dict[str, Any]]:
    """Everything, on this machine's GPU."""
    import torch

    began = time.monotonic()
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}; attention kernel: relative error {check_kernel():.1e}", flush=True)
    rows = [{"gpu": gpu, **row} for row in copy_rows()]
    with torch.inference_mode():
        for shape in SHAPES:
            block = Block(shape)
            measured = itertools.chain(decode_rows(block), prefill_rows(block))
            rows.extend({"gpu": gpu, "model": shape.name, "weights": shape.weights, **row} for row in measured)
            print(f"{shape.name} {shape.weights}: measured after {time.monotonic() - began:.0f} s", flush=True)
            del block
            torch.cuda.empty_cache()
    return rows


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV, times in microseconds."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, **{each: round(row[each] * 1e6, 1) for each in ("all", *TERMS) if each in row}})


def load(path: Path) -> list[dict[str, Any]]:
    """Rows that `save` wrote, times in seconds."""
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = [
            {key: value for key, value in row.items() if value != ""} for row in csv.DictReader(file)
        ]
    for row in rows:
        row.update({each: int(row[each]) for each in ("batch", "context", "bytes") if each in row})
        row.update({each: float(row[each]) / 1e6 for each in ("all", *TERMS) if each in row})
    return rows


def roofline_of(row: dict[str, Any], gpu: str) -> Roofline:
    """What Fulcrum takes such a step for, without the terms of scheduler, sampler and host."""
    from fulcrum.capacity.accelerators import accelerator
    from fulcrum.capacity.engine import EngineShape
    from fulcrum.capacity.known_models import known_model
    from fulcrum.capacity.precision import Precision
    from fulcrum.capacity.roofline import GRAPHS, Roofline

    model = replace(known_model(row["model"]), layers=LAYERS)
    shape = EngineShape(
        model=model, accelerator=accelerator(gpu), weights=Precision(row["weights"]), kv=Precision(row["kv"])
    )
    return Roofline(shape=shape, efficiency=replace(GRAPHS, step_seconds=0.0, request_seconds=0.0, serving=0.0))


def predicted(row: dict[str, Any], gpu: str) -> dict[str, float]:
    """Seconds of a row's step, whole and by term."""
    roofline = roofline_of(row, gpu)
    bare = replace(roofline, efficiency=replace(roofline.efficiency, layer_seconds=0.0, routing_seconds=0.0))
    batch, context = row["batch"], row["context"]
    if row["kind"] == "decode":
        whole = roofline.decode_step_seconds(batch, batch * context)
        linear = bare.decode_step_seconds(batch, 0)
        attention = whole - roofline.decode_step_seconds(batch, 0)
    else:
        whole = roofline.prefill_seconds((context,))
        still = replace(bare, efficiency=replace(bare.efficiency, attention_flops=1e9))
        linear = still.prefill_seconds((context,))
        attention = bare.prefill_seconds((context,)) - linear
    return {"all": whole, "linear": linear, "attention": attention, "small": whole - linear - attention}


def counts(row: dict[str, Any]) -> bool:
    """Whether this is a step of a worker under load."""
    return "model" in row and (row["kind"] == "prefill" or row["batch"] >= LEAST_BATCH)


def compare(rows: list[dict[str, Any]]) -> None:
    """Print every row beside the prediction, and how many of those that count are within 20 %."""
    for gpu, group in itertools.groupby(rows, key=lambda row: row["gpu"]):
        print(f"\n{gpu}: measured ms / predicted ms; steps of {LAYERS} layers and the head")
        near = [show(row, gpu) for row in group]
        counted = [each for each in near if each is not None]
        which = f"prefill, and decode at batch {LEAST_BATCH} and above"
        print(f"{gpu}: {sum(counted)} of {len(counted)} within {WITHIN:.0%} ({which})")


def show(row: dict[str, Any], gpu: str) -> bool | None:
    """Print one row; returns whether it is within 20 %, or None where it does not count."""
    if "bytes" in row:
        print(f"{row['kind']:15} {row['bytes']:>11,} bytes: {row['bytes'] / row['all'] / 1e9:8.1f} GB/s")
        return None
    said = predicted(row, gpu)
    ratio = said["all"] / row["all"]
    what = (
        f"{row['model']:14} {row['weights']:4} kv {row['kv']:4} {row['kind']:7} {row['batch']:3} x {row['context']:4}"
    )
    terms = "".join(f"  {term} {row[term] * 1e3:6.3f} / {said[term] * 1e3:6.3f}" for term in TERMS)
    near = abs(ratio - 1) <= WITHIN
    worst = max(TERMS, key=lambda term: abs(said[term] - row[term]))
    mark = f"  <- {worst}" if counts(row) and not near else ""
    print(f"{what}: {row['all'] * 1e3:7.3f} / {said['all'] * 1e3:7.3f} ({ratio:4.2f}){terms}{mark}")
    return near if counts(row) else None


def main() -> int:
    """Measure or read, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="write what was measured to this file, and compare nothing")
    parser.add_argument("--read", type=Path, nargs="?", const=MEASURED, help="compare what this file holds")
    asked = parser.parse_args()
    if asked.read:
        compare(load(asked.read))
        return 0
    if (why := why_skipped()) is not None:
        print(why)
        return 0
    rows = measure()
    if asked.save:
        save(asked.save, rows)
    else:
        compare(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
