"""`fulcrum operator`: the operator."""

from __future__ import annotations

import click


@click.command("operator")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Kubeconfig; default: $KUBECONFIG, or the Pod's service account.",
)
@click.option("--namespace", "namespaces", multiple=True, help="Namespace to serve (repeatable); default: all.")
@click.option(
    "--health-address",
    metavar="HOST:PORT",
    help="Where /healthz and /metrics are served.  [default: $POD_IP:8081, or 127.0.0.1:8081]",
)
@click.option("--verbose", is_flag=True, help="Log more.")
def command(kubeconfig: str | None, namespaces: tuple[str, ...], health_address: str | None, verbose: bool) -> None:
    """Run the operator against a Kubernetes API server.

    It watches InferenceClusters and keeps their workers, gateways and status as their specs say. It keeps no state:
    it may be stopped and started at any time.

    \b
    Examples:
      fulcrum operator
      fulcrum operator --kubeconfig ~/.kube/config --namespace default
      fulcrum operator --health-address 127.0.0.1:0
    """
    import asyncio
    import logging
    import os

    import uvloop

    from fulcrum.controller.run import run_operator

    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = kubeconfig
    host, port = _host_and_port(health_address or f"{os.environ.get('POD_IP') or '127.0.0.1'}:8081")
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if not verbose:
        # Both log every request; our own lines say what was done and why.
        for name in ("kopf", "httpx2"):
            logging.getLogger(name).setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_operator(namespaces=namespaces, health_host=host, health_port=port))


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{address} is not HOST:PORT", param_hint="--health-address")
    return host.strip("[]"), int(port)
