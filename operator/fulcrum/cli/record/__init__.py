"""`fulcrum record`: the last minutes of a cluster's requests, as a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fulcrum.cli.number_range import NumberRange

if TYPE_CHECKING:
    from fulcrum.cli.record.trace import Trace
    from fulcrum.kube import Api
    from fulcrum.rehearsal.rings import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What the gateways of a cluster answered."""

    recording: Recording
    key_ends: tuple[int, ...]
    """Lengths of the prefixes whose keys are recorded."""
    has_classes: bool
    """Without classes, all requests are of one that the cluster's object does not name."""


@click.command("record", short_help="Write a cluster's last minutes of requests as a trace.")
@click.argument("cluster", required=False, metavar="[ic/]NAME")
@click.option("-n", "--namespace", help="Namespace of the cluster; default: where the only cluster is.")
@click.option(
    "--last",
    "last_seconds",
    type=NumberRange(1, 3600),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="Only what came in the last seconds.",
)
@click.option(
    "--assume-output",
    "assumed_output_tokens",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Length of answers that are unknown, because they were refused, broken off or are under way; default: such "
    "requests are left out.",
)
@click.option("--partial", is_flag=True, help="Write what there is, though a gateway does not answer.")
@click.option(
    "--gateway",
    "addresses",
    multiple=True,
    metavar="POD=HOST:PORT",
    help="Where a gateway's port 8082 is reached, as with `kubectl port-forward`; once for each.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Kubeconfig; default: $KUBECONFIG, else that of `fulcrum up`, else kubectl's.",
)
def command(
    *,
    cluster: str | None,
    namespace: str | None,
    last_seconds: float,
    assumed_output_tokens: int | None,
    partial: bool,
    addresses: tuple[str, ...],
    kubeconfig: str | None,
) -> None:
    """Write the requests of a cluster's last minutes to standard output, in Mooncake's trace format: when each came,
    the lengths of prompt and answer, and which begin with the same blocks of 512 tokens. There is no text in it, and
    no time of day.

    It reads the InferenceCluster, its gateway Pods and the Secret NAME-record, and then each gateway. What the trace
    covers, and what is not in it, is said on standard error. NAME may be left out when there is one cluster.

    \b
    Examples:
      fulcrum record ic/chat -n serving > trace.jsonl
      fulcrum record chat --last 600 --assume-output 200 > trace.jsonl
      fulcrum simulate --trace trace.jsonl --cluster cluster.yaml
    """
    import asyncio

    from fulcrum.cli.top.source import NoClusterError
    from fulcrum.kube import ApiFailure, ConfigError

    name = cluster.rpartition("/")[2] if cluster else None
    try:
        read = asyncio.run(_read(name, namespace, kubeconfig, last_seconds, _places(addresses)))
    except (NoClusterError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    except ApiFailure as error:
        raise click.ClickException(f"the API server refuses or does not answer: {error}") from error
    _write(read, last_seconds, assumed_output_tokens, partial=partial)


def _places(addresses: tuple[str, ...]) -> dict[str, str]:
    """Addresses by Pod name. Raises click.UsageError."""
    found: dict[str, str] = {}
    for address in addresses:
        pod, _, place = address.partition("=")
        host, _, port = place.rpartition(":")
        named = ":" not in host or (host.startswith("[") and host.endswith("]"))
        if not (pod and host and named and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise click.UsageError(
                f"--gateway {address}: write it as POD=HOST:PORT, as in chat-gateway-x=127.0.0.1:9082 or "
                "chat-gateway-x=[::1]:9082"
            )
        if pod in found or place in found.values():
            raise click.UsageError(f"--gateway {address}: give each Pod once, and each one a place of its own")
        found[pod] = place
    return found


async def _read(
    name: str | None, namespace: str | None, kubeconfig: str | None, last_seconds: float, places: dict[str, str]
) -> _Answers:
    from fulcrum.admission import DEFAULT_CLASS
    from fulcrum.cli.connect import api_of
    from fulcrum.cli.top.source import find_cluster
    from fulcrum.rehearsal.rings import merge
    from fulcrum.telemetry.rings import read_rings

    api = api_of(kubeconfig)
    try:
        space, known = await find_cluster(api, namespace, name)
        gateways = await _gateways(api, space, known)
        token = await _token(api, space, known)
    finally:
        await api.close()
    if not gateways:
        raise click.ClickException(f"ic/{known} in {space} has no running gateway: look at fulcrum top {known}")
    for pod in places.keys() - gateways.keys():
        raise click.UsageError(
            f"--gateway {pod}=...: no gateway of ic/{known} that runs is called so; there is {', '.join(gateways)}"
        )
    rings = await read_rings({**gateways, **places}, token=token, last_seconds=last_seconds)
    pages = [ring.page for ring in rings if ring.page is not None]
    return _Answers(
        recording=merge(rings, last_seconds=last_seconds),
        key_ends=max((page.key_ends for page in pages), key=len, default=()),
        has_classes=any(name != DEFAULT_CLASS for page in pages for name in page.classes),
    )


async def _gateways(api: Api, namespace: str, cluster: str) -> dict[str, str]:
    """Address of each gateway Pod that runs, by name; one that ends has requests, too."""
    from fulcrum.api.names import COMPONENT_GATEWAY, LABEL_CLUSTER, LABEL_COMPONENT

    selector = f"{LABEL_CLUSTER}={cluster},{LABEL_COMPONENT}={COMPONENT_GATEWAY}"
    pods: dict[str, Any] = await api.get(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})
    found = {}
    for pod in pods.get("items") or []:
        status = pod.get("status") or {}
        if status.get("phase") == "Running" and status.get("podIP"):
            found[pod["metadata"]["name"]] = status["podIP"]
    return found


async def _token(api: Api, namespace: str, cluster: str) -> str | None:
    """What gateways show their rings for; None where there is none."""
    import base64
    import binascii

    from fulcrum.api.internal_token import SECRET_KEY, record_secret_name
    from fulcrum.kube import ApiError

    secret = record_secret_name(cluster)
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
        return base64.b64decode((found.get("data") or {})[SECRET_KEY], validate=True).decode("ascii")
    except ApiError as error:
        if error.code == 404:
            return None
        if error.code == 403:
            raise click.ClickException(
                f"you may not read Secret {secret} in {namespace}: bind a Role with `get` on it "
                "(docs/operations/record.md has it)"
            ) from error
        raise
    except (KeyError, binascii.Error, UnicodeDecodeError) as error:
        raise click.ClickException(f"Secret {secret} in {namespace} has no usable key {SECRET_KEY}") from error


def _write(read: _Answers, last_seconds: float, assumed_output_tokens: int | None, *, partial: bool) -> None:
    import sys

    from fulcrum.cli.record.trace import trace_of

    recording = read.recording
    for gateway, problem in recording.silent:
        click.echo(f"gateway {gateway} is not in it: {problem}", err=True)
    if recording.silent and not partial:
        raise click.ClickException(
            "what those gateways served is unknown, so that the trace would show less load than there was. Pods are "
            "reached from inside the cluster, or with --gateway POD=HOST:PORT; --partial writes what there is"
        )
    trace = trace_of(
        recording.requests,
        read.key_ends,
        assumed_output_tokens=assumed_output_tokens,
        has_classes=read.has_classes,
    )
    for line in said(recording, trace, last_seconds):
        click.echo(line, err=True)
    if not trace.lines:
        use = ", or use --assume-output TOKENS" if trace.assumable else ""
        raise click.ClickException(f"there is nothing to write: send requests first{use}")
    out = sys.stdout.buffer
    for written in trace.lines:
        out.write(written + b"\n")
    out.flush()


def said(recording: Recording, trace: Trace, last_seconds: float) -> list[str]:
    """Return what is said of a trace of the `last_seconds`: what it covers, and what is not in it."""
    from fulcrum.cli.record.trace import MOST_BLOCKS

    covered = (
        f"{len(trace.lines)} of {len(recording.requests)} requests of the last {recording.covers_from_seconds:.0f} s"
    )
    if recording.limited_by and recording.covers_from_seconds < last_seconds:
        covered += f", as far back as gateway {recording.limited_by} knows"
    text = [covered]
    if recording.sampling_rate < 1:
        text.append(
            f"sampled: one request of {1 / recording.sampling_rate:.0f}, conversations whole "
            "(the load was that many times as high)"
        )
    if recording.retries:
        text.append(f"{recording.retries} retries after a 429 count as one with their first request")
    text += [f"left out: {count} {reason.text}" for reason, count in trace.left_out]
    if trace.missing_load and trace.lines:
        higher = f"the load was {trace.missing_load / len(trace.lines):.0%} higher than the trace"
        text.append(
            f"{higher}: --assume-output adds {trace.assumable} of those left out" if trace.assumable else higher
        )
    if trace.without_blocks:
        text.append(f"without hash_ids: {trace.without_blocks}, because a trace has at most {MOST_BLOCKS:,} of them")
    return text
