"""Writes blocks to a pool until it is killed: `python -m tests.worker_image.pool_writer ROOT BLOCKS SEED`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from fulcrum_worker.kv.pool.block_file import HEADER_BYTES
from fulcrum_worker.kv.pool.store import BlockStore, PoolFullError

BLOCK = 4096
FILE = BLOCK + HEADER_BYTES
NUMBERS = 400


def block(seed: int, size: int = BLOCK) -> memoryview:
    return memoryview(random.Random(seed).randbytes(size))


def key(number: int) -> bytes:
    return random.Random(number).randbytes(36)


def store(root: Path, *, namespace: str = "weights-a", blocks: float = 100) -> BlockStore:
    return BlockStore(root, namespace=namespace, limit_bytes=int(blocks * FILE))


def main() -> None:
    pool, seed = store(Path(sys.argv[1]), blocks=float(sys.argv[2])), random.Random(int(sys.argv[3]))
    print("up", flush=True)
    while True:
        number = seed.randrange(NUMBERS)
        try:
            pool.write(key(number), block(number))
        except PoolFullError:
            continue


if __name__ == "__main__":
    main()
