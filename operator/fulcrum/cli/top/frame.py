"""One frame of `fulcrum top`: a view in, something that rich prints out."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fulcrum.api.durations import seconds
from fulcrum.api.names import Role
from fulcrum.api.status import BatchesStatus
from fulcrum.api.types import ConditionStatus, ConditionType, InferenceClusterStatus, LatencyQuantiles
from fulcrum.cli.top.view import EventLine, View, WorkerLine
from fulcrum.decide.target import ratio_text

UNKNOWN: Final = "-"
EVENTS: Final = 8
_LINES_AROUND: Final = 5
"""Lines of a frame that are neither facts nor workers nor events."""
_ROLE_STYLES: Final = {Role.PREFILL.value: "cyan", Role.DECODE.value: "magenta", Role.MIXED.value: "blue"}


def frame(view: View, *, height: int | None = None, trouble: str = "") -> RenderableType:
    """Return one frame; `height` is the number of lines there are (None: as many as it takes)."""
    events = view.events[:EVENTS]
    workers, left_out, facts = view.workers, 0, _facts(view)
    if height is not None:
        room = max(1, height - _LINES_AROUND - facts.row_count - len(events) - 3)
        workers, left_out = view.workers[:room], max(0, len(view.workers) - room)
    parts: list[RenderableType] = [_title(view, trouble), facts, Text()]
    parts.append(_workers(workers) if workers else Text("No worker yet."))
    if left_out:
        parts.append(Text(f"... and {left_out} more workers", style="dim"))
    parts += [Text(note, style="yellow") for note in _notes(view)]
    parts.append(Text())
    parts.append(_events(view, events) if events else Text("No decision on record.", style="dim"))
    return Group(*parts)


def _title(view: View, trouble: str) -> Text:
    metadata, status = view.cluster.metadata, view.cluster.status
    line = Text.assemble((metadata.name, "bold"), f" in {metadata.namespace}", overflow="ellipsis", no_wrap=True)
    for kind in (ConditionType.AVAILABLE, ConditionType.DEGRADED):
        found = next((c for c in status.conditions if c.type is kind), None)
        if found is None or (kind is ConditionType.DEGRADED and found.status is not ConditionStatus.TRUE):
            continue
        good = found.status is ConditionStatus.TRUE and kind is ConditionType.AVAILABLE
        name = kind.value if found.status is ConditionStatus.TRUE else f"not {kind.value}"
        line.append("   ")
        line.append(name, style="green" if good else "red")
        if not good:
            line.append(f" {found.reason.value}")
    line.append(f"   {view.cluster.spec.balance.mode.value}   {view.now:%H:%M:%S} UTC")
    if trouble:
        line.append(f"   {trouble}", style="red")
    return line


def _facts(view: View) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    status = view.cluster.status
    table.add_row("ratio", _ratio(status))
    table.add_row("requests", f"{_number(view.arrivals.rate if view.arrivals else None)}/s now")
    table.add_row("forecast", _forecast(status))
    table.add_row("attainment", _attainment(view))
    table.add_row("latency", _latency(view))
    if view.cluster.spec.admission.queue is not None:
        table.add_row("queued", _queued(view))
    table.add_row("turned away", _turned_away(view))
    if view.cluster.spec.batch is not None:
        table.add_row("batches", _batches(status.batches))
    return table


def _ratio(status: InferenceClusterStatus) -> Text:
    now = status.ratio or UNKNOWN
    target = ratio_text({role: counts.desired for role, counts in status.roles.items()}) if status.roles else UNKNOWN
    line = Text(f"{now} now, {target} target", style="yellow" if now != target else "")
    draining = sum(counts.draining for counts in status.roles.values())
    line.append(f"   {status.ready or UNKNOWN} ready" + (f", {draining} draining" if draining else ""))
    return line


def _forecast(status: InferenceClusterStatus) -> Text:
    ahead = status.forecast
    if ahead is None:
        return Text(UNKNOWN)
    line = Text(f"{_number(ahead.rate)}/s")
    if ahead.horizon is not None:
        line.append(f" in {ahead.horizon}")
    if ahead.upper_rate is not None:
        line.append(f", planned for {_number(ahead.upper_rate)}/s")
    line.append(f"   {ahead.method}", style="dim")
    if ahead.error is not None:
        line.append(f", off by {ahead.error:.0%} lately", style="dim")
    if ahead.error_against_last_value is not None:
        line.append(f" ({ahead.error_against_last_value:.2f} of last value's)", style="dim")
    return line


def _attainment(view: View) -> Text:
    kept, promised = view.cluster.status.attainment, view.cluster.spec.slo.attainment
    line = Text(UNKNOWN if kept is None else f"{kept:.1%}", style=_judged(kept is None or kept >= promised, kept))
    return line.append(f" of {promised:.0%}", style="default")


def _latency(view: View) -> Text:
    status, slo = view.cluster.status, view.cluster.spec.slo
    line = Text()
    for name, measured, limit in (("TTFT", status.ttft, slo.ttft), ("TPOT", status.tpot, slo.tpot)):
        found = measured or LatencyQuantiles()
        line.append(f"{'   ' if line else ''}{name} p50 {found.p50 or UNKNOWN} p90 ")
        inside = found.p90 is None or seconds(found.p90) <= seconds(limit)
        line.append(found.p90 or UNKNOWN, style=_judged(inside, found.p90))
        line.append(f" of {limit} p99 {found.p99 or UNKNOWN}")
    return line


def _judged(good: bool, known: object) -> str:
    return "" if known is None else "green" if good else "red"


def _queued(view: View) -> Text:
    return Text(f"{_number(view.cluster.status.queued)} requests on average, before they are let in or turned away")


def _batches(batches: BatchesStatus | None) -> str:
    if batches is None:
        return UNKNOWN
    done = f"{batches.completed} of {batches.requests} requests answered, {batches.failed} failed"
    return f"{batches.running} running{f' ({done})' if batches.running else ''}, {batches.waiting} waiting"


def _turned_away(view: View) -> Text:
    share = view.cluster.status.rejected_ratio
    line = Text(UNKNOWN if share is None else f"{share:.1%} lately")
    if view.arrivals is None:
        line.append(f", {UNKNOWN}/s now")
    elif not view.arrivals.failed:
        line.append(", none now")
    else:
        line.append(", " + ", ".join(f"{_number(rate)}/s {reason}" for reason, rate in view.arrivals.failed.items()))
        line.stylize("red")
    return line


def _workers(workers: tuple[WorkerLine, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), expand=True)
    table.add_column("WORKER", no_wrap=True)
    table.add_column("ROLE", no_wrap=True)
    for title in ("RUN", "WAIT", "KV", "IN TOK/S", "OUT TOK/S", "AGE"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("STATE", overflow="ellipsis", no_wrap=True, ratio=1)
    for worker in workers:
        table.add_row(
            worker.name,
            Text(worker.role or UNKNOWN, style=_ROLE_STYLES.get(worker.role, "yellow")),
            _count(worker.running),
            _count(worker.waiting),
            UNKNOWN if worker.kv_usage is None else f"{worker.kv_usage:.0%}",
            _number(worker.prompt_tokens_per_second),
            _number(worker.output_tokens_per_second),
            age(worker.age_seconds),
            Text(worker.state, style="" if worker.ready else "red"),
        )
    return table


def _notes(view: View) -> list[str]:
    notes = []
    asked = [worker for worker in view.workers if worker.ready]
    silent = [worker for worker in asked if not worker.answered]
    if silent:
        notes.append(_silent(f"{len(silent)} of {len(asked)} ready workers", "load is"))
    missing = view.gateways - view.gateways_answered
    if missing:
        notes.append(_silent(f"{missing} of {view.gateways} gateways", "requests now are"))
    return notes


def _silent(silent: str, what: str) -> str:
    return f"{silent} cannot be asked at their Pod addresses from here: {what} shown as {UNKNOWN}."


def _events(view: View, events: tuple[EventLine, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), expand=True)
    table.add_column("AGO", justify="right", no_wrap=True)
    table.add_column("REASON", no_wrap=True)
    table.add_column("DECISION", overflow="ellipsis", no_wrap=True, ratio=1)
    for event in events:
        ago = age((view.now - event.time).total_seconds())
        first_line = event.message.partition("\n")[0]
        table.add_row(ago, Text(event.reason, style="red" if event.warning else ""), first_line)
    return table


def age(duration_seconds: float) -> str:
    """Return a time that has passed, in one unit: `45s`, `12m`, `3h`, `9d`."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if duration_seconds < limit:
            return f"{max(0.0, duration_seconds) / divisor:.0f}{unit}"
    return f"{duration_seconds / 86400:.0f}d"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
