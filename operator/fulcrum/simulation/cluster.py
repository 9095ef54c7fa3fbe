"""What is simulated: pools of workers, the links between them, and how long things take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import Speed
from fulcrum.simulation.kv_tiers import KvTiers

NVLINK_BYTES_PER_SECOND: Final = 450e9
"""H100 SXM, one direction."""


class Sharing(StrEnum):
    """How the transfers of one worker's link share it."""

    SERIAL = "serial"
    """One after the other, in the order of the pulls, over the sender's and the receiver's link."""
    PARALLEL = "parallel"
    """Each as if it were alone."""


class Pulling(StrEnum):
    """What a decode worker does while KV is on its way to it."""

    BESIDE = "beside"
    """It goes on; a request joins at the first step boundary after its KV is there (vLLM with NIXL)."""
    BETWEEN = "between"
    """It takes no step until all that it pulls is there, and what came joins the next one (DistServe). With serial
    links each pull is awaited before the next begins, so that each pays the latency, too."""


class FirstToken(StrEnum):
    """Which leg answers with the first token."""

    DECODE = "decode"
    """The two-leg protocol over vLLM: the client sees the first token from the decode worker."""
    PREFILL = "prefill"
    """As DistServe counts: TTFT ends with prefill, the transfer belongs to the next token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """KV transfer. Without `bytes_per_second` it takes what the speeds of both ends say, and the slower end counts."""

    sharing: Sharing = Sharing.SERIAL
    pulling: Pulling = Pulling.BESIDE
    bytes_per_second: float | None = None
    latency_seconds: float = 0.0
    """Paid once per transfer, without occupying the link (but see `Pulling`); only with `bytes_per_second`."""
    kv_bytes_per_token: float = 0.0
    pairs: Mapping[tuple[str, str], TransferCost] = field(default_factory=dict)
    """What it takes between a prefill and a decode pool whatever else is said here, by their names."""
    overlapped_layers: int = 0
    """Above 0: the KV of each of so many layers leaves as soon as it is computed, so that only the last layer's, or
    what the link did not manage during the prefill, is left to wait for."""

    def __post_init__(self) -> None:
        if self.bytes_per_second is not None and not (self.bytes_per_second > 0 and self.kv_bytes_per_token > 0):
            raise ValueError("bytes_per_second and kv_bytes_per_token must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModel:
    """Workers that are alike."""

    name: str
    speed: Speed
    gpus_per_worker: int = 1
    ranks: int = 1
    """Ranks of data parallel of a worker: `speed` is that of one, while the others have as much to do."""
    start_seconds: float = 60.0
    """From the creation of a Pod to its readiness."""
    expected_transfer: TransferCost | None = None
    """What gateways believe of KV transfers before they have seen any; None: they know nothing of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    """A cluster to simulate."""

    pools: tuple[PoolModel, ...]
    links: Links = Links()
    first_token: FirstToken = FirstToken.DECODE
    block_tokens: int = 16
    """Tokens per KV block; divides 512 (the blocks of prefix ids)."""
    kv_tiers: KvTiers | None = None
    """Host memory and pool below the caches of the engines; None: KV that leaves them is gone."""
    leg_seconds: float = 0.0
    """Time of each leg outside of the engine: gateway, HTTP, tokenizer."""
    crowding: float = 0.0
    """How much longer the steps of a worker take for each other one that computes at the same time, as a fraction: as
    where all of them share one machine's memory, caches and cores. 0: each is on its own."""
    gateways: int = 1
    """Replicas of the gateway. Each sees its own requests, and the others' in the workers' load reports."""
    poll_seconds: float = 1.0
    """How often several gateways read the load of every worker, and tell each other which prefixes they sent where. A
    gateway does both every 0.25 s where there are up to 50 workers."""
    flip_seconds: float = 0.1
    """From the write of a role label until gateways route by it."""
    stop_seconds: float = 1.0
    """From the end of a deleted worker's work to the release of its GPUs."""
    drain_timeout_seconds: float = 120.0
    """A deleted worker stops after this long, also with work on it."""
    restart: bool = True
    """A worker that died comes back after `start_seconds`."""
    lease_seconds: float = 600.0
    """How long KV is kept for a decode worker that does not pull it. vLLM's lease is 30 s, but a live decode engine
    renews it for all that waits in it. It ends here nevertheless, as two workers may each be full of KV that is held
    for the other one."""
    max_attempts: int = 3
    """As the gateway: a request whose answer has not begun is tried elsewhere when its worker is lost."""

    def __post_init__(self) -> None:
        if not self.pools or len({pool.name for pool in self.pools}) != len(self.pools):
            raise ValueError("pools: at least one, with unique names")
        if any(pool.ranks < 1 for pool in self.pools):
            raise ValueError("ranks must be at least 1")
        if self.crowding < 0:
            raise ValueError(f"crowding must be at least 0, got {self.crowding}")
        if self.gateways < 1:
            raise ValueError(f"gateways must be at least 1, got {self.gateways}")
        if self.poll_seconds <= 0:
            raise ValueError(f"poll_seconds must be above 0, got {self.poll_seconds}")
        if 512 % self.block_tokens:
            raise ValueError(f"block_tokens must divide 512, got {self.block_tokens}")

    def pool(self, name: str) -> PoolModel:
        """Return a pool by name."""
        return next(pool for pool in self.pools if pool.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A worker dies at once, as after a SIGKILL or an Xid error."""

    at_seconds: float
    worker: str
    """Name of the worker."""
