"""`fulcrum status`: what runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from fulcrum_local.overview import Overview, WorkerRow


@click.command(short_help="Show clusters, workers and what runs.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def command(*, as_json: bool) -> None:
    """Show the InferenceClusters of the local Kubernetes, their workers, and the processes that make it up.

    The exit code is 0 when it runs and 3 when it does not.

    \b
    Examples:
      fulcrum status
      fulcrum status --json | jq '.workers[].role'
    """
    import asyncio
    import sys

    import msgspec

    from fulcrum.kube import ApiFailure

    try:
        shown = asyncio.run(_read())
    except ApiFailure as error:
        raise click.ClickException(f"the local API server does not answer: {error}") from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    else:
        from rich.console import Console

        # In a pipe nothing is cut off.
        _show(shown, Console(highlight=False, width=None if sys.stdout.isatty() else 240))
    if not shown.running:
        sys.exit(3)


async def _read() -> Overview:
    from fulcrum.kube import Api
    from fulcrum_local.home import Home
    from fulcrum_local.launch import is_running
    from fulcrum_local.overview import overview

    home = Home.find()
    if not is_running(home) or not home.kubeconfig.is_file():
        return await overview(home, None)
    api = Api(home.kubeconfig)
    try:
        return await overview(home, api)
    finally:
        await api.close()


def _show(shown: Overview, console: Console) -> None:
    from rich.table import Table

    if not shown.running:
        console.print(f"Nothing runs in {shown.home}. Start with: fulcrum up -f FILE", markup=False)
        return
    clusters = Table("CLUSTER", "AVAILABLE", "RATIO", "ENDPOINT", "STATE", box=None, pad_edge=False)
    for row in shown.clusters:
        state = f"{row.reason}: {row.message}" if row.message else row.reason
        clusters.add_row(f"{row.namespace}/{row.name}", _mark(row.available), row.ratio, row.endpoint, state)
    if shown.clusters:
        console.print(clusters)
    else:
        console.print("No InferenceCluster. Apply one with: fulcrum up -f FILE")
    console.print()
    if shown.workers:
        console.print(_pods(shown.workers, workers=True))
        console.print()
    if shown.others:
        console.print(_pods(shown.others, workers=False))
        console.print()
    processes = Table("PROCESS", "PID", "MEMORY", "AGE", box=None, pad_edge=False)
    for process in shown.processes:
        memory = f"{process.memory_bytes / 2**20:.0f} MiB"
        processes.add_row(process.name, str(process.pid), memory, _age(process.age_seconds))
    console.print(processes)
    page = f"\nDashboard   {shown.dashboard}" if shown.dashboard else ""
    console.print(f"\nState       {shown.home}\nKubeconfig  {shown.kubeconfig}{page}", markup=False, soft_wrap=True)


def _pods(rows: Iterable[WorkerRow], *, workers: bool) -> object:
    from rich.table import Table

    columns = ("WORKER", "ROLE", "READY", "RESTARTS", "ADDRESS", "AGE", "STATE") if workers else (
        "POD", "READY", "RESTARTS", "ADDRESS", "AGE", "STATE",
    )  # fmt: skip
    table = Table(*columns, box=None, pad_edge=False)
    table.columns[0].overflow = "fold"  # a name that was cut off cannot be copied
    for row in rows:
        cells = [_mark(row.ready), str(row.restarts), row.address, _age(row.age_seconds), row.trouble or row.phase]
        table.add_row(f"{row.namespace}/{row.name}", *([row.role] if workers else []), *cells)
    return table


def _mark(yes: bool) -> str:
    return "[green]yes[/]" if yes else "[red]no[/]"


def _age(seconds: float) -> str:
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"
