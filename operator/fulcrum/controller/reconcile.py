"""One tick of the loop for one cluster: observe, plan, apply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from fulcrum.api.durations import seconds
from fulcrum.api.errors import InvalidValueError
from fulcrum.api.names import SHORT_NAME, Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceCluster, PreloadState
from fulcrum.controller.agent_adapters import AgentAdapters, adapter_events
from fulcrum.controller.agent_roles import AgentRoles
from fulcrum.controller.apply import Applier
from fulcrum.controller.caches import Caches
from fulcrum.controller.calm_pace import CalmPace, loads_every_seconds
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.cluster_watches import ClusterKey, ClusterWatches
from fulcrum.controller.config_maps import READ_SECONDS
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import ApiFailure, Kube, NamespaceEndsError, StopTickError
from fulcrum.controller.kv_claims import KvClaims
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.observe import Observer, asked_of_workers, observe
from fulcrum.controller.observed import Observed, gateways_send_token, is_paused, running_images
from fulcrum.controller.preloads import POLL_SECONDS
from fulcrum.controller.published import PUBLISH_LOOKS, PUBLISH_SECONDS
from fulcrum.controller.rehearsals import Rehearsals, asked_of
from fulcrum.controller.reporting import Reporter, news_of_failures
from fulcrum.controller.sources import TICK_SECONDS
from fulcrum.controller.tick import Failure, Memory, Seen, Tick, final_status, summary_of
from fulcrum.controller.tick_children import TickChildren
from fulcrum.decide.tuning import TUNING
from fulcrum.kube import UNREADABLE
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import Action, CreateWorker, SetRole, StartDrain, TellRole, TellSleep
from fulcrum.telemetry import Agents

logger = logging.getLogger(__name__)

NAMESPACE_SECONDS: Final = 60.0
"""Pause of a cluster whose namespace is being deleted: most are gone by then."""


class ReconcileError(Exception):
    """The API server refused some of what was to be done; it is tried again after a pause."""


class Reconciler:
    """Brings clusters to what their specs say, one tick at a time."""

    def __init__(
        self,
        kube: Kube,
        caches: Caches,
        agents: Agents,
        watches: ClusterWatches,
        metrics: Metrics,
        *,
        rehearsals: Rehearsals,
        identity: str,
        installation: Installation,
        now: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._caches = caches
        self._watches = watches
        self._rehearsals = rehearsals
        self._metrics = metrics
        self._reporter = Reporter(kube, identity=identity)
        self._now = now
        self._installation = installation
        self._children = TickChildren(kube, caches, installation)
        self._kv_claims = KvClaims(kube, resync_seconds=TUNING.resync_seconds)
        self._memories: dict[ClusterKey, Memory] = {}
        self._roles = AgentRoles(agents)
        self._observer = Observer(
            kube, caches, self._roles, watches, rehearsals=rehearsals, installation=installation, now=now
        )
        self._adapters = AgentAdapters(agents)
        self._calm_pace = CalmPace()

    def serves(self, key: ClusterKey) -> bool:
        """Whether workers of a cluster were ready when it was last looked at."""
        memory = self._memories.get(key)
        return memory is not None and memory.serves

    async def reconcile(self, key: ClusterKey) -> float | None:
        """Run one tick; returns seconds until the next, None when the cluster is gone or going."""
        began = time.monotonic()
        result = "failed"
        try:
            after_seconds = await self._reconcile(key)
            result = "ok" if after_seconds is not None else "gone"
        except Exception:
            self._watches.look_every(key, TICK_SECONDS)
            raise
        finally:
            self._metrics.reconcile(result, time.monotonic() - began)
            self._metrics.clusters(len(self._memories))
            self._metrics.calm_look(self._calm_pace.seconds())
        return after_seconds

    async def _reconcile(self, key: ClusterKey) -> float | None:
        observed = observe(self._caches, *key)
        if observed is None or "deletionTimestamp" in observed.cluster["metadata"]:
            # What belongs to the cluster goes with it: that is the garbage collector's part.
            self._forget(key)
            return None
        memory = self._memories.setdefault(key, Memory())
        uid = observed.cluster["metadata"]["uid"]
        if memory.uid not in ("", uid):  # deleted and created again at once
            self._forget(key)
            memory = self._memories.setdefault(key, Memory())
        left_seconds = memory.namespace_ended_at + NAMESPACE_SECONDS - time.monotonic()
        if memory.uid == uid and left_seconds > 0:
            return left_seconds
        memory.uid = uid
        try:
            return await self._tick(key, observed, memory)
        except NamespaceEndsError:
            logger.info("namespace_ends namespace=%s cluster=%s", *key)
            memory.namespace_ended_at = time.monotonic()
            return NAMESPACE_SECONDS
        except (ApiFailure, ReconcileError, StopTickError):
            raise
        except Exception as error:
            # A defect, or an object that nobody thought of: it stops this cluster alone, and must not go unseen.
            message = f"Nothing can be decided ({type(error).__name__}: {error}): report it with the operator's log."
            await self._say_stopped(key, observed, Reason.PLAN_FAILED, message)
            raise

    async def _tick(self, key: ClusterKey, observed: Observed, memory: Memory) -> float:
        try:
            cluster = _read(observed.cluster)
        except InvalidValueError as error:
            message = f"The spec cannot be used: {error}"
            await self._say_stopped(key, observed, Reason.INVALID_SPEC, message)
            return TUNING.resync_seconds
        if (refusal := await self._kv_claims.refusal(key[0], cluster.spec)) is not None:
            await self._say_stopped(key, observed, Reason.INVALID_SPEC, f"The spec cannot be used: {refusal}.")
            return TUNING.resync_seconds
        owner = Owner(name=key[1], namespace=key[0], uid=memory.uid)
        seen = await self._observer.look(owner, observed, cluster, memory)
        decided = self._plan(seen)
        if decided.wanted is not None and not seen.snapshot.paused:
            asked = asked_of(seen.watched, seen.snapshot, decided.wanted, uid=owner.uid, token=seen.token.text)
            self._rehearsals.ask(key, asked)
        tick = Tick(owner=owner, observed=observed, cluster=cluster, seen=seen, plan=decided, memory=memory)
        after_seconds = await self._apply(tick)
        preload = seen.snapshot.preload
        if preload is not None and preload.state == PreloadState.RUNNING:
            after_seconds = min(after_seconds, POLL_SECONDS)
        # A cluster at rest is looked at rarely, and this one may wait for its config.json.
        return after_seconds if seen.snapshot.model_problem is None else min(after_seconds, READ_SECONDS)

    async def _say_stopped(self, key: ClusterKey, observed: Observed, reason: Reason, message: str) -> None:
        status = await self._reporter.say_stopped(key[0], observed.cluster, reason, message, self._now())
        self._metrics.cluster_states.say_stopped(key, status)

    def _plan(self, seen: Seen) -> BalancePlan:
        began = time.perf_counter()
        decided = plan(seen.snapshot, seen.now)
        self._metrics.plan(time.perf_counter() - began)
        if (failure := decided.trace.failure) is not None:
            logger.error("plan_failed cluster=%s what_stands_is_held", seen.snapshot.name, exc_info=failure)
        return decided

    def _forget(self, key: ClusterKey) -> None:
        memory = self._memories.pop(key, None)
        if memory is not None:
            self._reporter.forget(memory.uid)
            self._observer.forget(key)
        self._watches.forget(key)
        self._rehearsals.forget(key)
        self._metrics.cluster_states.forget(key)

    async def _apply(self, tick: Tick) -> float:
        workers = {worker.uid: worker for worker in tick.snapshot.workers}

        def tell(action: Action) -> None:
            """Tell the agent at once, in the background; if it does not hear, a later tick repeats it."""
            if isinstance(action, SetRole | StartDrain | TellRole):
                worker = workers[action.uid]
                role = Role.DRAINING if isinstance(action, StartDrain) else action.role
                self._roles.tell_later(tick, worker, role, action.epoch)

        for action in tick.plan.actions:
            if isinstance(action, TellRole):
                tell(action)
            elif isinstance(action, TellSleep):
                self._roles.tell_sleep_later(tick, workers[action.uid], action)
        has_token = tick.seen.token.text is not None
        # A worker would wait for the Secret, or be open to every caller.
        actions = [action for action in tick.plan.actions if has_token or not isinstance(action, CreateWorker)]
        again_seconds = None
        if not is_paused(tick.cluster):
            again_seconds = self._adapters.tell(tick, self._watches.shown((tick.owner.namespace, tick.owner.name))[1])
        # Agents may have been asked for seconds since the time of the tick; gateways see a new role only from now on.
        outcome = await self._applier(tick).carry_out(actions, now=self._now(), changed=tell)
        tick.memory.taken_names |= outcome.taken_names
        tick.memory.serves = any(worker.serving for worker in tick.snapshot.workers)
        failures = [Failure(message=message) for message in outcome.failures]
        if tick.seen.token.failure is not None:
            failures.append(tick.seen.token.failure)
        failures += await self._children.sync(tick)
        if outcome.done:
            self._metrics.decision(tick.cluster.spec.balance.mode.value, outcome.done[0].action.reason.value)
        stated = [*tick.plan.events, *news_of_failures(failures, tick.memory)]
        stated += adapter_events(tick.snapshot.measurements.adapters, tick.cluster.status.adapters)
        await self._reporter.post_events(tick.owner, outcome.done, stated, tick.seen.now)
        status = final_status(tick, outcome, failures)
        rest_seconds = PUBLISH_SECONDS
        if tick.plan.calm:
            rest_seconds = max(rest_seconds, PUBLISH_LOOKS * self._calm_pace.seconds())
        await self._reporter.write_status(tick.owner, tick.cluster.status, status, rest_seconds=rest_seconds)
        key = (tick.owner.namespace, tick.owner.name)
        self._metrics.cluster_states.say(key, tick.cluster.spec, status, tick.plan.scales)
        if failures:
            raise ReconcileError(summary_of(failures))
        if outcome.taken_names:
            return 0.0
        after_seconds = self._pace(tick)
        return after_seconds if again_seconds is None else min(after_seconds, again_seconds)

    def _applier(self, tick: Tick) -> Applier:
        asked_for = asked_of_workers(tick.seen.token, self._installation) or None
        return Applier(
            self._kube,
            self._metrics,
            tick.owner,
            tick.cluster.spec,
            images=running_images(tick.observed),
            groups=tick.observed.groups,
            followers=tick.observed.followers,
            installation=self._installation,
            kv_dtype=tick.snapshot.kv_dtype.dtype if tick.snapshot.kv_dtype is not None else None,
            model=tick.snapshot.model,
            avoided_nodes=sorted({gpu.node for gpu in tick.plan.status.failed_gpus or ()}),
            gang=tick.seen.gang,
            token_fingerprint=asked_for if gateways_send_token(tick.observed) else None,
        )

    def _pace(self, tick: Tick) -> float:
        """Set how often the cluster's load is looked at; return seconds until the next tick."""
        after_seconds = tick.plan.requeue_after_seconds
        interval_seconds = seconds(tick.cluster.spec.balance.forecast.interval)
        rare = tick.plan.calm or tick.plan.held
        every_seconds = self._calm_pace.every_seconds(calm=rare, most_seconds=interval_seconds)
        # While something is not known, a report may be what it takes.
        learns = tick.plan.calm and not tick.plan.held
        key = (tick.owner.namespace, tick.owner.name)
        self._watches.look_every(
            key, every_seconds, loads_every_seconds=loads_every_seconds(every_seconds) if learns else None
        )
        if tick.plan.calm and every_seconds > TICK_SECONDS:
            # The next look at its load is followed by a tick; this is for one that does not come.
            after_seconds = max(after_seconds, 2 * every_seconds)
        return after_seconds


def _read(document: Manifest) -> InferenceCluster:
    """Errors: InvalidValueError."""
    if (why := document.get(UNREADABLE)) is not None:
        raise InvalidValueError(
            field="spec", value="...", problem=f"was not read: {why}", fix=f"see `kubectl explain {SHORT_NAME}.spec`"
        )
    return load_inference_cluster(document)
