"""Decode attention in Triton: one query of each request over its KV, the queries of a KV head together, in parts.

Split over the context as FlashDecoding does it (Dao et al., 2023), so that a small batch fills a GPU, too. Written for
contiguous caches of one length: what is timed is the reading of KV, not the search for its blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE: Final = 64
"""Tokens of KV in one step of a program."""


@triton.jit
def _part(query, keys, values, partial, sums, context, per_part, scale,
          GROUP: tl.constexpr, HEAD: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Softmax-weighted sum over one part of the context, for all queries of one KV head of one request."""
    row, part = tl.program_id(0), tl.program_id(1)
    parts = tl.num_programs(1)
    heads, dims, tile = tl.arange(0, GROUP), tl.arange(0, HEAD), tl.arange(0, TILE)
    q = tl.load(query + (row * GROUP + heads[:, None]) * HEAD + dims[None, :])
    high = tl.full((GROUP,), -1e30, tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    seen = tl.zeros((GROUP, HEAD), tl.float32)
    base = row.to(tl.int64) * context * HEAD
    end = tl.minimum((part + 1) * per_part, context)
    for first in range(part * per_part, end, TILE):
        token = first + tile
        inside = token < end
        at = base + token[:, None] * HEAD + dims[None, :]
        k = tl.load(keys + at, mask=inside[:, None], other=0.0).to(q.dtype)
        score = tl.dot(q, tl.trans(k)) * scale
        score = tl.where(inside[None, :], score, -1e30)
        new = tl.maximum(high, tl.max(score, 1))
        weight = tl.exp(score - new[:, None])
        old = tl.exp(high - new)
        v = tl.load(values + at, mask=inside[:, None], other=0.0).to(q.dtype)
        seen = seen * old[:, None] + tl.dot(weight.to(q.dtype), v)
        total = total * old + tl.sum(weight, 1)
        high = new
    place = (row * parts + part) * GROUP + heads
    tl.store(partial + place[:, None] * HEAD + dims[None, :], seen)
    tl.store(sums + place * 2, high)
    tl.store(sums + place * 2 + 1, total)


@triton.jit
def _join(partial, sums, out, parts, GROUP: tl.constexpr, HEAD: tl.constexpr, PARTS: tl.constexpr):
    """The parts of one query together."""
    row, head = tl.program_id(0), tl.program_id(1)
    part, dims = tl.arange(0, PARTS), tl.arange(0, HEAD)
    place = (row * parts + part) * GROUP + head
    there = part < parts
    high = tl.load(sums + place * 2, mask=there, other=-1e30)
    total = tl.load(sums + place * 2 + 1, mask=there, other=0.0)
    weight = tl.exp(high - tl.max(high, 0))
    seen = tl.load(partial + place[:, None] * HEAD + dims[None, :], mask=there[:, None], other=0.0)
    mixed = tl.sum(seen * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (row * GROUP + head) * HEAD + dims, mixed.to(out.dtype.element_ty))


def parts_of(rows: int, context: int, processors: int) -> int:
    """Into how many parts the context is cut, so that `rows` KV heads occupy every processor four times."""
    wanted = -(-4 * processors // rows)
    return max(1, min(wanted, -(-context // (2 * TILE)), 128))


def decode_attention(query: Tensor, keys: Tensor, values: Tensor, processors: int) -> Tensor:
    """Attention of one new token of each request.

    `query` is [requests, heads, head size] in bfloat16 with the heads of a KV head side by side, `keys` and `values`
    [requests, KV heads, context, head size] in bfloat16 or float8_e4m3fn. Returns the shape of `query`.
    """
    requests, heads, size = query.shape
    kv_heads, context = keys.shape[1:3]
    group = heads // kv_heads
    padded = max(group, 16)  # the least rows that matrix units take
    rows = requests * kv_heads
    grouped = query.view(rows, group, size)
    if padded != group:
        grouped = torch.nn.functional.pad(grouped, (0, 0, 0, padded - group))
    parts = parts_of(rows, context, processors)
    per_part = -(-context // (parts * TILE)) * TILE
    parts = -(-context // per_part)
    partial = torch.empty((rows, parts, padded, size), device=query.device, dtype=torch.float32)
    sums = torch.empty((rows, parts, padded, 2), device=query.device, dtype=torch.float32)
    out = torch.empty((rows, padded, size), device=query.device, dtype=query.dtype)
    shape: dict[str, Any] = {"GROUP": padded, "HEAD": size}
    _part[(rows, parts)](
        grouped.contiguous(),
        keys,
        values,
        partial,
        sums,
        context,
        per_part,
        size**-0.5,
        TILE=TILE,
        num_stages=3,
        **shape,
    )
    _join[(rows, padded)](partial, sums, out, parts, PARTS=triton.next_power_of_2(parts), **shape)
    return out[:, :group].reshape(requests, heads, size)
