"""`fulcrum down`: stop everything that `fulcrum up` started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fulcrum.kube import Api
    from fulcrum_local.home import Home


@click.command(short_help="Stop everything that `fulcrum up` started.")
@click.option("--purge", is_flag=True, help="Remove the state too: objects, logs, certificates.")
@click.option(
    "--keep", is_flag=True, help="Leave InferenceClusters in the state, so that the next `up` starts them again."
)
@click.option(
    "--timeout",
    default=150.0,
    show_default=True,
    help="Seconds for workers to finish what they do; then they are killed.",
)
def command(*, purge: bool, keep: bool, timeout: float) -> None:
    """Remove the InferenceClusters, let their workers finish, and stop the local Kubernetes.

    Nothing keeps running, also not what was left by a crash. Everything else in the state (ConfigMaps, Secrets, other
    objects) stays for the next `fulcrum up`, unless --purge is given.

    \b
    Examples:
      fulcrum down
      fulcrum down --purge
    """
    import asyncio

    from fulcrum_local.home import Home
    from fulcrum_local.launch import is_running, leftovers, stop_pods, stop_supervisor
    from fulcrum_local.launch import purge as remove_state

    home = Home.find()
    running = is_running(home)
    was_there = running or bool(leftovers(home))
    if running and not keep:
        try:
            asyncio.run(_remove_clusters(home, timeout_seconds=timeout))
        except KeyboardInterrupt:
            click.echo("Not waiting any longer.")
    if was_there:
        click.echo("Stopping the local Kubernetes ...")
        stop_supervisor(home)
        stop_pods(home, grace_seconds=min(timeout, 10.0))
    left = leftovers(home)
    if left:
        raise click.ClickException(f"could not stop: {', '.join(f'pid {identity.pid}' for identity in left)}")
    if purge:
        try:
            remove_state(home)
        except OSError as error:
            raise click.ClickException(f"could not remove {home.root}: {error}") from error
    click.echo("Stopped." if was_there else "Nothing was running.")
    if purge:
        click.echo(f"Removed the state in {home.root}.")
    elif home.root.is_dir():
        click.echo(f"State is kept in {home.root} (fulcrum down --purge removes it).")


async def _remove_clusters(home: Home, *, timeout_seconds: float) -> None:
    """Delete every InferenceCluster and wait until it and its Pods are gone; give up quietly after the timeout."""
    import asyncio

    from fulcrum.kube import Api, ApiFailure

    api = Api(home.kubeconfig, timeout_seconds=5)
    try:
        async with asyncio.timeout(timeout_seconds):
            await _delete_and_wait(api)
    except TimeoutError:
        click.echo(f"Workers did not finish within {timeout_seconds:.0f}s.")
    except ApiFailure as error:
        click.echo(f"Could not remove the InferenceClusters: {error}")
    finally:
        await api.close()


async def _delete_and_wait(api: Api) -> None:
    import asyncio

    from fulcrum.api.names import API_VERSION, LABEL_CLUSTER, PLURAL
    from fulcrum.kube import ApiError

    try:
        clusters = (await api.get(f"/apis/{API_VERSION}/{PLURAL}")).get("items") or []
    except ApiError as error:
        if error.code == 404:  # no CRD, no clusters
            return
        raise
    for item in clusters:
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        click.echo(f"Removing InferenceCluster {namespace}/{name}; its workers finish their requests ...")
        try:
            await api.delete(f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}", uid=item["metadata"]["uid"])
        except ApiError as error:
            if error.code not in (404, 409):  # gone, or another one by now
                raise
    while clusters:
        left = (await api.get(f"/apis/{API_VERSION}/{PLURAL}")).get("items") or []
        pods = (await api.get("/api/v1/pods", {"labelSelector": LABEL_CLUSTER})).get("items") or []
        if not left and not pods:
            return
        await asyncio.sleep(0.2)
