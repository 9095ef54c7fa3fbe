"""The simulation: arrivals and events in order of time, requests on their way through workers that a policy chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.balance.demand import Slo
from fulcrum.simulation.cluster import ClusterModel, FirstToken, Kill
from fulcrum.simulation.fleet import Fleet, Pod
from fulcrum.simulation.job import Job, Leg, jobs_of
from fulcrum.simulation.leases import Leases
from fulcrum.simulation.outcome import Ledger, Outcome
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.result import Result
from fulcrum.simulation.speed import StepTimes
from fulcrum.simulation.timeline import Timeline
from fulcrum.simulation.transfers import Transfers
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import Worker
from fulcrum.simulation.workload import Workload

_NAN: Final = float("nan")
_PROGRESS_STEPS: Final = 200


def simulate(
    workload: Workload,
    cluster: ClusterModel,
    policy: Policy,
    *,
    slo: Slo,
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


class _Alarm:
    """Calls a method of the simulation."""

    __slots__ = ("event", "fire")

    def __init__(self, fire: Callable[[float], None]) -> None:
        self.event = -1
        self.fire = fire


class Simulation:
    """One run."""

    def __init__(
        self,
        workload: Workload,
        cluster: ClusterModel,
        policy: Policy,
        *,
        slo: Slo,
        kills: Sequence[Kill] = (),
        tail_seconds: float = 3600.0,
    ) -> None:
        self._workload, self._cluster, self._policy = workload, cluster, policy
        self._kills, self._tail_seconds = kills, tail_seconds
        self._timeline = Timeline()
        self._ledger = Ledger(len(workload))
        self._times = {pool.name: StepTimes(pool.speed) for pool in cluster.pools}
        self._transfers = Transfers(cluster.links)
        self._door = policy.front_door(cluster, slo)
        self._fleet = Fleet(
            cluster=cluster,
            timeline=self._timeline,
            make_worker=self._make_worker,
            stopped=self._engine_stopped,
            changed=self._pod_changed,
        )
        self._view = View(workload=workload, cluster=cluster, slo=slo, fleet=self._fleet, ledger=self._ledger)
        self._leases = Leases(self._timeline, cluster.lease_seconds)
        self._tick_alarm = _Alarm(self._tick)
        self._live: dict[int, Job] = {}
        self._engines: list[Worker] = []
        self._events = 0
        self._leg_seconds = cluster.leg_seconds
        self._first_by_prefill = cluster.first_token is FirstToken.PREFILL

    def run(self, on_progress: Callable[[int], None] | None = None) -> Result:
        """Run to the end, and tell `on_progress` how many requests have arrived."""
        self._fleet.begin(self._policy.initial(self._cluster))
        for kill in self._kills:
            self._timeline.plan(kill.at_seconds, _Alarm(partial(self._fleet.kill, kill.worker)))
        self._tick(0.0)
        queue, view, live = self._timeline.queue, self._view, self._live
        deadline = self._workload.duration_seconds + self._tail_seconds
        arrivals = jobs_of(self._workload, due=self._hop_over)
        coming = next(arrivals, None)
        events = 0
        told_every = max(1, len(self._workload) // _PROGRESS_STEPS)
        while True:
            if coming is not None and (not queue or coming.arrival_seconds <= queue[0][0]):
                events += 1
                view.now = coming.arrival_seconds
                view.arrived += 1
                self._arrive(coming, view.now)
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

    # Requests

    def _arrive(self, job: Job, now: float) -> None:
        self._live[job.index] = job
        reason = self._policy.admit(job, self._view)
        if reason is not None:
            self._reject(job, reason, now)
            return
        self._attempt(job, now)

    def _attempt(self, job: Job, now: float) -> None:
        job.attempts += 1
        door = self._door
        chosen = door.choose(job, now) if door is not None else self._policy.route(job, self._view)
        if isinstance(chosen, Reason):
            if job.tried:
                self._close(job, Outcome.FAILED, now)
            else:
                self._reject(job, chosen, now)
            return
        prefill, decode = chosen.prefill, chosen.decode
        for victim in chosen.victims:
            self._abort(victim, now)
        if not (prefill.fits(job) and decode.fits(job)):
            self._reject(job, Reason.NEVER_FITS, now)
            return
        job.decode = decode
        decode.decode_legs += 1
        if prefill is decode:
            job.prefill, job.leg = None, Leg.WHOLE
        else:
            job.prefill, job.leg = prefill, Leg.PREFILL
            prefill.prefill_legs += 1
        self._hop(job, now)

    def _abort(self, job: Job, now: float) -> None:
        """Turn away a request that waits for its prefill, for one of a higher class."""
        worker = job.prefill or job.decode
        assert worker is not None
        assert job.decode is not None
        job.event = -1
        worker.cancel(job)
        if job.prefill is not None:
            job.prefill.prefill_legs -= 1
        job.decode.decode_legs -= 1
        self._reject(job, Reason.PREEMPTED, now)

    def _hop(self, job: Job, now: float) -> None:
        """Send a leg to its worker."""
        if self._leg_seconds:
            job.due = self._hop_over
            self._timeline.plan(now + self._leg_seconds, job)
        else:
            self._hop_over(job, now)

    def _hop_over(self, job: Job, now: float) -> None:
        worker = job.prefill if job.leg is Leg.PREFILL else job.decode
        assert worker is not None
        if worker.stopped:
            self._lost(job, worker, now)
        else:
            worker.submit(job, now)

    def prefilled(self, job: Job, worker: Worker, now: float) -> None:
        """Hand a prefilled job over to its decode worker."""
        worker.prefill_legs -= 1
        job.prefill = None
        if self._door is not None:
            self._door.prefilled(job, now)
        decode = job.decode
        assert decode is not None
        if self._first_by_prefill:
            job.first_token_seconds = now
            job.left -= 1
            job.context += 1
            if not job.left:
                worker.release(job, now)
                self.finished(job, decode, now)
                return
        reason = self._policy.admit_decode(job, self._view)
        if reason is not None:
            worker.release(job, now)
            decode.decode_legs -= 1
            self._reject(job, reason, now)
            return
        job.leg = Leg.DECODE
        self._leases.begin(job, now)
        self._hop(job, now)

    def first_token(self, job: Job, now: float) -> None:
        """A whole request has been prefilled."""
        if self._door is not None:
            self._door.prefilled(job, now)

    def pull(self, job: Job, worker: Worker, now: float) -> None:
        """Start a KV transfer."""
        source = job.held_by
        assert source is not None
        job.loading = True
        job.due = self._pulled
        self._timeline.plan(self._transfers.end_seconds(job, source, worker, now), job)

    def _pulled(self, job: Job, now: float) -> None:
        job.loading = False
        source, worker = job.held_by, job.decode
        assert source is not None
        assert worker is not None
        source.release(job, now)
        if worker.stopped:
            self._lost(job, worker, now)
        else:
            worker.loaded(job, now)

    def finished(self, job: Job, worker: Worker, now: float) -> None:
        """The last token of a job is out."""
        worker.decode_legs -= 1
        self._close(job, Outcome.SERVED, now)

    def _reject(self, job: Job, reason: Reason, now: float) -> None:
        rejections = self._ledger.rejections
        rejections[reason] = rejections.get(reason, 0) + 1
        self._close(job, Outcome.REJECTED, now)

    def _close(self, job: Job, outcome: Outcome, now: float) -> None:
        del self._live[job.index]
        if self._door is not None:
            self._door.ended(job, now, served=outcome is Outcome.SERVED)
        self._policy.on_end(job, self._view)
        first = job.first_token_seconds
        ttft = first - job.arrival_seconds if 0 <= first <= now else _NAN
        self._ledger.close(job.index, outcome, now, ttft, job.computed)

    # Workers

    def _make_worker(self, pod: Pod) -> Worker:
        worker = Worker(
            name=pod.name,
            pool=pod.pool.name,
            role=pod.role,
            speed=pod.pool.speed,
            times=self._times[pod.pool.name],
            block_tokens=self._cluster.block_tokens,
            cached=self._workload.prefix_ids is not None,
            timeline=self._timeline,
            host=self,
        )
        self._engines.append(worker)
        return worker

    def _pod_changed(self, pod: Pod) -> None:
        """What watches of Pods report."""
        if self._door is not None:
            self._door.changed(pod)
        if self._policy.watches_pods:
            self._timeline.plan(self._view.now, self._tick_alarm)

    def _engine_stopped(self, worker: Worker, now: float) -> None:
        """What was on a worker is lost; KV that it held for others has to be computed again."""
        for job in worker.held_jobs:
            worker.release(job, now)
            decode = job.decode
            assert decode is not None
            if job.loading:
                job.loading = False
                job.event = -1
                decode.forget(job, now)
            elif not decode.stopped and job in decode.waiting:
                decode.kv_lost(job)
        for job in worker.stop():
            self._lost(job, worker, now)

    def _lost(self, job: Job, worker: Worker, now: float) -> None:
        """A leg failed: try elsewhere unless the answer has begun."""
        if job.held_by is not None:
            job.held_by.release(job, now)
        if job.leg is Leg.PREFILL:
            worker.prefill_legs -= 1
            assert job.decode is not None
            job.decode.decode_legs -= 1
        else:
            worker.decode_legs -= 1
        if 0 <= job.first_token_seconds <= now or job.attempts >= self._cluster.max_attempts:
            self._close(job, Outcome.FAILED, now)
            return
        if self._door is not None:
            self._door.ended(job, now, served=False)
        job.first_token_seconds = -1.0
        job.tried = (*job.tried, worker.name)
        job.restart()
        self._attempt(job, now)

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
