"""What experts on all GPUs of a worker cost: tokens travel to them, and all GPUs wait for the busiest one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from fulcrum.api.parallelism import PLAIN_BACKEND
from fulcrum.capacity.accelerators import Accelerator
from fulcrum.capacity.model import MoeConfig
from fulcrum.capacity.precision import Precision

_TO_EACH_EXPERT: Final = ("deepep_low_latency", "mori_low_latency", "nixl_ep")
"""Back ends that send a token once for each of its experts. The others send it once to each machine, and from there to
the experts; the plain one sends every token to every GPU."""


def touched_share(moe: MoeConfig, tokens: float) -> float:
    """Return the share of the experts of a layer that so many tokens use, each choosing at random."""
    untouched: float = (1 - moe.active_experts / moe.experts) ** tokens
    return 1 - untouched


def busiest_reads(moe: MoeConfig, tokens: float, gpus: int) -> float:
    """Return how many experts are used on the GPU with most of them, in means over all `gpus`."""
    share, here = touched_share(moe, tokens), moe.experts / gpus
    mean = here * share
    if gpus == 1 or mean <= 0:
        return 1.0
    spread = math.sqrt(mean * (1 - share))
    return min(here, mean + _largest_of(gpus) * spread) / mean


def busiest_tokens(moe: MoeConfig, tokens: float, gpus: int) -> float:
    """Return how many tokens come to the GPU with most of them, in means over all `gpus`: by chance, and by routing."""
    mean = tokens * moe.active_experts / gpus
    if gpus == 1 or mean <= 0:
        return 1.0
    return moe.imbalance * (1 + _largest_of(gpus) * math.sqrt((1 - 1 / gpus) / mean))


@lru_cache(maxsize=64)
def _largest_of(count: int) -> float:
    """Return the mean of the largest of `count` normal numbers, in standard deviations (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The two all-to-alls of a layer of experts: tokens to their experts, and what these make of them back.

    Copies of a token that leave a GPU over the links inside a machine and over the network follow from the back end,
    where experts are chosen at random: `k` of them for each token, over `machines` with `inside` GPUs each.
    """

    accelerator: Accelerator
    gpus: int
    backend: str = PLAIN_BACKEND

    @property
    def machines(self) -> int:
        """Machines that the GPUs are in."""
        return math.ceil(self.gpus / self.accelerator.per_machine)

    def copies(self, active_experts: int) -> tuple[float, float]:
        """Return how often a token is sent inside its machine, and over the network."""
        machines, inside = self.machines, min(self.gpus, self.accelerator.per_machine)
        others = (inside - 1) / inside
        if self.backend in _TO_EACH_EXPERT:
            return active_experts / machines * others, active_experts * (1 - 1 / machines)
        if self.backend == PLAIN_BACKEND:
            return (inside - 1) * machines, machines - 1
        # What another machine has got, it hands on to the GPUs of the experts.
        return active_experts * others, (machines - 1) * (1 - (1 - 1 / machines) ** active_experts)

    def seconds(
        self,
        moe: MoeConfig,
        *,
        tokens: float,
        hidden: int,
        sent: Precision,
        bandwidth: float,
        latency_seconds: float,
    ) -> float:
        """Return the seconds of both for `tokens` of each GPU; they come back in BF16.

        `sent` is the format in which tokens go to their experts, `bandwidth` the share of a link's rate that is
        reached, and `latency_seconds` that of one all-to-all.
        """
        there = Precision.BF16 if self.backend == PLAIN_BACKEND else sent
        volume = tokens * hidden * (there.bytes + Precision.BF16.bytes)
        near, far = self.copies(moe.active_experts)
        gpu = self.accelerator
        moving = max(near / gpu.local_bytes_per_second, far / gpu.network_bytes_per_second) * volume / bandwidth
        return 2 * latency_seconds + moving
