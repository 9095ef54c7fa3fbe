"""`fulcrum logs`: a Pod's log."""

from __future__ import annotations

import click


@click.command(short_help="Print the log of a Pod.")
@click.argument("pod")
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows; Ctrl-C ends it.")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("-c", "--container", help="Needed only for a Pod with more than one.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines.")
@click.option("--since", type=click.IntRange(min=1), metavar="SECONDS", help="Only what is no older.")
@click.option("--previous", is_flag=True, help="The run before the last restart.")
@click.option("--timestamps", is_flag=True, help="When each line was written.")
def command(
    *,
    pod: str,
    follow: bool,
    namespace: str,
    container: str | None,
    tail: int | None,
    since: int | None,
    previous: bool,
    timestamps: bool,
) -> None:
    """Print the log of a Pod of the local Kubernetes.

    \b
    Examples:
      fulcrum logs quickstart-cpu-0 -f
      fulcrum logs quickstart-cpu-0 --previous --tail 40
      fulcrum logs -n fulcrum-system fulcrum-operator-5d8f7-x2x2x
    """
    import asyncio
    import contextlib

    params = {
        "container": container,
        "follow": "true" if follow else None,
        "previous": "true" if previous else None,
        "timestamps": "true" if timestamps else None,
        "tailLines": None if tail is None else str(tail),
        "sinceSeconds": None if since is None else str(since),
    }
    query = {name: value for name, value in params.items() if value is not None}
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_print(pod, namespace, query))


async def _print(pod: str, namespace: str, query: dict[str, str]) -> None:
    import sys

    from fulcrum.kube import Api, ApiError, ApiFailure
    from fulcrum_local.home import Home
    from fulcrum_local.launch import is_running

    home = Home.find()
    if not is_running(home) or not home.kubeconfig.is_file():
        raise click.ClickException(f"there is no local Kubernetes in {home.root}; start one with: fulcrum up")
    api = Api(home.kubeconfig)
    try:
        async for chunk in api.stream(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except ApiError as error:
        hint = (
            f" (fulcrum status lists the Pods; -n NAMESPACE if it is not in {namespace})" if error.code == 404 else ""
        )
        raise click.ClickException(f"{error}{hint}") from error
    except ApiFailure as error:
        raise click.ClickException(f"the local API server does not answer: {error}") from error
    finally:
        await api.close()
