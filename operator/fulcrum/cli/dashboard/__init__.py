"""`fulcrum dashboard`: one page about all clusters, served to this machine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("dashboard", short_help="Serve a page that shows all clusters live.")
@click.option("--demo", is_flag=True, help="Show a simulated run, recorded and replayed in a loop; needs no cluster.")
@click.option("-n", "--namespace", help="Show clusters of this namespace only; default: of all.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8090",
    show_default=True,
    help="Where the page is served; port 0 takes a free one. The page asks for no password.",
)
@click.option(
    "--url-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the URL there; when the port of --listen is taken, take a free one.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Kubeconfig; default: $KUBECONFIG, else that of `fulcrum up`, else kubectl's.",
)
def command(*, demo: bool, namespace: str | None, listen: str, url_file: Path | None, kubeconfig: str | None) -> None:
    """Serve a read-only page: clusters, workers by role with load and KV, ratio, forecast, attainment, rejections and
    the last decisions. It updates itself.

    `fulcrum up` serves it already and prints its URL. It needs the rights to list and watch InferenceClusters, Pods
    and Events. Loads come from Pod addresses, which can be reached on this machine after `fulcrum up`, and inside the
    Kubernetes cluster; elsewhere the page shows what the API knows.

    \b
    Examples:
      fulcrum dashboard --demo
      fulcrum dashboard
      fulcrum dashboard --kubeconfig ~/.kube/config -n serving
    """
    import asyncio
    import contextlib

    from fulcrum.cli.dashboard.serve import PortTakenError, serve
    from fulcrum.kube import ConfigError

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{listen} is not HOST:PORT", param_hint="--listen")
    if demo and (namespace or kubeconfig):
        raise click.UsageError("--demo needs no cluster: leave --namespace and --kubeconfig out")
    if demo:
        from fulcrum.cli.dashboard.demo import opened_recording

        opened = opened_recording()
    else:
        from fulcrum.cli.dashboard.live import opened_cluster

        opened = opened_cluster(namespace, kubeconfig)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(opened, host.strip("[]"), int(port), url_file=url_file))
    except (ConfigError, PortTakenError) as error:
        raise click.ClickException(str(error)) from error
