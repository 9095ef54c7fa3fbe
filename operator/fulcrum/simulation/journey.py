"""Requests on their way: to the workers that are chosen for them, from one to the other, and to their end."""

from __future__ import annotations

from functools import partial
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.simulation.cluster import ClusterModel, FirstToken
from fulcrum.simulation.front_door import Chosen
from fulcrum.simulation.gateways import Gateways
from fulcrum.simulation.job import Job, Leg
from fulcrum.simulation.leases import Leases
from fulcrum.simulation.outcome import Ledger, Outcome
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.timeline import Timeline
from fulcrum.simulation.transfers import Transfers
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import Worker

_NAN: Final = float("nan")


class Journeys:
    """What the gateway does for each request, and what becomes of it when a worker is lost. Hosts the workers."""

    def __init__(
        self,
        *,
        cluster: ClusterModel,
        policy: Policy,
        door: Gateways | None,
        view: View,
        ledger: Ledger,
        timeline: Timeline,
    ) -> None:
        self._policy, self._view, self._ledger, self._timeline = policy, view, ledger, timeline
        self._transfers = Transfers(cluster.links)
        self._leases = Leases(timeline, cluster.lease_seconds)
        self._leg_seconds = cluster.leg_seconds
        self._first_by_prefill = cluster.first_token is FirstToken.PREFILL
        self._max_attempts = cluster.max_attempts
        self.door = door
        self.live: dict[int, Job] = {}
        """Requests that have arrived and not ended, by index."""

    def arrive(self, job: Job, now: float) -> None:
        """Let a request in, or turn it away."""
        self.live[job.index] = job
        reason = self._policy.admit(job, self._view)
        if reason is not None:
            self._reject(job, reason, now)
            return
        self._attempt(job, now)

    def _attempt(self, job: Job, now: float) -> None:
        job.attempts += 1
        door = self.door
        if door is None:
            self._go(job, self._policy.route(job, self._view), now)
            return
        chosen = door.choose(job, now)
        if job.attempts == 1:
            self._ledger.expect(job.index, job.expected)
        self._go(job, chosen, now)

    def _go(self, job: Job, chosen: Chosen | Reason, now: float) -> None:
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
        """TickResult away a request that waits for its prefill, for one of a higher class."""
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
            job.due = self.hop_over
            self._timeline.plan(now + self._leg_seconds, job)
        else:
            self.hop_over(job, now)

    def hop_over(self, job: Job, now: float) -> None:
        """A leg has come to its worker."""
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
        if self.door is not None:
            self.door.prefilled(job, now)
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
        if self.door is not None:
            self.door.prefilled(job, now)

    def pull(self, job: Job, worker: Worker, now: float) -> None:
        """Start a KV transfer."""
        source = job.held_by
        assert source is not None
        job.loading = True
        job.due = self._pulled
        self._timeline.plan(self._transfers.end_seconds(job, source, worker, now), job)

    def restore(self, job: Job, worker: Worker, ends: float) -> None:
        """Wait until a part of a prompt's KV is loaded from host memory or the pool."""
        job.due = partial(self._restored, worker)
        self._timeline.plan(ends, job)

    @staticmethod
    def _restored(worker: Worker, job: Job, now: float) -> None:
        worker.restored(job, now)

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
        del self.live[job.index]
        if self.door is not None:
            self.door.ended(job, now, served=outcome is Outcome.SERVED)
        self._policy.on_end(job, self._view)
        first = job.first_token_seconds
        ttft = first - job.arrival_seconds if 0 <= first <= now else _NAN
        self._ledger.close(job.index, outcome, now, ttft, job.computed)

    def engine_stopped(self, worker: Worker, now: float) -> None:
        """What was on a worker is lost; KV that it held for others has to be computed again."""
        for job in worker.held.jobs:
            worker.release(job, now)
            decode = job.decode
            assert decode is not None
            if job.loading:
                job.loading = False
                job.event = -1
                decode.forget(job, now)
            elif not decode.stopped and job in decode.waiting:
                decode.kv_lost(job)
        for job in worker.stop(now):
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
        if 0 <= job.first_token_seconds <= now or job.attempts >= self._max_attempts:
            self._close(job, Outcome.FAILED, now)
            return
        if self.door is not None:
            self.door.ended(job, now, served=False)
        job.first_token_seconds = -1.0
        job.tried = (*job.tried, worker.name)
        job.restart()
        self._attempt(job, now)
