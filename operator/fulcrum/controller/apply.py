"""Carry out a plan's actions: one that fails does not hold up the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fulcrum.api.engine_types import KvCacheDtype
from fulcrum.api.names import (
    ANNOTATION_POD_GROUP,
    ANNOTATION_REPLACES,
    ANNOTATION_RESTART,
    ANNOTATION_ROLE_EPOCH,
    ANNOTATION_ROLE_SINCE,
    LABEL_GROUP,
    Role,
    leader_name,
)
from fulcrum.api.types import Gang, InferenceClusterSpec, Pool
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.controller.children import Manifest, Owner, role_labels, worker_pod
from fulcrum.controller.children.worker_group import pod_group, worker_group
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import LEADER_WORKER_SET, POD, POD_GROUP, ApiFailure, Kube, StopTickError
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.observed import is_of_namesake
from fulcrum.controller.read_workers import ANNOTATION_DRAINING_FROM, ANNOTATION_DRAINING_SINCE
from fulcrum.rollout import (
    Action,
    CreateWorker,
    DeleteWorker,
    SetRole,
    StartDrain,
    TellRole,
    TellSleep,
    changes_cluster,
    worker_revision,
)

logger = logging.getLogger(__name__)

WRITES_AT_ONCE: Final = 20
"""Writes of one cluster that are under way: a new cluster of 500 workers must not take every connection and turn of the
API server. 500 Pods are then made in 5 s where one takes 0.2 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An action that changed the cluster, with the uid of the Pod that it was about."""

    action: Action
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the actions."""

    done: tuple[Done, ...]
    failures: tuple[str, ...]
    """What went wrong with the others, such as what the API server said."""
    taken_names: frozenset[str] = frozenset()
    """Names of Pods that could not be created because other objects have them."""


class Applier:
    """Carries out actions on one cluster's workers."""

    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        owner: Owner,
        spec: InferenceClusterSpec,
        *,
        images: Mapping[tuple[str, str], str],
        groups: Iterable[Manifest] = (),
        followers: Iterable[Manifest] = (),
        installation: Installation,
        kv_dtype: KvCacheDtype | None = None,
        model: ModelFacts | None = None,
        avoided_nodes: Iterable[str] = (),
        gang: Gang = Gang.OFF,
        token_fingerprint: str | None,
    ) -> None:
        """`images` is what the workers of each (pool, revision) run; `kv_dtype`, `model`, `avoided_nodes` and
        `token_fingerprint` as in `worker_pod`.

        `groups` are the LeaderWorkerSets of workers on several nodes, `followers` their Pods beside the leaders; `gang`
        is what places all Pods of a new one at once.
        """
        self._kube = kube
        self._metrics = metrics
        self._owner = owner
        self._spec = spec
        self._taken_names: set[str] = set()
        self._images = images
        self._followers = tuple(followers)
        self._groups = {leader_name(group["metadata"]["name"]): group["metadata"] for group in groups}
        self._installation = installation
        self._kv_dtype = kv_dtype
        self._model = model
        self._avoided_nodes = tuple(avoided_nodes)
        self._gang = gang
        self._token_fingerprint = token_fingerprint
        self._turns = asyncio.Semaphore(WRITES_AT_ONCE)

    async def carry_out(
        self, actions: Iterable[Action], *, now: datetime, changed: Callable[[Action], None]
    ) -> Outcome:
        """Carry out `actions`, flips first: requests wait for nothing else. `changed` is called after each write.

        `now` is what is written as the time at which a role was given or a drain began.
        """
        todo = [action for action in actions if changes_cluster(action)]
        urgent = [action for action in todo if isinstance(action, SetRole)]
        others = [action for action in todo if not isinstance(action, SetRole)]
        results = [
            *await asyncio.gather(*(self._one(action, now, changed) for action in urgent)),
            *await asyncio.gather(*(self._one(action, now, changed) for action in others)),
        ]
        return Outcome(
            done=tuple(result for result in results if isinstance(result, Done)),
            failures=tuple(result for result in results if isinstance(result, str)),
            taken_names=frozenset(self._taken_names),
        )

    async def _one(self, action: Action, now: datetime, changed: Callable[[Action], None]) -> Done | str | None:
        try:
            async with self._turns:
                uid = await self._write(action, now)
        except ApiFailure as error:
            logger.warning("action_failed cluster=%s action=%r error=%r", self._owner.name, action, error)
            return f"{action.name}: {error}"
        except StopTickError:
            raise
        except Exception as error:
            # A defect costs this action, and is told: the cluster's others go on.
            logger.exception("action_failed cluster=%s action=%r", self._owner.name, action)
            return f"{action.name}: {type(error).__name__}: {error}"
        if uid is None:
            return None
        self._metrics.action(type(action).__name__, action.reason.value)
        logger.info(
            "%s namespace=%s cluster=%s worker=%s reason=%s%s",
            _LOG_NAMES[type(action)],
            self._owner.namespace,
            self._owner.name,
            action.name,
            action.reason.value,
            _details(action),
        )
        changed(action)
        return Done(action=action, uid=uid)

    async def _write(self, action: Action, now: datetime) -> str | None:
        """Write one action; returns the Pod's uid, None when there was nothing to write any more."""
        namespace = self._owner.namespace
        match action:
            case CreateWorker():
                pool = next(pool for pool in self._spec.pools if pool.name == action.pool)
                # Workers of one revision run one image: an operator of another release adds none that differ.
                revision = worker_revision(cluster=self._owner.name, spec=self._spec, pool=pool)
                image = self._images.get((pool.name, revision), self._installation.worker_image_for(pool.accelerator))
                pod = worker_pod(
                    self._owner, self._spec, pool, ordinal=action.ordinal, role=action.role, image=image,
                    kv_dtype=self._kv_dtype, model=self._model, avoided_nodes=self._avoided_nodes,
                    token_fingerprint=self._token_fingerprint,
                )  # fmt: skip
                if action.replaces is not None:
                    pod["metadata"]["annotations"][ANNOTATION_REPLACES] = action.replaces
                return await self._create(action.name, pod, pool)
            case SetRole():
                patch = _role_patch(action.uid, action.role, action.epoch, since=None, was=None)
                patch["metadata"]["annotations"][ANNOTATION_ROLE_SINCE] = now.isoformat()
                return _uid(await self._kube.merge(POD, namespace, action.name, patch))
            case StartDrain():
                patch = _role_patch(
                    action.uid,
                    Role.DRAINING,
                    action.epoch,
                    since=now.isoformat(),
                    was=action.from_role if action.from_role is not Role.DRAINING else None,
                )
                if action.restart:
                    patch["metadata"]["annotations"][ANNOTATION_RESTART] = action.reason.value
                return _uid(await self._kube.merge(POD, namespace, action.name, patch))
            case DeleteWorker():
                await self._delete(action)
                return action.uid
            case TellRole() | TellSleep():
                return None

    async def _create(self, name: str, pod: Manifest, pool: Pool) -> str | None:
        if pool.nodes > 1:
            queue = self._spec.scheduling.queue
            if self._gang is Gang.VOLCANO:
                # First, because Pods of a group that is not there wait for it.
                await self._kube.create(POD_GROUP, pod_group(pod, pool, queue=queue))
            group = worker_group(pod, pool, gang=self._gang, queue=queue)
            created = await self._kube.create(LEADER_WORKER_SET, group)
            if created is None:  # not one of ours, which are all known
                self._taken_names.add(name)
            return _uid(created)
        created = await self._kube.create(POD, pod)
        if created is None:
            await self._note_taken(name)
        return _uid(created)

    async def _delete(self, action: DeleteWorker) -> None:
        """Delete a worker's Pod, or its LeaderWorkerSet; by force also the group's Pods, which no node may end."""
        namespace, group = self._owner.namespace, self._groups.get(action.name)
        if group is not None:
            await self._kube.delete(LEADER_WORKER_SET, namespace, group["name"], uid=group["uid"])
            if (together := (group.get("annotations") or {}).get(ANNOTATION_POD_GROUP)) is not None:
                await self._kube.delete(POD_GROUP, namespace, together, uid=None)
        if group is None or (action.force and action.uid != group["uid"]):
            grace_seconds = 0 if action.force else None
            await self._kube.delete(POD, namespace, action.name, uid=action.uid, grace_seconds=grace_seconds)
        for follower in self._followers if action.force else ():
            metadata = follower["metadata"]
            if leader_name(metadata["labels"][LABEL_GROUP]) == action.name:
                await self._kube.delete(POD, namespace, metadata["name"], uid=metadata["uid"], grace_seconds=0)

    async def _note_taken(self, name: str) -> None:
        """Remember the name of a Pod that is not ours: the worker gets another one."""
        there = await self._kube.get(POD, self._owner.namespace, name)
        if there is not None and not is_of_namesake(there["metadata"], self._owner.name):
            logger.warning("name_taken namespace=%s cluster=%s pod=%s", self._owner.namespace, self._owner.name, name)
            self._taken_names.add(name)


_LOG_NAMES = {
    CreateWorker: "worker_created",
    SetRole: "worker_flipped",
    StartDrain: "worker_draining",
    DeleteWorker: "worker_deleted",
}


def _uid(pod: Manifest | None) -> str | None:
    return None if pod is None else str(pod["metadata"]["uid"])


def _role_patch(uid: str, role: Role, epoch: int, *, since: str | None, was: Role | None) -> Manifest:
    # The uid makes the write fail (409) if another Pod has taken the name meanwhile.
    return {
        "metadata": {
            "uid": uid,
            "labels": role_labels(role),
            "annotations": {
                ANNOTATION_ROLE_EPOCH: str(epoch),
                ANNOTATION_DRAINING_SINCE: since,
                ANNOTATION_RESTART: None,
                ANNOTATION_DRAINING_FROM: was.value if was is not None else None,
            },
        }
    }


def _details(action: Action) -> str:
    match action:
        case SetRole():
            return f" from={action.from_role.value} to={action.role.value} epoch={action.epoch}{_load(action)}"
        case StartDrain():
            return f" from={action.from_role.value} epoch={action.epoch}{_load(action)}"
        case CreateWorker():
            return f" role={action.role.value}"
        case _:
            return ""


def _load(action: SetRole | StartDrain) -> str:
    return f" load='{action.load}'" if action.load else ""
