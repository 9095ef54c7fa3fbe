"""`fulcrum kv-check`: how far the answers of an engine with another KV cache are from those of a reference."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fulcrum.cli.number_range import NumberRange

if TYPE_CHECKING:
    from fulcrum.cli.kv_check.drift import Answer, Drift

DRIFTED: Final = 3
"""Exit code where the drift is beyond the limit; errors have 1, wrong usage 2."""
_LIMIT_NATS: Final = 0.1
"""Mean change of a token's log-probability: probabilities that change by a tenth."""
_RECORD_BYTES: Final = 64 << 20
"""Most of a file of recorded answers; one of ours has 200 KB."""


@click.command("kv-check", short_help="Compare an engine's answers with those of one that has another KV cache.")
@click.argument("model")
@click.option("--reference", required=True, metavar="URL|FILE", help="Engine, or what --save wrote; - is stdin.")
@click.option("--candidate", metavar="URL", help="Engine that is compared with it.")
@click.option("--save", metavar="FILE", help="Write the reference's answers to this file; - is stdout.")
@click.option("--tokens", type=click.IntRange(1, 1024), default=64, show_default=True, help="Longest answer.")
@click.option(
    "--limit",
    type=NumberRange(min=0),
    default=_LIMIT_NATS,
    show_default=True,
    metavar="NATS",
    help="Largest drift: mean change of a token's log-probability.",
)
@click.option(
    "--timeout", default="120s", show_default=True, metavar="DURATION", help="Longest that a request may take."
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    model: str,
    reference: str,
    candidate: str | None,
    save: str | None,
    tokens: int,
    limit: float,
    timeout: str,
    as_json: bool,
) -> None:
    """Compare two running vLLM engines that serve the same weights under the name MODEL: one keeps KV in FP8, say, the
    other in the type that the model computes in.

    Both answer eight prompts greedily, and both say how likely each token of the reference's answers is. Where the
    model does not bear the candidate's KV cache, they say different things. The same URL twice shows what the engine's
    own rounding does.

    The two need not run at the same time: --save writes the reference's answers to a file, and --reference reads it.
    An engine of Fulcrum asks for its cluster's internal token; put it into the environment variable VLLM_API_KEY.

    Exit code 3 when the drift is beyond --limit.

    \b
    Examples:
      fulcrum kv-check chat --reference http://10.0.0.7:8000 --candidate http://10.0.0.8:8000
      fulcrum kv-check chat --reference http://10.0.0.7:8000 --save bf16.json
      fulcrum kv-check chat --reference bf16.json --candidate http://10.0.0.7:8000 --limit 0.05
    """
    from fulcrum.api.internal_token import ENV_WORKER
    from fulcrum.cli.kv_check.drift import drift_between
    from fulcrum.cli.kv_check.engine import Asking, EngineError, ask
    from fulcrum.cli.kv_check.prompts import PROMPTS

    if candidate is None and save is None:
        raise click.UsageError("give --candidate to compare, or --save to keep the reference's answers")
    if candidate is not None and not _is_url(candidate):
        raise click.UsageError("--candidate: give the base URL of an engine, such as http://10.0.0.8:8000")
    token = os.environ.get(ENV_WORKER) or None
    asking = Asking(model=model, most_tokens=tokens, timeout_seconds=_seconds(timeout), token=token)
    try:
        known = asyncio.run(ask(reference, asking, PROMPTS)) if _is_url(reference) else _recorded(reference)
        if save is not None:
            _record(save, known)
        if candidate is None:
            return
        answers = asyncio.run(ask(candidate, asking, [each.prompt for each in known], known))
    except EngineError as error:
        raise click.ClickException(str(error)) from None
    drift = drift_between(known, answers)
    _show(drift, limit, as_json=as_json)
    ctx.exit(0 if drift.nats <= limit else DRIFTED)


def _seconds(timeout: str) -> float:
    from fulcrum.api.durations import seconds
    from fulcrum.api.errors import InvalidValueError

    try:
        found = seconds(timeout)
    except InvalidValueError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    if found <= 0:
        raise click.UsageError("--timeout: must be above 0")
    return found


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _recorded(name: str) -> tuple[Answer, ...]:
    import msgspec

    from fulcrum.cli.kv_check.drift import Answer

    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            text = file.read(_RECORD_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"--reference: cannot read {name}: {error.strerror}") from None
    if len(text) > _RECORD_BYTES:
        raise click.ClickException(f"--reference: {name} is larger than {_RECORD_BYTES} bytes")
    try:
        found = msgspec.json.decode(text, type=tuple[Answer, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.ClickException(f"--reference: {name} is no file that --save wrote: {error}") from None
    if not found or not all(each.is_whole for each in found):
        raise click.ClickException(f"--reference: {name} holds no answers, or parts of them")
    return found


def _record(name: str, answers: Sequence[Answer]) -> None:
    import msgspec

    text = msgspec.json.encode(answers)
    if name == "-":
        sys.stdout.buffer.write(text + b"\n")
        return
    try:
        Path(name).write_bytes(text + b"\n")
    except OSError as error:
        raise click.ClickException(f"--save: cannot write {name}: {error.strerror}") from None


def _show(drift: Drift, limit: float, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        shown = {**msgspec.to_builtins(drift), "driftNats": drift.nats, "limitNats": limit}
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))
        return
    share = drift.equal_tokens / drift.answer_tokens
    first = "none" if drift.first_difference is None else f"at token {drift.first_difference + 1}"
    click.echo(f"{drift.prompts} prompts, {drift.answer_tokens} tokens of greedy answers")
    click.echo(f"equal before the first difference   {share:.1%} (earliest difference: {first})")
    click.echo("change of log-probability, nats     mean    max")
    for what, mean, most, count in (
        ("tokens as they are decoded", drift.decoded_mean, drift.decoded_max, drift.decoded_tokens),
        ("tokens given in a prompt", drift.forced_mean, drift.forced_max, drift.answer_tokens),
    ):
        click.echo(f"  {what:<32}{mean:7.4f} {most:7.4f}  ({count} tokens)")
    verdict = "within" if drift.nats <= limit else "BEYOND"
    click.echo(f"drift {drift.nats:.4f} nats, {verdict} the limit of {limit:g}")
