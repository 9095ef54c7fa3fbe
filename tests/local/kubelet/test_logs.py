from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

from tests.machine import deadline_seconds

from fulcrum_local.kubelet.logs import LogOptions, read, termination_message
from fulcrum_local.kubelet.shim import Log


def line(text: str, second: int = 0, flag: str = "F") -> str:
    return f"2026-01-01T00:00:{second:02d}.123456789Z stdout {flag} {text}\n"


async def everything(directory: Path, options: LogOptions, *, ended: bool = True) -> str:
    return b"".join([chunk async for chunk in read(directory, options, ended=lambda: ended)]).decode()


async def test_partial_lines_are_joined_and_options_apply(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text(line("old", 1))
    (tmp_path / "log").write_text(line("a", 2, "P") + line("b", 2) + line("", 3) + line("c", 4) + "2026 cut of")
    assert await everything(tmp_path, LogOptions()) == "old\nab\n\nc\n"
    assert await everything(tmp_path, LogOptions(tail_lines=1)) == "c\n"
    assert await everything(tmp_path, LogOptions(tail_lines=0)) == ""
    since = dt.datetime(2026, 1, 1, 0, 0, 3, tzinfo=dt.UTC)
    assert await everything(tmp_path, LogOptions(since=since)) == "\nc\n"
    assert await everything(tmp_path, LogOptions(limit_bytes=5)) == "old\na"
    stamped = await everything(tmp_path, LogOptions(timestamps=True, tail_lines=1))
    assert stamped == "2026-01-01T00:00:04.123456789Z c\n"


async def arrived(seen: bytearray, end: bytes) -> None:
    async with asyncio.timeout(deadline_seconds(60)):
        while True:
            if seen.endswith(end):
                return
            await asyncio.sleep(0.01)


async def test_following_crosses_a_rotation(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 400)
    over = False
    seen = bytearray()

    async def follow() -> None:
        async for chunk in read(tmp_path, LogOptions(follow=True), ended=lambda: over):
            seen.extend(chunk)

    follower = asyncio.create_task(follow())
    for number in range(40):
        log.write(b"stdout", b"%d\n" % number)
        await arrived(seen, b"%d\n" % number)
    log.write(b"stdout", b"no end")
    log.close()
    over = True
    await asyncio.wait_for(follower, deadline_seconds(60))
    assert seen.decode() == "".join(f"{number}\n" for number in range(40)) + "no end\n"
    assert (tmp_path / "log.1").stat().st_size <= 400


def test_termination_message_is_short(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(line(str(number)) for number in range(100)))
    assert termination_message(tmp_path).splitlines() == [str(number) for number in range(20, 100)]
    (tmp_path / "log").write_text(line("x" * 5000) + line("end"))
    message = termination_message(tmp_path)
    assert len(message) <= 2048
    assert message.endswith("x\nend")
    assert termination_message(tmp_path / "none") == ""


def test_a_long_line_is_cut_into_parts(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), 10**6)
    log.write(b"stderr", b"y" * 40_000)
    log.close()
    flags = [stored.split(b" ")[2] for stored in (tmp_path / "log").read_bytes().splitlines()]
    assert flags == [b"P", b"P", b"F"]
