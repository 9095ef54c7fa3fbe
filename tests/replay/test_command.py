"""`fulcrum replay` as users start it: exit codes, both outputs, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import deadline_seconds


async def run(*arguments: str, interrupt_at: asyncio.Event | None = None) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fulcrum.cli.app", "replay", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    if interrupt_at is not None:
        await asyncio.wait_for(interrupt_at.wait(), deadline_seconds(120))
        process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), deadline_seconds(120))
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


SYNTHETIC = ("--trace", "synthetic", "--rate", "20", "--speed", "10", "--limit", "20", "--max-output-tokens", "5")


async def test_json_report_and_nothing_else(server: Any) -> None:
    code, out, err = await run("--url", server.url, *SYNTHETIC, "--json", "--slo-ttft", "1m", "--slo-tpot", "1m")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert (report["requests"], report["ok"], report["lost"], report["slo_attainment"]) == (20, 20, 0, 1.0)
    assert report["ttft_seconds"].keys() == {"p50", "p90", "p99"}


async def test_lost_requests_fail_the_command(server: Any) -> None:
    server.fault = "no done"
    code, out, _ = await run("--url", server.url, *SYNTHETIC)
    assert code == 1
    assert "lost            20" in out
    assert "20 x lost: stream ended after" in out


async def test_a_trace_file(server: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,8,3\n2023-11-16 18:15:47,6,2\n")
    code, out, err = await run("--url", server.url, "--trace", str(trace), "--speed", "20", "--slo-ttft", "1m")
    assert (code, err) == (0, "")
    assert "inside TTFT 60000 ms and TPOT 100 ms" in out
    assert sorted(body["max_tokens"] for body in server.bodies) == [2, 3]  # in whichever order they got through


async def test_interrupt_prints_what_there_is(server: Any) -> None:
    arguments = ("--trace", "synthetic", "--rate", "5", "--duration", "600s", "--max-output-tokens", "2")
    code, out, _ = await run("--url", server.url, *arguments, interrupt_at=server.third_request)
    assert code == 130
    assert "(interrupted)" in out
    assert "lost            0" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "absent.csv"), "absent.csv"),
        (("--trace", "absent.parquet"), "must end in .csv (Azure) or .jsonl (Mooncake)"),
        (("--trace", "synthetic", "--slo-ttft", "fast"), "fast"),
        (("--trace", "synthetic", "--speed", "0"), "speed must be above 0"),
        (("--trace", "synthetic", "--rate", "0"), "requests_per_second must be above 0"),
    ],
)
async def test_bad_use(arguments: tuple[str, ...], message: str) -> None:
    code, _, err = await run("--url", "http://127.0.0.1:9", *arguments)
    assert code == 2
    assert message in err


async def test_an_endpoint_that_is_not_there() -> None:
    code, _, err = await run("--url", "http://127.0.0.1:9", "--trace", "synthetic")
    assert code == 1
    assert err.startswith("Error: GET http://127.0.0.1:9/v1/models: ")
