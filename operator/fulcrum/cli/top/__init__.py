"""`fulcrum top`: one InferenceCluster, live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fulcrum.cli.number_range import NumberRange

if TYPE_CHECKING:
    from fulcrum.cli.top.source import Source


@click.command("top", short_help="Watch a cluster: workers, ratio, load, decisions.")
@click.argument("name", required=False)
@click.option("-n", "--namespace", help="Namespace of the cluster; default: where the only cluster is.")
@click.option("--once", is_flag=True, help="Print one frame and end; for pipes.")
@click.option(
    "--interval",
    "interval_seconds",
    type=NumberRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between frames, and what rates are measured over.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Kubeconfig; default: $KUBECONFIG, else that of `fulcrum up`, else kubectl's.",
)
def command(
    *, name: str | None, namespace: str | None, once: bool, interval_seconds: float, kubeconfig: str | None
) -> None:
    """Show an InferenceCluster as it changes: workers with role and load, ratio now and target, forecast against what
    arrives, rejections, latency against the promise, and the last decisions.

    It reads the Kubernetes API, and the loads from workers and gateways where their Pod addresses can be reached from
    here (they can on this machine after `fulcrum up`, and inside the Kubernetes cluster). NAME may be left out when
    there is one cluster.

    \b
    Examples:
      fulcrum top
      fulcrum top chat -n serving
      fulcrum top chat --once | grep ratio
    """
    import asyncio
    import contextlib

    from fulcrum.cli.top.source import NoClusterError
    from fulcrum.kube import ApiFailure, ConfigError

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_run(name, namespace, once=once, interval_seconds=interval_seconds, kubeconfig=kubeconfig))
    except (NoClusterError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    except ApiFailure as error:
        raise click.ClickException(f"the API server does not answer: {error}") from error


async def _run(
    name: str | None, namespace: str | None, *, once: bool, interval_seconds: float, kubeconfig: str | None
) -> None:
    from fulcrum.cli.connect import api_of
    from fulcrum.cli.top.source import Source, find_cluster
    from fulcrum.telemetry import Agents

    api = api_of(kubeconfig)
    try:
        async with Agents() as agents, Source.open(api, agents, await find_cluster(api, namespace, name)) as source:
            await (_once(source, interval_seconds) if once else _live(source, interval_seconds))
    finally:
        await api.close()


async def _once(source: Source, interval_seconds: float) -> None:
    import asyncio
    import os
    import sys

    from rich.console import Console

    from fulcrum.cli.top.frame import frame

    view = await source.read()
    if view.reachable:
        # Rates need a second look.
        await asyncio.sleep(interval_seconds)
        view = await source.read()
    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 160)
    Console(highlight=False, width=width).print(frame(view))


async def _live(source: Source, interval_seconds: float) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live

    from fulcrum.cli.top.frame import frame
    from fulcrum.kube import ApiFailure

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        view, trouble = await source.read(), ""
        while True:
            live.update(frame(view, height=console.height, trouble=trouble), refresh=True)
            await asyncio.sleep(interval_seconds)
            try:
                view, trouble = await source.read(), ""
            except ApiFailure as error:
                trouble = f"the API server does not answer: {error}"
