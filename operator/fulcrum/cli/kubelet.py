"""`fulcrum kubelet`: run Pods as processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fulcrum_local.kubelet.config import KubeletConfig


def _pairs(_ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if any(not name or not separator for name, separator, _ in pairs):
        raise click.BadParameter("write it as NAME=VALUE", param=parameter)
    return {name: value for name, _, value in pairs}


def _taints(_ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    taints = []
    for text in values:
        head, separator, effect = text.rpartition(":")
        if not separator or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise click.BadParameter("write it as KEY=VALUE:NoSchedule", param=parameter)
        key, _, value = head.partition("=")
        taints.append({"key": key, "value": value, "effect": effect})
    return tuple(taints)


@click.command(short_help="Run Pods as processes of this machine.")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Default: what $KUBECONFIG names.")
@click.option("--node-name", default="local", show_default=True, help="Name of the Node object.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="Default: kubelet/ in the Fulcrum state folder.")
@click.option("--pod-cidr", default="127.77.0.0/16", show_default=True, help="Loopback network of Pod addresses.")
@click.option("--label", "labels", multiple=True, callback=_pairs, help="NAME=VALUE; more labels for the Node.")
@click.option(
    "--taint",
    "taints",
    multiple=True,
    default=("fulcrum.dev/process-kubelet=true:NoSchedule",),
    show_default=True,
    callback=_taints,
    help="Keeps Pods away that do not tolerate it.",
)
@click.option("--no-taint", is_flag=True, help="Take every Pod (for a Kubernetes that has only this node).")
@click.option(
    "--extended-resource", "resources", multiple=True, callback=_pairs, help="Announce more, as nvidia.com/gpu=2."
)
@click.option("--pass-env", multiple=True, help="Environment variable of this process that Pods get too.")
@click.option(
    "--service-proxy/--no-service-proxy", default=False, show_default=True, help="Serve cluster IPs (127.78.x.y) here."
)
def command(
    *,
    kubeconfig: str | None,
    node_name: str,
    state_dir: str | None,
    pod_cidr: str,
    labels: dict[str, str],
    taints: tuple[dict[str, str], ...],
    no_taint: bool,
    resources: dict[str, str],
    pass_env: tuple[str, ...],
    service_proxy: bool,
) -> None:
    """Run the Pods of one Node as processes of this machine, against any Kubernetes API server.

    Each container's `command` and `args` run as this user, with an address of their own on the loopback network.
    Images and resource limits do not exist here. Mount paths in command, args, env and workingDir are translated to the
    volume's folder, which is also in FULCRUM_VOLUME_<NAME>.

    SIGTERM stops the kubelet, not the Pods: the next kubelet with the same --state-dir takes them over.

    \b
    Examples:
      fulcrum kubelet --kubeconfig ~/.kube/config --node-name my-laptop
      fulcrum kubelet --node-name gpu-box --extended-resource nvidia.com/gpu=2
    """
    from fulcrum_local.home import Home
    from fulcrum_local.kubelet.config import KubeletConfig

    try:
        config = KubeletConfig(
            node_name=node_name,
            state_directory=Path(state_dir).absolute() if state_dir else Home.find().kubelet,
            pod_cidr=pod_cidr,
            labels=labels,
            taints=() if no_taint else taints,
            extended_resources=resources,
            pass_environment=pass_env,
            sweep_orphans=True,
        )
        _serve(config, kubeconfig, service_proxy=service_proxy)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _serve(config: KubeletConfig, kubeconfig: str | None, *, service_proxy: bool) -> None:
    import uvloop

    from fulcrum.kube import ConfigError
    from fulcrum_local.kubelet.main import serve
    from fulcrum_local.log_format import log_to_stderr

    log_to_stderr()
    try:
        uvloop.run(serve(config, kubeconfig, service_proxy=service_proxy))
    except ConfigError as error:
        raise click.ClickException(f"{error}. Name a kubeconfig with --kubeconfig or $KUBECONFIG.") from error
