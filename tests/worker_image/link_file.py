"""What a test sets of an engine's link to host memory, in a file that the engine reads. Free of vLLM."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What the engine is to do; written to a file that it reads."""

    bytes_per_second: float | None = None
    """None: as quick as it is."""
    then_bytes_per_second: float | None = None
    """Speed after `blocks_before` more blocks; None: the same."""
    blocks_before: int = 0
    pool_seconds_per_block: float = 0.0
    """What reading a block from the pool takes at least."""
    then_pool_seconds_per_block: float | None = None
    """The same after `blocks_before` more blocks; None: the same."""
    split: str | int = "auto"
    """`auto`, `load`, `none`, or the token up to which the front is computed."""

    def write(self, path: Path) -> None:
        replaced = path.with_suffix(".new")
        replaced.write_text(json.dumps(dataclasses.asdict(self)))
        replaced.replace(path)

    @classmethod
    def read(cls, path: str) -> Link:
        return cls(**json.loads(Path(path).read_text()))
