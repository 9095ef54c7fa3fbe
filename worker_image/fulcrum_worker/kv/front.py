"""One prefix whose front is computed while the rest of it is loaded, from its end downwards.

Both ends move towards each other, so a link that is slower or quicker than predicted costs little: whenever the engine
has computed what was planned and the load is not there yet, the gap between them is split anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import How, restore


@dataclass(slots=True, kw_only=True)
class Front:
    """Tokens 0 to `split` are computed by the engine, `loaded_from` to `matched` are there, between them is the gap."""

    present: int
    matched: int
    prompt: int
    block: int
    """Tokens of a KV block."""
    split: int
    loaded_from: int
    changed: float
    """When a block was last loaded."""

    def loaded(self, blocks: int, now: float) -> None:
        """Take note that the last `blocks` blocks of the prefix are there."""
        reached = self.matched - blocks * self.block
        if reached < self.loaded_from:
            self.loaded_from, self.changed = reached, now

    @property
    def kept_blocks(self) -> int:
        """Blocks, counted from the end, that are wanted from the link."""
        return (self.matched - self.split) // self.block

    def split_again(self, *, speed: SpeedCoefficients, link: TransferCost, now: float) -> int:
        """Move the split up where computing more of the gap is quicker than waiting for it; return the split."""
        gap = self.loaded_from - self.split
        if gap <= 0:
            return self.split
        # A block that takes long tells of the link before it is there.
        stalled = (now - self.changed) / self.block
        rate = TransferCost(base_seconds=0.0, seconds_per_token=max(link.seconds_per_token, stalled))
        way = restore(
            present_tokens=self.split,
            matched_tokens=self.loaded_from,
            prompt_tokens=self.prompt,
            speed=speed,
            link=rate,
            block_tokens=self.block,
        )
        if way.how in (How.FRONT, How.NONE):
            self.split += way.recompute_tokens
        return self.split
