"""`fulcrum up`: a local Kubernetes with the operator, and the user's file in it."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Start a local Kubernetes with the operator and apply a file.")
@click.option(
    "-f",
    "--filename",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="File to apply; may be given more than once.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until what was applied is available.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")
@click.option("--operator/--no-operator", default=True, show_default=True, help="Install the CRD and the operator.")
@click.option("--chaos", type=int, metavar="SEED", help="Test: late and broken watches, 409, 429, 500 and 410 by seed.")
def command(*, filename: tuple[Path, ...], wait: bool, timeout: float, operator: bool, chaos: int | None) -> None:
    """Start a Kubernetes on this machine, install the operator, apply files and wait until they are available.

    It runs in the background: Ctrl-C ends only the waiting. Run it again at any time; what runs already is left alone.

    \b
    Examples:
      fulcrum up -f examples/quickstart.yaml
      fulcrum up --no-wait
    """
    import asyncio
    import sys

    from rich.console import Console

    from fulcrum_local.bringup import BringUp, BringUpError
    from fulcrum_local.home import Home

    bring_up = BringUp(Home.find(), Console(highlight=False), chaos_seed=chaos)
    try:
        asyncio.run(bring_up.run(filename, wait=wait, timeout_seconds=timeout, operator=operator))
    except BringUpError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("\nNo longer waiting; everything keeps running. `fulcrum status` shows it, `fulcrum down` stops it.")
        sys.exit(130)
