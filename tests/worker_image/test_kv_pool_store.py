"""The pool's folder: blocks come back whole or not at all, and it never grows beyond its bound."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine import deadline_seconds
from tests.worker_image.agents import wait_until
from tests.worker_image.pool_writer import BLOCK, FILE, NUMBERS, block, key, store

from fulcrum_worker.kv.pool.block_file import HEADER_BYTES, BadBlockError, Flaw
from fulcrum_worker.kv.pool.store import BlockStore, PoolFullError


def read(pool: BlockStore, number: int) -> bytes:
    into = bytearray(BLOCK)
    pool.read(key(number), memoryview(into))
    return bytes(into)


def on_disk(root: Path) -> int:
    """Bytes of blocks and unfinished files at one moment: no file is made meanwhile, and one that is moved is one."""
    sizes: dict[int, int] = {}
    with (root / "used").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and path.name not in ("used", "sweeping"):
                    sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def test_what_was_written_is_read_by_another_engine(tmp_path: Path) -> None:
    assert store(tmp_path).write(key(1), block(1))
    other = store(tmp_path)
    assert other.has(key(1))
    assert not other.has(key(2))
    assert read(other, 1) == block(1)
    assert not other.write(key(1), block(1)), "it is there already"
    assert other.used_bytes() == FILE == on_disk(tmp_path)


def test_engines_with_other_weights_do_not_find_it(tmp_path: Path) -> None:
    store(tmp_path).write(key(1), block(1))
    other = store(tmp_path, namespace="weights-b")
    assert not other.has(key(1))
    with pytest.raises(FileNotFoundError):
        read(other, 1)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "flaw"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), Flaw.TRUNCATED),
        (lambda path: path.write_bytes(path.read_bytes()[: HEADER_BYTES // 2]), Flaw.TRUNCATED),
        (lambda path: path.write_bytes(b""), Flaw.TRUNCATED),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), Flaw.TRUNCATED),
        (lambda path: path.write_bytes(bytes(FILE)), Flaw.CORRUPT),
        (lambda path: flip(path, HEADER_BYTES), Flaw.CORRUPT),
        (lambda path: flip(path, FILE - 1), Flaw.CORRUPT),
        (lambda path: flip(path, 0), Flaw.CORRUPT),
        (lambda path: flip(path, 10), Flaw.FOREIGN),
    ],
)
def test_a_spoilt_file_is_never_a_block(tmp_path: Path, spoil: Callable[[Path], object], flaw: Flaw) -> None:
    pool = store(tmp_path)
    pool.write(key(1), block(1))
    spoil(pool.path(key(1)))
    with pytest.raises(BadBlockError) as found:
        read(pool, 1)
    assert found.value.flaw is flaw
    pool.remove(key(1))
    assert not pool.has(key(1))


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, HEADER_BYTES - 13), bit=st.integers(0, 7), more=st.integers(0, BLOCK - 1))
def test_one_bit_is_always_found(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, more: int) -> None:
    pool = store(tmp_path_factory.mktemp("pool"))
    pool.write(key(1), block(1))
    path = pool.path(key(1))
    content = bytearray(path.read_bytes())
    for place in (at, HEADER_BYTES + more):
        content[place] ^= 1 << bit
        path.write_bytes(content)
        with pytest.raises(BadBlockError):
            read(pool, 1)
        content[place] ^= 1 << bit
    path.write_bytes(content)
    assert read(pool, 1) == block(1)


@pytest.mark.parametrize("other", ["another block", "another engine's"])
def test_a_block_in_anothers_place_is_foreign(tmp_path: Path, other: str) -> None:
    pool = store(tmp_path)
    source = store(tmp_path, namespace="weights-b") if other == "another engine's" else pool
    number = 1 if source is not pool else 2
    source.write(key(number), block(number))
    target = pool.path(key(1))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.path(key(number)).read_bytes())
    with pytest.raises(BadBlockError) as found:
        read(pool, 1)
    assert found.value.flaw is Flaw.FOREIGN


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    pool = store(tmp_path, blocks=20)
    long_ago = time.time() - 10_000
    for number in range(19):
        pool.write(key(number), block(number))
        os.utime(pool.path(key(number)), (long_ago + number, long_ago + number))
    read(pool, 0)
    for number in range(19, 24):
        pool.write(key(number), block(number))
        assert on_disk(tmp_path) <= 20 * FILE
    assert pool.has(key(0)), "it was used since"
    assert not pool.has(key(1))
    assert all(pool.has(key(number)) for number in range(19, 24))


def test_one_bound_for_all_namespaces(tmp_path: Path) -> None:
    old, new = store(tmp_path, namespace="old", blocks=10), store(tmp_path, namespace="new", blocks=10)
    for number in range(9):
        old.write(key(number), block(number))
    for number in range(9):
        new.write(key(number), block(number))
    assert on_disk(tmp_path) <= 10 * FILE
    assert sum(old.has(key(number)) for number in range(9)) <= 2


def test_less_than_a_block_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(PoolFullError):
        store(tmp_path, blocks=0.5).write(key(1), block(1))
    assert on_disk(tmp_path) == 0


def test_a_lost_count_is_made_again(tmp_path: Path) -> None:
    pool = store(tmp_path, blocks=10)
    for number in range(5):
        pool.write(key(number), block(number))
    for content in (b"", b"nonsense", b"-0000000000000000001"):
        (tmp_path / "used").write_bytes(content)
        pool.write(key(int.from_bytes(content[:2], "big") + 100), block(9))
        assert pool.used_bytes() == on_disk(tmp_path)


def test_an_older_bound_that_was_larger_is_swept_to_the_new_one(tmp_path: Path) -> None:
    large = store(tmp_path, blocks=50)
    for number in range(40):
        large.write(key(number), block(number))
    small = store(tmp_path, blocks=10)
    small.write(key(50), block(50))
    assert on_disk(tmp_path) <= 10 * FILE


def test_a_volume_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = store(tmp_path)
    pool.write(key(1), block(1))
    real, calls = os.writev, []

    def fails(fd: int, buffers: list[memoryview]) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, [buffers[0][: len(buffers[0]) // 2]])

    monkeypatch.setattr(os, "writev", fails)
    with pytest.raises(OSError, match="No space"):
        pool.write(key(2), block(2))
    assert pool.used_bytes() == FILE == on_disk(tmp_path)


def writer(root: Path, blocks: float, seed: int) -> subprocess.Popen[str]:
    here = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.worker_image.pool_writer", str(root), str(blocks), str(seed)],
        env={**os.environ, "PYTHONPATH": str(here)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.integration
def test_writers_that_are_killed_leave_no_orphan_and_no_file_that_is_read(tmp_path: Path) -> None:
    blocks, largest, over = 60, 0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not over.wait(0.01):
            largest = max(largest, on_disk(tmp_path))

    writers = [writer(tmp_path, blocks, seed) for seed in range(3)]
    wait_until((tmp_path / "used").exists, seconds=30, what="writers write")
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for kill in range(20):
            before = (tmp_path / "used").stat().st_mtime_ns
            wait_until(
                lambda before=before: (tmp_path / "used").stat().st_mtime_ns > before, seconds=30, what="writers write"
            )
            victim = writers[kill % len(writers)]
            victim.send_signal(signal.SIGKILL)
            victim.communicate(timeout=deadline_seconds(30))
            writers[kill % len(writers)] = writer(tmp_path, blocks, 100 + kill)
    finally:
        for each in writers:
            each.kill()
            each.communicate(timeout=deadline_seconds(30))
        over.set()
        watching.join()
    assert largest <= (blocks + len(writers)) * FILE, "never above its size by more than a block of each writer"
    pool = store(tmp_path, blocks=blocks)
    pool.clear_unfinished()
    assert not list((tmp_path / "unfinished").iterdir())
    pool.sweep()
    assert pool.used_bytes() == on_disk(tmp_path) <= blocks * FILE
    readable = [number for number in range(NUMBERS) if pool.has(key(number))]
    assert readable
    assert all(read(pool, number) == block(number) for number in readable), "each that is there is whole"
