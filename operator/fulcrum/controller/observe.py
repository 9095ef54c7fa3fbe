"""What a decision rests on, from caches, from what they do not hold, and from loads, to one `Snapshot`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from fulcrum.api.names import (
    ANNOTATION_CONTINUE_ROLLOUT,
    COMPONENT_BATCH,
    COMPONENT_PRELOAD,
    LABEL_COMPONENT,
    batch_name,
    gateway_name,
)
from fulcrum.api.reasons import Reason
from fulcrum.api.types import Gang, InferenceCluster, PreloadStatus
from fulcrum.api.worker import LoadReport
from fulcrum.capacity.kv_dtype import KvDtype
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.start_timeout import start_timeout_seconds
from fulcrum.controller.agent_roles import AgentRoles
from fulcrum.controller.batch_pod import batch_problem
from fulcrum.controller.caches import Caches
from fulcrum.controller.child_sync import NameTakenError
from fulcrum.controller.children import Manifest, Owner, refused_templates
from fulcrum.controller.children.owner import GATEWAY
from fulcrum.controller.cluster_watches import ClusterKey, ClusterWatches
from fulcrum.controller.gang_schedulers import GangSchedulers, scheduling_note
from fulcrum.controller.gateway_state import gateway_state
from fulcrum.controller.groups import followers_of, groups_missing, with_leaders, worker_pods
from fulcrum.controller.installation import Installation
from fulcrum.controller.internal_secrets import InternalSecrets, NoTokenError
from fulcrum.controller.kube import (
    DEPLOYMENT,
    INFERENCE_CLUSTER,
    INFERENCE_SCALE,
    LEADER_WORKER_SET,
    SERVICE,
    ApiFailure,
    Kube,
)
from fulcrum.controller.model_configs import ModelConfigs, ServedModel, refused_models
from fulcrum.controller.nodes import Nodes
from fulcrum.controller.observed import (
    Observed,
    asked_replicas,
    batch_address,
    gateway_addresses,
    is_ours,
    is_paused,
)
from fulcrum.controller.preloads import Preloads, held_up
from fulcrum.controller.profiles import PoolProfiles, Profiles
from fulcrum.controller.read_workers import read_workers
from fulcrum.controller.rehearsals import Rehearsals
from fulcrum.controller.tick import Failure, Memory, Seen, Token
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.decide import ObservedWorker, Refusal, Snapshot
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.tuning import TUNING
from fulcrum.rollout import as_seen, chosen_kv_dtype, chosen_model, standing_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What caches do not hold."""

    token: Token
    lost: frozenset[str]
    """Uids of Pods whose node is gone."""
    profiles: PoolProfiles
    model: ServedModel
    gang: Gang
    gangs_missing: Mapping[str, Refusal]
    """Pools that no scheduler at hand can place, and why."""
    preload: PreloadStatus | None


def observe(caches: Caches, namespace: str, name: str) -> Observed | None:
    """Return everything that a decision needs; None when the InferenceCluster is gone.

    Errors: Unreachable when the API server has not told of changes for too long.
    """
    caches.check(namespace)
    cluster = caches.get(INFERENCE_CLUSTER, namespace, name)
    if cluster is None:
        return None
    pods, groups = caches.pods((namespace, name)), caches.of_cluster(LEADER_WORKER_SET, (namespace, name))
    return Observed(
        cluster=cluster,
        pods=tuple(worker_pods(pods, groups)),
        deployment=caches.get(DEPLOYMENT, namespace, gateway_name(name)),
        service=caches.get(SERVICE, namespace, gateway_name(name)),
        gateways=_of_component(pods, GATEWAY),
        batch=caches.get(DEPLOYMENT, namespace, batch_name(name)),
        batch_pods=_of_component(pods, COMPONENT_BATCH),
        preload_pods=_of_component(pods, COMPONENT_PRELOAD),
        scales=tuple(caches.of_cluster(INFERENCE_SCALE, (namespace, name))),
        groups=tuple(groups),
        followers=followers_of(pods),
    )


def _of_component(pods: list[Manifest], component: str) -> tuple[Manifest, ...]:
    return tuple(pod for pod in pods if (pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT) == component)


class Observer:
    """Finds out what a decision about a cluster rests on."""

    def __init__(
        self,
        kube: Kube,
        caches: Caches,
        roles: AgentRoles,
        watches: ClusterWatches,
        *,
        rehearsals: Rehearsals,
        installation: Installation,
        now: Callable[[], datetime],
    ) -> None:
        self._caches = caches
        self._roles = roles
        self._watches = watches
        self._rehearsals = rehearsals
        self._installation = installation
        self._now = now
        self._nodes = Nodes(kube)
        self._profiles = Profiles(kube)
        self._model_configs = ModelConfigs(kube)
        self._preloads = Preloads(kube, installation)
        self._gangs = GangSchedulers(kube, resync_seconds=TUNING.resync_seconds)
        self._internal_secrets = InternalSecrets(kube, resync_seconds=TUNING.resync_seconds)

    def forget(self, key: ClusterKey) -> None:
        """Forget a cluster that is gone."""
        self._internal_secrets.forget(*key)

    async def look(self, owner: Owner, observed: Observed, cluster: InferenceCluster, memory: Memory) -> Seen:
        """Ask for what caches do not hold, and make the snapshot. Agents are asked where a decision needs their load.

        The time of the tick is that before agents are asked: a drain is not taken for longer than it was then.
        """
        spec, key = cluster.spec, (owner.namespace, owner.name)
        answers = await self._ask(owner, observed, cluster)
        asked_for = asked_of_workers(answers.token, self._installation)
        known = frozenset(memory.acknowledged)
        workers = read_workers(observed, cluster, known, lost=answers.lost, token_fingerprint=asked_for)
        standing = standing_workers(owner.name, spec, workers)
        facts, source = answers.model.facts, answers.model.source
        model, note = chosen_model(facts, source, model_name=spec.model.name, standing=standing)
        watched = WatchedCluster(
            namespace=owner.namespace,
            name=owner.name,
            spec=spec,
            status=cluster.status,
            gateways=gateway_addresses(observed),
            batch=batch_address(observed),
            workers=workers,
            generation=cluster.metadata.generation,
            profiles=answers.profiles.known,
            model=facts,
        )
        measured, loads, settled = self._watches.measurements_of(watched)
        now = self._now()
        fresh = await self._roles.fresh_loads(workers, start_timeout_seconds(spec, model), memory, now)
        kv_dtype = chosen_kv_dtype(spec, model, standing)
        snapshot = make_snapshot(
            observed,
            cluster,
            workers,
            answers,
            now=now,
            loads={**loads, **fresh},
            acknowledged=frozenset(memory.acknowledged),
            taken=frozenset(memory.taken_names),
            refused=self._refused(owner, cluster, answers, model=model, kv_dtype=kv_dtype, standing=standing),
            model=model,
            model_note=note,
            kv_dtype=kv_dtype,
            measurements=self._rehearsals.known(key, spec, measured),
        )
        token, gang = answers.token, answers.gang
        return Seen(snapshot=snapshot, watched=watched, token=token, gang=gang, now=now, settled=settled)

    async def _ask(self, owner: Owner, observed: Observed, cluster: InferenceCluster) -> Answers:
        spec = cluster.spec
        lost = await self._nodes.lost((*observed.pods, *observed.followers), self._now())
        token = await self._token(owner, cluster)
        profiles, model, gang = await asyncio.gather(
            self._profiles.of(owner.namespace, spec),
            self._model_configs.of(owner.namespace, spec),
            self._gangs.chosen(spec),
        )
        return Answers(
            token=token,
            lost=with_leaders(lost, observed.pods, observed.followers),
            profiles=profiles,
            model=model,
            gang=gang,
            gangs_missing=await self._gangs.missing(spec),
            preload=await self._preloads.of(owner, cluster, model.facts, observed.preload_pods, self._now()),
        )

    async def _token(self, owner: Owner, cluster: InferenceCluster) -> Token:
        try:
            return Token(text=await self._internal_secrets.token(owner, may_make=not is_paused(cluster)))
        except NameTakenError as error:
            return Token(failure=Failure(message=str(error), reason=Reason.NAME_TAKEN))
        except (ApiFailure, NoTokenError) as error:
            return Token(failure=Failure(message=str(error)))

    def _refused(
        self,
        owner: Owner,
        cluster: InferenceCluster,
        answers: Answers,
        *,
        model: ModelFacts,
        kv_dtype: KvDtype,
        standing: Iterable[ObservedWorker],
    ) -> dict[str, Refusal]:
        """Return the pools whose workers may not be made, and why; of several reasons the one that lasts longest."""
        spec, installation = cluster.spec, self._installation
        problem = answers.model.problem
        models = refused_models(
            spec, installation, dtype=kv_dtype.dtype, model=model, problem=problem, standing=standing
        )
        missing = self._caches.is_missing(LEADER_WORKER_SET, owner.namespace)
        return {
            **held_up(answers.preload, cluster, standing),
            **models,
            **(groups_missing(spec) if missing else {}),
            **refused_templates(owner, spec, installation),
            **answers.gangs_missing,
        }


def asked_of_workers(token: Token, installation: Installation) -> str | None:
    """Return the fingerprint of what workers are to ask for: empty, nothing; None, it is not known."""
    return "" if installation.open_workers else token.fingerprint


def make_snapshot(
    observed: Observed,
    cluster: InferenceCluster,
    workers: Iterable[ObservedWorker],
    answers: Answers,
    *,
    now: datetime,
    loads: Mapping[str, LoadReport | None],
    acknowledged: frozenset[tuple[str, int, int]],
    taken: frozenset[str],
    refused: Mapping[str, Refusal],
    model: ModelFacts | None,
    model_note: str,
    kv_dtype: KvDtype | None,
    measurements: Measurements,
) -> Snapshot:
    """Return all that is known of a cluster, once.

    `loads` are reports by worker name; workers without one stay unknown. `acknowledged` are the (uid, restarts, epoch)
    of agents that know their role, `taken` names of Pods that are not of this cluster.
    """
    loaded = (
        replace(w, load=loads.get(w.name), role_acknowledged=(w.uid, w.restarts, w.role_epoch) in acknowledged)
        for w in workers
    )
    foreign = {pod["metadata"]["name"] for pod in observed.pods if not is_ours(pod["metadata"], cluster)}
    return Snapshot(
        name=cluster.metadata.name,
        generation=cluster.metadata.generation,
        spec=cluster.spec,
        workers=as_seen(loaded, cluster=cluster.metadata.name, spec=cluster.spec, refused=refused, now=now),
        gateway=gateway_state(observed.deployment, observed.service, observed.gateways),
        batch_problem=batch_problem(cluster, observed.batch, observed.batch_pods),
        status=cluster.status,
        paused=is_paused(cluster),
        continues_rollout=(
            cluster.metadata.annotations.get(ANNOTATION_CONTINUE_ROLLOUT) == str(cluster.metadata.generation)
        ),
        # A set that ends keeps its name until then; its worker goes by the name of its Pod.
        taken_names=taken | foreign | {group["metadata"]["name"] for group in observed.groups},
        measurements=measurements,
        asked=asked_replicas(observed, cluster.metadata.uid),
        kv_dtype=kv_dtype,
        model=model,
        model_note=model_note,
        model_problem=answers.model.problem,
        profile_problems=answers.profiles.problems,
        preload=answers.preload,
        scheduling_note=scheduling_note(cluster.spec, answers.gang),
        refused=refused,
    )
