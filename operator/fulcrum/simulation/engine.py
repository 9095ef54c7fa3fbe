"""The simulation: arrivals and events in order of time, requests on their way through workers that a policy chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop
from typing import Final

from fulcrum.load.demand import LatencyTargets
from fulcrum.simulation.cluster import ClusterModel, Kill, Pulling
from fulcrum.simulation.fleet import Fleet, Pod
from fulcrum.simulation.gateways import Gateways
from fulcrum.simulation.journey import Journeys
from fulcrum.simulation.kv_tiers import Blocks, WorkerTiers
from fulcrum.simulation.outcome import Ledger
from fulcrum.simulation.policy import Policy, known_speeds
from fulcrum.simulation.result import Result
from fulcrum.simulation.shared_machine import SharedMachine
from fulcrum.simulation.simulated_request import requests_of
from fulcrum.simulation.speed import StepTimes
from fulcrum.simulation.steps import WorkerSteps
from fulcrum.simulation.timeline import Alarm, Timeline
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker
from fulcrum.simulation.workload import Workload

_PROGRESS_STEPS: Final = 200


def simulate(
    workload: Workload,
    cluster: ClusterModel,
    policy: Policy,
    *,
    slo: LatencyTargets,
    kills: Sequence[Kill] = (),
    tail_seconds: float = 3600.0,
    on_progress: Callable[[int], None] | None = None,
) -> Result:
    """Run `workload` through `cluster` under `policy`. The same input gives the same result, bit by bit.

    `slo` is what the policy aims at. Requests that have not ended `tail_seconds` after the last arrival are pending.
    `on_progress` is told now and then how many requests have arrived.
    """
    simulation = Simulation(workload, cluster, policy, slo=slo, kills=kills, tail_seconds=tail_seconds)
    return simulation.run(on_progress)


class Simulation:
    """One run."""

    def __init__(
        self,
        workload: Workload,
        cluster: ClusterModel,
        policy: Policy,
        *,
        slo: LatencyTargets,
        kills: Sequence[Kill] = (),
        tail_seconds: float = 3600.0,
    ) -> None:
        self._workload, self._cluster, self._policy = workload, cluster, policy
        self._kills, self._tail_seconds = kills, tail_seconds
        self._timeline = Timeline()
        self._ledger = Ledger(len(workload))
        self._machine = SharedMachine(cluster.crowding, self._timeline) if cluster.crowding else None
        self._times = {pool.name: StepTimes(pool.speed) for pool in cluster.pools}
        self._fleet = Fleet(
            cluster=cluster,
            timeline=self._timeline,
            make_ranks=self._make_ranks,
            stopped=self._engine_stopped,
            changed=self._pod_changed,
        )
        self._view = View(workload=workload, cluster=cluster, slo=slo, fleet=self._fleet, ledger=self._ledger)
        self._journeys = Journeys(
            cluster=cluster,
            policy=policy,
            gateway=self._gateways(slo),
            view=self._view,
            ledger=self._ledger,
            timeline=self._timeline,
        )
        gateway = self._journeys.gateway
        self._ranks = gateway.ranks(workload.classes) if gateway is not None else None
        self._tick_alarm = Alarm(self._tick)
        self._poll_alarm = Alarm(self._poll)
        tiers = cluster.kv_tiers
        self._pool = Blocks(tiers.pool_tokens) if tiers is not None else None
        self._engines: list[SimulatedWorker] = []
        self._events = 0

    def run(self, on_progress: Callable[[int], None] | None = None) -> Result:
        """Run to the end, and tell `on_progress` how many requests have arrived."""
        self._fleet.begin(self._policy.initial(self._cluster))
        for kill in self._kills:
            self._timeline.plan(kill.at_seconds, Alarm(partial(self._fleet.kill, kill.worker)))
        self._tick(0.0)
        if self._journeys.gateway is not None and self._journeys.gateway.several:
            self._poll(0.0)
        queue, view, live, arrive = self._timeline.queue, self._view, self._journeys.live, self._journeys.arrive
        deadline = self._workload.duration_seconds + self._tail_seconds
        arrivals = requests_of(self._workload, due=self._journeys.hop_over)
        coming = next(arrivals, None)
        events = 0
        told_every = max(1, len(self._workload) // _PROGRESS_STEPS)
        while True:
            if coming is not None and (not queue or coming.arrival_seconds <= queue[0][0]):
                events += 1
                view.now = coming.arrival_seconds
                view.arrived += 1
                arrive(coming, view.now)
                coming = next(arrivals, None)
                if on_progress is not None and view.arrived % told_every == 0:
                    on_progress(view.arrived)
                continue
            if not queue or (coming is None and not live) or queue[0][0] > deadline:
                break
            now, number, target = heappop(queue)
            if target.event == number:
                events += 1
                view.now = now
                target.fire(now)
        self._events = events
        return self._result()

    def _gateways(self, slo: LatencyTargets) -> Gateways | None:
        """One gateway for each replica; None where the policy routes by itself."""
        gateways = [self._policy.make_gateway(self._cluster, slo) for _ in range(self._cluster.gateways)]
        found = [gateway for gateway in gateways if gateway is not None]
        for gateway in found:
            gateway.tiers = self._cluster.kv_tiers.reported if self._cluster.kv_tiers is not None else None
        return Gateways(found) if found else None

    def _poll(self, now: float) -> None:
        """Gateways read the load of workers."""
        assert self._journeys.gateway is not None
        self._journeys.gateway.report(self._view.pods, now)
        self._timeline.plan(now + self._cluster.poll_seconds, self._poll_alarm)

    def _make_ranks(self, pod: Pod) -> tuple[SimulatedWorker, ...]:
        steps, count = WorkerSteps(self._timeline, self._machine), pod.pool.ranks
        ranks = tuple(self._make_rank(pod, steps, rank if count > 1 else None) for rank in range(count))
        steps.ranks = ranks
        self._engines.extend(ranks)
        return ranks

    def _make_rank(self, pod: Pod, steps: WorkerSteps, dp_rank: int | None) -> SimulatedWorker:
        return SimulatedWorker(
            pod=pod.name,
            dp_rank=dp_rank,
            pool=pod.pool.name,
            role=pod.role,
            speed=pod.pool.speed,
            times=self._times[pod.pool.name],
            block_tokens=self._cluster.block_tokens,
            cached=self._workload.prefix_ids is not None,
            pauses=self._cluster.links.pulling is Pulling.BETWEEN,
            ranks=self._ranks,
            tiers=self._tiers_of(pod),
            steps=steps,
            host=self._journeys,
        )

    def _tiers_of(self, pod: Pod) -> WorkerTiers | None:
        tiers, speed = self._cluster.kv_tiers, known_speeds(self._cluster).get(pod.pool.name)
        if tiers is None or self._pool is None or speed is None:
            return None
        return WorkerTiers(
            tiers,
            self._pool,
            speed.coefficients,
            block_tokens=self._cluster.block_tokens,
            ttft_seconds=self._view.slo.ttft_seconds,
        )

    def _engine_stopped(self, ranks: Sequence[SimulatedWorker], now: float) -> None:
        self._journeys.engine_stopped(ranks, now)

    def _pod_changed(self, pod: Pod) -> None:
        """What watches of Pods report."""
        if self._journeys.gateway is not None:
            self._journeys.gateway.changed(pod)
        if self._policy.watches_pods:
            self._timeline.plan(self._view.now, self._tick_alarm)

    def _tick(self, now: float) -> None:
        turn = self._policy.on_tick(self._view)
        for action in turn.actions:
            self._fleet.apply(action, now)
        if turn.again_seconds is not None:
            self._timeline.plan(now + turn.again_seconds, self._tick_alarm)

    def _result(self) -> Result:
        ledger, load = self._ledger, self._workload
        ended = ledger.ended == len(load) > 0
        end = float(ledger.end_seconds.max()) if ended else self._view.now
        return Result(
            policy=self._policy.name,
            workload=load,
            ttft_seconds=ledger.ttft_seconds,
            tpot_seconds=ledger.tpot_seconds(load.arrival_seconds, load.output_tokens),
            end_seconds=ledger.end_seconds,
            outcome=ledger.outcome,
            computed_tokens=ledger.computed_tokens,
            rejections=dict(ledger.rejections),
            fleet=tuple(self._fleet.samples),
            flips=self._fleet.flips,
            pods_started=self._fleet.started,
            gpu_seconds=self._fleet.gpu_seconds_until(end),
            preemptions=sum(worker.work.preemptions for worker in self._engines),
            events=self._events,
            end_of_run_seconds=end,
        )
