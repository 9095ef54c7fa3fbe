"""The Job of `model.cache.preload`: made once, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from fulcrum.api.messages import shortened
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceCluster, PreloadState, PreloadStatus
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.children.preload_job import job_name, preload_job
from fulcrum.controller.children.template_check import refused_templates
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import JOB, Kube
from fulcrum.controller.observed import is_of_namesake, is_owned, is_paused
from fulcrum.decide import ObservedWorker, Refusal
from fulcrum.kube import ApiError

POLL_SECONDS: Final = 10.0
"""How often a Job that runs is looked at."""
_STARTS_WITHIN_SECONDS: Final = 300.0
"""After that workers no longer wait for a Job whose Pod has not started."""
_LASTING: Final = frozenset((400, 401, 403, 404, 405, 422))
"""Answers of the API server that the next try will get, too."""
_AGAIN: Final = "It failed before and is run again; workers do not wait for it"
_TOLD: Final = (None, "Error", "Completed")
"""Reasons of an end that the program itself explains."""
_LONGEST_CAUSE: Final = 600
"""Characters of what a program said, so that what to do stands behind it."""


class Preloads:
    """Makes the Jobs and reads them. Nothing is remembered: the status has what came of a Job that is gone."""

    def __init__(self, kube: Kube, installation: Installation) -> None:
        self._kube = kube
        self._installation = installation

    async def of(
        self, owner: Owner, cluster: InferenceCluster, model: ModelFacts, pods: Iterable[Manifest], now: datetime
    ) -> PreloadStatus | None:
        """Return the state of the weights; None where none are to be loaded ahead. `pods` are those of Jobs.

        A Job that is complete is not looked at again, and none is made in its place. One that failed and is gone is
        made anew; workers do not wait for that. No Job is made from a pool whose template is refused.
        """
        spec = cluster.spec
        if spec.model.cache is None or not spec.model.cache.preload:
            return None
        name, known = job_name(owner, spec), cluster.status.preload
        if known is not None and known.job == name and known.state == PreloadState.COMPLETE:
            return known
        refused = refused_templates(owner, spec, self._installation)
        pool = next((pool for pool in spec.pools if pool.workers.max > 0 and pool.name not in refused), None)
        if pool is None:
            return known
        if known is not None and known.job != name:
            known = None  # it was about another model
        image = self._installation.worker_image_for(pool.accelerator)
        job = preload_job(owner, spec, pool, image=image, model=model)
        try:
            live = await self._kube.get(JOB, owner.namespace, name)
            if live is None and not is_paused(cluster):
                live = await self._kube.create(JOB, job)
        except ApiError as error:
            if error.code not in _LASTING:
                return known or _running(name)
            why = str(error)[:_LONGEST_CAUSE]
            return _failed(name, f"Job {name} cannot be made or read: {why}. See docs/operations/preload.md")
        return known if live is None else _state(live, owner, known, pods, now)


def held_up(
    status: PreloadStatus | None, cluster: InferenceCluster, standing: Iterable[ObservedWorker]
) -> dict[str, Refusal]:
    """Return, by pool, why its workers wait: the Job still runs, and no worker has loaded the weights before.

    Nobody waits for a Job that has a message: it is a second try, or its Pod does not start.
    """
    if status is None or status.state != PreloadState.RUNNING or status.message or any(True for _ in standing):
        return {}
    waits = Refusal(message=f"Job {status.job} downloads the weights.", reason=Reason.PRELOADING)
    return {pool.name: waits for pool in cluster.spec.pools if pool.workers.max > 0}


def _state(
    job: Manifest, owner: Owner, known: PreloadStatus | None, pods: Iterable[Manifest], now: datetime
) -> PreloadStatus:
    """Return what a Job that is there says; `known`: what it was before."""
    metadata, status = job["metadata"], job.get("status") or {}
    name = metadata["name"]
    owned = is_owned(metadata, owner.uid)
    if not owned and not is_of_namesake(metadata, owner.name):
        return _failed(name, f"Job {name} exists and is not of this InferenceCluster: delete it")
    if not owned or metadata.get("deletionTimestamp"):
        return _running(name)  # made anew once it is gone
    true = {each["type"]: each for each in status.get("conditions") or () if each.get("status") == "True"}
    if "Complete" in true or "SuccessCriteriaMet" in true:
        return PreloadStatus(job=name, state=PreloadState.COMPLETE)
    own = [pod for pod in pods if is_owned(pod["metadata"], metadata["uid"])]
    if (failed := true.get("Failed") or true.get("FailureTarget")) is not None:
        said = _last_line(own)
        why = (said or str(failed.get("message") or failed.get("reason") or "no reason given"))[:_LONGEST_CAUSE]
        again = f"See kubectl logs job/{name}; when the cause is gone, kubectl delete job {name} runs it again"
        return _failed(name, f"{why.rstrip('.')}. {again}")
    return _running(name, _unawaited(metadata, known, own, now))


def _unawaited(job: Manifest, known: PreloadStatus | None, pods: Iterable[Manifest], now: datetime) -> str | None:
    """Return why workers do not wait for a Job that runs; None: they do."""
    if known is not None and (known.state == PreloadState.FAILED or known.message == _AGAIN):
        return _AGAIN
    started = any((pod.get("status") or {}).get("phase") not in (None, "Pending") for pod in pods)
    age_seconds = (now - datetime.fromisoformat(job["creationTimestamp"])).total_seconds()
    if started or age_seconds < _STARTS_WITHIN_SECONDS:
        return None
    return f"Its Pod has not started, so workers do not wait for it. See kubectl describe job {job['name']}"


def _last_line(pods: Iterable[Manifest]) -> str | None:
    """Return what the program said last in a Pod that failed, or why it was killed."""
    ended: list[Any] = [
        (container.get("state") or {}).get("terminated") or {}
        for pod in pods
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    killed = [
        f"{each['reason']} (exit code {each.get('exitCode')})" for each in ended if each.get("reason") not in _TOLD
    ]
    if killed:
        return killed[-1]
    messages = [each.get("message") for each in ended]
    lines = [line for message in messages if message for line in str(message).strip().splitlines()[-1:]]
    return shortened(lines[-1]) if lines else None


def _running(job: str, message: str | None = None) -> PreloadStatus:
    return PreloadStatus(job=job, state=PreloadState.RUNNING, message=message)


def _failed(job: str, why: str) -> PreloadStatus:
    return PreloadStatus(job=job, state=PreloadState.FAILED, message=shortened(why))
