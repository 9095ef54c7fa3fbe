"""`fulcrum operator`: the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fulcrum.controller.leader import Election


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
@click.option(
    "--dashboard",
    is_flag=True,
    help="Serve the dashboard at /dashboard of that address: read-only, for everyone who can reach it.",
)
@click.option(
    "--leader-election/--no-leader-election",
    default=True,
    show_default=True,
    help="Act only while holding a Lease. Without it nothing keeps two operators from acting on the same clusters.",
)
@click.option(
    "--lease",
    metavar="NAMESPACE/NAME",
    help="The Lease.  [default: $POD_NAMESPACE/fulcrum-operator, or fulcrum-system/fulcrum-operator]",
)
@click.option(
    "--lease-duration",
    default="15s",
    show_default=True,
    help="How long the Lease must have stood unchanged before another operator takes over; whole seconds.",
)
@click.option(
    "--renew-deadline", default="10s", show_default=True, help="How long this one acts without having renewed it."
)
@click.option(
    "--retry-period", default="2s", show_default=True, help="Time between attempts to renew the Lease or to get it."
)
@click.option(
    "--worker-image",
    envvar="FULCRUM_WORKER_IMAGE",
    help="Image of workers whose spec names none.  [default: this release's; also $FULCRUM_WORKER_IMAGE]",
)
@click.option(
    "--rocm-worker-image",
    envvar="FULCRUM_ROCM_WORKER_IMAGE",
    help="The same on accelerators of AMD.  [default: this release's; also $FULCRUM_ROCM_WORKER_IMAGE]",
)
@click.option(
    "--gateway-image",
    envvar="FULCRUM_GATEWAY_IMAGE",
    help="Image of gateways whose spec names none.  [default: this release's; also $FULCRUM_GATEWAY_IMAGE]",
)
@click.option(
    "--allow-privileged-templates",
    is_flag=True,
    help="Let the Pod templates of pools exceed the Pod Security level restricted (hostPath, privileged ...).",
)
@click.option("--allow-remote-code", is_flag=True, help="Let engines run code from models' repositories.")
@click.option("--allow-host-access", is_flag=True, help="Allow rdma.runAsRoot and rdma.hostNetwork.")
@click.option(
    "--template-may-use",
    "templates_may_use",
    multiple=True,
    metavar="KIND/NAME",
    help="Let the Pod templates of pools name this: ServiceAccount/NAME, Secret/NAME or Label/KEY (repeatable).",
)
@click.option(
    "--open-workers",
    is_flag=True,
    envvar="FULCRUM_OPEN_WORKERS",
    help="Replace workers by ones that ask for no token, before going back to a release without.  "
    "[also $FULCRUM_OPEN_WORKERS]",
)
@click.option("--verbose", is_flag=True, help="Log more.")
def command(
    *,
    kubeconfig: str | None,
    namespaces: tuple[str, ...],
    health_address: str | None,
    dashboard: bool,
    leader_election: bool,
    lease: str | None,
    lease_duration: str,
    renew_deadline: str,
    retry_period: str,
    worker_image: str | None,
    rocm_worker_image: str | None,
    gateway_image: str | None,
    allow_privileged_templates: bool,
    templates_may_use: tuple[str, ...],
    allow_remote_code: bool,
    allow_host_access: bool,
    open_workers: bool,
    verbose: bool,
) -> None:
    """Run the operator against a Kubernetes API server.

    It watches InferenceClusters and keeps their workers, gateways and status as their specs say. It keeps no state:
    it may be stopped and started at any time. Of several operators the one that holds the Lease acts, and the others
    wait; one that loses it ends with exit code 1.

    \b
    Examples:
      fulcrum operator
      fulcrum operator --kubeconfig ~/.kube/config --namespace default --lease default/fulcrum-operator
      fulcrum operator --health-address 127.0.0.1:0 --no-leader-election
    """
    import asyncio
    import logging
    import os
    import socket
    import sys

    # Forecasts are many small matrices: with more threads they take about ten times as long. Read when numpy is loaded.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

    import uvloop

    from fulcrum.api.names import ENV_POD_NAME, ENV_POD_NAMESPACE
    from fulcrum.controller.children.template_access import KINDS
    from fulcrum.controller.installation import Installation
    from fulcrum.controller.leader import LeaseLostError
    from fulcrum.controller.run import run_operator

    for each in templates_may_use:
        if each.partition("/")[0] not in KINDS or not each.partition("/")[2]:
            raise click.BadParameter(
                f"{each} is none of {', '.join(sorted(KINDS))}/NAME", param_hint="--template-may-use"
            )
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = kubeconfig
    host, port = _host_and_port(health_address or f"{os.environ.get('POD_IP') or '127.0.0.1'}:8081")
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if not verbose:
        # It logs every event; our own lines say what was done and why.
        logging.getLogger("kopf").setLevel(logging.WARNING)
    identity = os.environ.get(ENV_POD_NAME) or f"{socket.gethostname()}_{os.getpid()}"
    told = {
        "worker_image": worker_image,
        "rocm_worker_image": rocm_worker_image,
        "gateway_image": gateway_image,
        "namespace": os.environ.get(ENV_POD_NAMESPACE),
    }
    installation = Installation(
        allow_privileged_templates=allow_privileged_templates,
        templates_may_use=frozenset(templates_may_use),
        allow_remote_code=allow_remote_code,
        allow_host_access=allow_host_access,
        open_workers=open_workers,
        **{name: value for name, value in told.items() if value},
    )
    election = _election(identity, lease, lease_duration, renew_deadline, retry_period) if leader_election else None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                run_operator(
                    identity=identity,
                    installation=installation,
                    namespaces=namespaces,
                    health_host=host,
                    health_port=port,
                    election=election,
                    dashboard=dashboard,
                )
            )
    except LeaseLostError as error:
        logging.getLogger(__name__).error("leader_lost error=%r", str(error))  # noqa: TRY400 (nothing is broken)
        sys.exit(1)


def _election(
    identity: str, lease: str | None, lease_duration: str, renew_deadline: str, retry_period: str
) -> Election:
    import os

    from fulcrum.api.durations import seconds
    from fulcrum.api.errors import InvalidValueError
    from fulcrum.api.names import ENV_POD_NAMESPACE, OPERATOR_NAME, OPERATOR_NAMESPACE
    from fulcrum.controller.leader import Election

    namespace, _, name = (
        lease or f"{os.environ.get(ENV_POD_NAMESPACE) or OPERATOR_NAMESPACE}/{OPERATOR_NAME}"
    ).rpartition("/")
    if not namespace or not name:
        raise click.BadParameter(f"{lease} is not NAMESPACE/NAME", param_hint="--lease")
    try:
        if seconds(lease_duration) != int(seconds(lease_duration)):
            raise click.BadParameter(
                f"{lease_duration} is not a whole number of seconds", param_hint="--lease-duration"
            )
        return Election(
            namespace=namespace,
            name=name,
            identity=identity,
            lease_seconds=int(seconds(lease_duration)),
            renew_deadline_seconds=seconds(renew_deadline),
            retry_seconds=seconds(retry_period),
        )
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from error


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{address} is not HOST:PORT", param_hint="--health-address")
    return host.strip("[]"), int(port)
