"""`fulcrum replay`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fulcrum.replay import Record
    from fulcrum.simulation.traffic import Request


@click.command("replay")
@click.option("--trace", required=True, help="Azure .csv, Mooncake .jsonl, or `synthetic`.")
@click.option("--url", required=True, help="Base URL of an OpenAI-compatible endpoint, without /v1.")
@click.option("--model", help="Model name to ask for.  [default: the first that the endpoint lists]")
@click.option("--speed", default=1.0, show_default=True, help="Replay the trace this many times as fast.")
@click.option("--limit", type=click.IntRange(min=1), help="Replay only the first requests.")
@click.option("--max-prompt-tokens", type=click.IntRange(min=1), help="Cut longer prompts.")
@click.option("--max-output-tokens", type=click.IntRange(min=1), help="Cut longer answers.")
@click.option("--slo-ttft", default="2s", show_default=True, help="Time to first token to stay within.")
@click.option("--slo-tpot", default="100ms", show_default=True, help="Time per output token to stay within.")
@click.option("--rate", default=1.0, show_default=True, help="Synthetic: requests per second.")
@click.option("--duration", default="60s", show_default=True, help="Synthetic: how long.")
@click.option("--seed", default=0, show_default=True, help="Of the synthetic trace and of all prompts.")
@click.option("--retry", default=0, show_default=True, help="Send a rejected request again, at most this often.")
@click.option("--concurrency-limit", type=click.IntRange(min=1), help="Do not send what would exceed it; it fails.")
@click.option("--timeout", default="600s", show_default=True, help="Longest that one request may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    trace: str,
    url: str,
    model: str | None,
    speed: float,
    limit: int | None,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    slo_ttft: str,
    slo_tpot: str,
    rate: float,
    duration: str,
    seed: int,
    retry: int,
    concurrency_limit: int | None,
    timeout: str,
    as_json: bool,
) -> None:
    """Replay a trace, open loop: requests go out when the trace says, whatever became of those before.

    Traces carry lengths, not text: prompts are made of words, so their length in tokens is approximate, and equal
    prefix hashes give equal prefixes. Answers are greedy and exactly as long as the trace says, where the endpoint
    honours `ignore_eos`. Latency counts from when the trace wanted the request sent.

    Exit code 1 when a request was lost: taken on, then neither completed nor refused. Ctrl-C reports what there is.

    \b
    Examples:
      fulcrum replay --trace synthetic --url http://127.0.0.1:8080
      fulcrum replay --trace conv.csv --url http://127.0.0.1:8080 --speed 0.5 --limit 200 --slo-ttft 500ms
      fulcrum replay --trace mooncake.jsonl --url http://127.0.0.1:8080 --max-prompt-tokens 1024 --json
    """
    import msgspec
    import uvloop

    from fulcrum.api.durations import seconds
    from fulcrum.replay import EndpointError, LatencyLimits, summarise
    from fulcrum.replay.report import as_lines

    try:
        slo = LatencyLimits(ttft_seconds=seconds(slo_ttft), tpot_seconds=seconds(slo_tpot))
        timeout_seconds = seconds(timeout)
        requests = _requests(
            trace,
            rate=rate,
            duration_seconds=seconds(duration),
            seed=seed,
            speed=speed,
            limit=limit,
            max_prompt_tokens=max_prompt_tokens,
            max_output_tokens=max_output_tokens,
        )
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    try:
        records, interrupted = uvloop.run(
            _replay(
                url,
                requests,
                model=model,
                timeout_seconds=timeout_seconds,
                seed=seed,
                max_retries=retry,
                concurrency_limit=concurrency_limit,
            )
        )
    except EndpointError as error:
        raise click.ClickException(str(error)) from error
    report = summarise(records, offered=len(requests), slo=slo)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        click.echo("\n".join(as_lines(report)))
    ctx.exit(1 if report.lost else 130 if interrupted else 0)


def _requests(
    trace: str,
    *,
    rate: float,
    duration_seconds: float,
    seed: int,
    speed: float,
    limit: int | None,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
) -> Sequence[Request]:
    from fulcrum.simulation.traffic import DECODE_HEAVY, PREFILL_HEAVY, generate, load_trace, prepared, repeated

    if trace == "synthetic":
        phases = [replace(phase, requests_per_second=rate) for phase in (PREFILL_HEAVY, DECODE_HEAVY)]
        recorded = generate(repeated(phases, total_seconds=duration_seconds), seed=seed)
    else:
        recorded = load_trace(Path(trace))
    return prepared(
        recorded, speed=speed, limit=limit, max_prompt_tokens=max_prompt_tokens, max_output_tokens=max_output_tokens
    )


async def _replay(
    url: str,
    requests: Sequence[Request],
    *,
    model: str | None,
    timeout_seconds: float,
    seed: int,
    max_retries: int,
    concurrency_limit: int | None,
) -> tuple[list[Record], bool]:
    """Records, and whether Ctrl-C ended the replay early. A second Ctrl-C ends the program."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fulcrum.replay import Client, discover, replay

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with Client(url, timeout_seconds=timeout_seconds) as client:
        endpoint = await discover(client, model=model)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=4) as progress:
            bar = progress.add_task("replay", total=len(requests))
            records = await replay(
                client,
                endpoint,
                requests,
                seed=seed,
                max_retries=max_retries,
                concurrency_limit=concurrency_limit,
                stop=stop,
                on_progress=lambda now: progress.update(
                    bar, completed=now.ended, description=f"{now.sent} sent, {now.lost} lost"
                ),
            )
    return records, stop.is_set()
