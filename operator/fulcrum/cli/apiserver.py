"""`fulcrum apiserver`: the embedded Kubernetes API server alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("apiserver")
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the state; made."
)
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port; 0: that of the last run, or a free one.")
@click.option(
    "--kubeconfig-out", type=click.Path(dir_okay=False, path_type=Path), help="Write an administrator's kubeconfig."
)
@click.option(
    "--service-cluster-ip-range", default="127.78.0.0/16", show_default=True, help="Addresses for Services (CIDR)."
)
@click.option("--chaos", type=int, metavar="SEED", help="Test: late and broken watches, 409, 429, 500 and 410 by seed.")
def command(
    *,
    state_dir: Path,
    bind: str,
    port: int,
    kubeconfig_out: Path | None,
    service_cluster_ip_range: str,
    chaos: int | None,
) -> None:
    """Run the embedded Kubernetes API server alone.

    It stores and serves objects; nothing acts on them until a kubelet, controllers or the operator run against it.

    \b
    Examples:
      fulcrum apiserver --state-dir /tmp/k8s --kubeconfig-out /tmp/k8s/kubeconfig
      kubectl --kubeconfig /tmp/k8s/kubeconfig get namespaces
    """
    import logging

    import uvloop

    from fulcrum_local.apiserver.run import AlreadyRunningError, Options, PortTakenError, run
    from fulcrum_local.home import EXIT_PORT_TAKEN

    class PortTaken(click.ClickException):
        exit_code = EXIT_PORT_TAKEN

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = Options(
        state_dir=state_dir.absolute(),
        bind=bind,
        port=port,
        kubeconfig_out=kubeconfig_out,
        service_range=service_cluster_ip_range,
        chaos_seed=chaos,
    )
    try:
        uvloop.run(run(options))
    except PortTakenError as error:
        raise PortTaken(str(error)) from None
    except (AlreadyRunningError, OSError) as error:
        raise click.ClickException(str(error)) from None
