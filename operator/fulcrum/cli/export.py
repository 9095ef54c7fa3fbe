"""`fulcrum capacity --export`: the profile of what the workers of a running cluster have measured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.names import (
    ANNOTATION_SPEC_HASH,
    API_VERSION,
    COMPONENT_WORKER,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_POOL,
    PLURAL,
)
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.ports import AgentAddress, agent_of
from fulcrum.api.types import InferenceCluster, Pool
from fulcrum.capacity.profile import ProfileError, parse_profile, profile_document
from fulcrum.capacity.trust import measured_speed, pool_speed
from fulcrum.cli.connect import api_of
from fulcrum.cli.top.source import NoClusterError, find_cluster
from fulcrum.kube import Api, ApiFailure, ConfigError
from fulcrum.kube.readiness import is_true
from fulcrum.rollout import worker_revision
from fulcrum.telemetry import Agents

AGENT_SECONDS: Final = 5.0
"""Deadline of a worker's answer: a person waits for it, and no decision."""


class ExportError(Exception):
    """There is nothing to export. Says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A profile, and where it is from."""

    document: str
    """JSON, as `spec.pools[].profile` and `--profile` read it."""
    origin: str


def print_export(*, name: str | None, namespace: str | None, pool: str | None, kubeconfig: str | None) -> None:
    """Print the profile, and on standard error where it is from."""

    async def run() -> Exported:
        api = api_of(kubeconfig)
        try:
            return await export_profile(api, name=name, namespace=namespace, pool=pool)
        finally:
            await api.close()

    try:
        exported = asyncio.run(run())
    except (ExportError, NoClusterError, ConfigError, InvalidValueError) as error:
        raise click.ClickException(str(error)) from error
    except ApiFailure as error:
        raise click.ClickException(f"the API server does not answer: {error}") from error
    click.echo(exported.document)
    click.echo(exported.origin, err=True)


async def export_profile(api: Api, *, name: str | None, namespace: str | None, pool: str | None) -> Exported:
    """Return what the workers of a pool have measured: of several the middle one, as the operator reckons with.

    Errors: ExportError, NoClusterError, ApiFailure, ConfigError, InvalidValueError (a spec that cannot be read).
    """
    key = await find_cluster(api, namespace, name)
    # The operator's account may list, and not get: the command runs in its Pod, too.
    clusters = (await api.get(f"/apis/{API_VERSION}/namespaces/{key[0]}/{PLURAL}")).get("items") or []
    document = next((each for each in clusters if each["metadata"]["name"] == key[1]), None)
    if document is None:
        raise ExportError(f"InferenceCluster {key[0]}/{key[1]} is gone")
    cluster = load_inference_cluster(document)
    meant = _meant(cluster, pool)
    selector = f"{LABEL_CLUSTER}={key[1]},{LABEL_POOL}={meant.name},{LABEL_COMPONENT}={COMPONENT_WORKER}"
    pods = (await api.get(f"/api/v1/namespaces/{key[0]}/pods", {"labelSelector": selector})).get("items") or []
    addresses = _addresses(pods, meant, worker_revision(cluster=key[1], spec=cluster.spec, pool=meant))
    async with Agents(deadline_seconds=AGENT_SECONDS) as agents:
        loads = await agents.loads(addresses)
    answers = [load for load in loads.values() if load is not None]
    if not answers:
        raise ExportError(
            f"no worker of pool {meant.name} answers: addresses of Pods can be reached on the machine of `fulcrum up` "
            "and inside the Kubernetes cluster: kubectl -n fulcrum-system exec deploy/fulcrum-operator -- fulcrum "
            f"capacity --export {key[1]} -n {key[0]} --pool {meant.name}"
        )
    speeds = [speed for load in answers if (speed := measured_speed(load)) is not None]
    found = pool_speed(speeds)
    if found is None:
        raise ExportError(
            f"no worker of pool {meant.name} knows its speed yet ({len(answers)} answered): an engine is measured at "
            "the end of its start; try again when the workers are ready"
        )
    profile = profile_document(
        found,
        model=cluster.spec.model.name,
        accelerator_name=meant.accelerator,
        tensor=meant.parallelism.tensor,
        pipeline=meant.parallelism.pipeline,
        data=meant.parallelism.data,
    )
    text = msgspec.json.format(msgspec.json.encode(profile), indent=2).decode()
    try:
        parse_profile(text)
    except ProfileError as error:
        raise ExportError(f"what the workers of pool {meant.name} measured makes no profile: {error}") from None
    return Exported(document=text, origin=f"{key[0]}/{key[1]}, pool {meant.name}: measured by {len(speeds)} workers")


def _meant(cluster: InferenceCluster, pool: str | None) -> Pool:
    pools = [each for each in cluster.spec.pools if pool in (None, each.name)]
    if len(pools) == 1:
        return pools[0]
    known = ", ".join(each.name for each in cluster.spec.pools)
    if not pools:
        raise ExportError(f"there is no pool {pool}; there are {known}")
    raise ExportError(f"there are several pools; say which one with --pool: {known}")


def _addresses(pods: list[dict[str, Any]], pool: Pool, revision: str) -> dict[str, AgentAddress]:
    """Return the agents of the ready workers of the pool's present revision, by name."""
    ready = [pod for pod in pods if is_true(pod, "Ready") and not pod["metadata"].get("deletionTimestamp")]
    if not ready:
        raise ExportError(f"no worker of pool {pool.name} is ready; see `kubectl get pods` or `fulcrum top`")
    found = {
        pod["metadata"]["name"]: agent
        for pod in ready
        if (pod["metadata"].get("annotations") or {}).get(ANNOTATION_SPEC_HASH) == revision
        and (agent := agent_of(pod)) is not None
    }
    if not found:
        raise ExportError(
            f"all ready workers of pool {pool.name} were made from an older spec, and may be faster or slower than "
            "those of this one; try again after the rollout"
        )
    return found
