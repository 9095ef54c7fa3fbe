"""KV that a worker keeps for its peers: of prompts that are prefilled, until a decode worker has pulled them."""

from __future__ import annotations

from fulcrum.simulation.kv_blocks import KvBlocks
from fulcrum.simulation.simulated_request import SimulatedRequest


class HeldKv:
    """The requests whose KV one worker holds, the longest held first."""

    __slots__ = ("_kv", "_requests", "blocks")

    def __init__(self, kv: KvBlocks) -> None:
        self._kv = kv
        self._requests: dict[int, SimulatedRequest] = {}
        self.blocks = 0
        """Blocks that are held (shared prefixes not counted)."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> tuple[SimulatedRequest, ...]:
        """The requests, the longest held first."""
        return tuple(self._requests.values())

    def hold(self, request: SimulatedRequest) -> None:
        """Keep the KV of a prompt; what it shares here stays pinned, while it may pin anew where it goes."""
        self._requests[request.index] = request
        self.blocks += self._kv.blocks_of(request, request.prompt)
        request.held_pins, request.pinned = request.pinned, 0

    def release(self, request: SimulatedRequest) -> None:
        """Give the blocks back."""
        del self._requests[request.index]
        pinned_elsewhere, request.pinned = request.pinned, request.held_pins
        blocks = self._kv.blocks_of(request, request.prompt)
        self.blocks -= blocks
        self._kv.give_back(request, blocks)
        request.pinned, request.held_by, request.held_pins = pinned_elsewhere, None, 0
