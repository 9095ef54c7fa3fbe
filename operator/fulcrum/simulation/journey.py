"""Requests on their way: to the workers that are chosen for them, from one to the other, and to their end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from fulcrum.api.reasons import Reason
from fulcrum.simulation.cluster import ClusterModel, FirstToken
from fulcrum.simulation.gateways import Gateways
from fulcrum.simulation.leases import Leases
from fulcrum.simulation.outcome import Ledger, Outcome
from fulcrum.simulation.policy import Policy
from fulcrum.simulation.simulated_gateway import Chosen
from fulcrum.simulation.simulated_request import Leg, RequestWorker, SimulatedRequest
from fulcrum.simulation.timeline import Alarm, Timeline
from fulcrum.simulation.transfers import Transfers
from fulcrum.simulation.view import View
from fulcrum.simulation.worker import SimulatedWorker

_NAN: Final = float("nan")


class Journeys:
    """What the gateway does for each request, and what becomes of it when a worker is lost. Hosts the workers."""

    def __init__(
        self,
        *,
        cluster: ClusterModel,
        policy: Policy,
        gateway: Gateways | None,
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
        self.gateway = gateway
        self._queue_alarm = Alarm(self._settle)
        self.live = view.live
        """Requests that have arrived and not ended, by index."""

    def arrive(self, request: SimulatedRequest, now: float) -> None:
        """Let a request in, or turn it away."""
        self.live[request.index] = request
        if self._queue_alarm.set:
            self._settle(now)
        reason = self._policy.admit(request, self._view)
        if reason is not None:
            self._reject(request, reason, now)
            return
        self._attempt(request, now)

    def _attempt(self, request: SimulatedRequest, now: float) -> None:
        request.attempts += 1
        gateway = self.gateway
        if gateway is None:
            self._go(request, self._policy.route(request, self._view), now)
            return
        chosen = gateway.choose(request, now)
        if request.attempts == 1:
            self._ledger.expect(request.index, request.expected)
        if chosen is None:
            self._wait_on(now)
        else:
            self._go(request, chosen, now)

    def _settle(self, now: float) -> None:
        """Let in, or turn away, what waits at the gateways."""
        assert self.gateway is not None
        for request, chosen in self.gateway.settle(now):
            self._go(request, chosen, now)
        self._queue_alarm.set = False
        self._wait_on(now)

    def _wait_on(self, now: float) -> None:
        """Look at the queues again in a while."""
        assert self.gateway is not None
        pass_seconds = self.gateway.pass_seconds
        if pass_seconds is not None and not self._queue_alarm.set:
            self._queue_alarm.set = True
            self._timeline.plan(now + pass_seconds, self._queue_alarm)

    def _go(self, request: SimulatedRequest, chosen: Chosen | Reason, now: float) -> None:
        if isinstance(chosen, Reason):
            if request.tried:
                self._close(request, Outcome.FAILED, now)
            else:
                self._reject(request, chosen, now)
            return
        prefill, decode = chosen.prefill, chosen.decode
        for victim in chosen.victims:
            self._abort(victim, now)
        if not (prefill.fits(request) and decode.fits(request)):
            self._reject(request, Reason.NEVER_FITS, now)
            return
        request.decode = decode
        decode.decode_legs += 1
        if prefill is decode:
            request.prefill, request.leg = None, Leg.WHOLE
        else:
            request.prefill, request.leg = prefill, Leg.PREFILL
            prefill.prefill_legs += 1
        self._hop(request, now)

    def _abort(self, request: SimulatedRequest, now: float) -> None:
        """Turn away a request that waits for its prefill, or a batch request, for one of a higher class."""
        worker = request.prefill or request.decode
        assert worker is not None
        assert request.decode is not None
        request.event = -1
        worker.cancel(request, now)
        if request.held_by is not None:
            request.loading = False
            request.held_by.release(request, now)
        if request.prefill is not None:
            request.prefill.prefill_legs -= 1
        request.decode.decode_legs -= 1
        self._reject(request, Reason.PREEMPTED, now)

    def _hop(self, request: SimulatedRequest, now: float) -> None:
        """Send a leg to its worker."""
        if self._leg_seconds:
            request.due = self.hop_over
            self._timeline.plan(now + self._leg_seconds, request)
        else:
            self.hop_over(request, now)

    def hop_over(self, request: SimulatedRequest, now: float) -> None:
        """A leg has come to its worker."""
        worker = request.prefill if request.leg is Leg.PREFILL else request.decode
        assert worker is not None
        if worker.stopped:
            self._lost(request, worker, now)
        else:
            worker.submit(request, now)

    def prefilled(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """Hand a prefilled request over to its decode worker."""
        worker.prefill_legs -= 1
        request.prefill = None
        if self.gateway is not None:
            self.gateway.prefilled(request, now)
        decode = request.decode
        assert decode is not None
        if self._first_by_prefill:
            request.first_token_seconds = now
            request.left -= 1
            request.context += 1
            if not request.left:
                worker.release(request, now)
                self.finished(request, decode, now)
                return
        reason = self._policy.admit_decode(request, self._view)
        if reason is not None:
            worker.release(request, now)
            decode.decode_legs -= 1
            self._reject(request, reason, now)
            return
        request.leg = Leg.DECODE
        self._leases.begin(request, now)
        self._hop(request, now)

    def first_token(self, request: SimulatedRequest, at: float) -> None:
        """A whole request has been prefilled, or one that was pulled has its first token."""
        if self.gateway is None or request.index not in self.live:
            return
        if request.leg is Leg.WHOLE:
            self.gateway.prefilled(request, at)
        else:
            self.gateway.pulled(request, at)

    def pull(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """Start a KV transfer."""
        source = request.held_by
        assert source is not None
        request.loading = True
        request.due = self._pulled
        self._timeline.plan(self._transfers.end_seconds(request, source, worker, now), request)

    def restore(self, request: SimulatedRequest, worker: RequestWorker, ends: float) -> None:
        """Wait until a part of a prompt's KV is loaded from host memory or the pool."""
        request.due = partial(self._restored, worker)
        self._timeline.plan(ends, request)

    @staticmethod
    def _restored(worker: RequestWorker, request: SimulatedRequest, now: float) -> None:
        worker.restored(request, now)

    def _pulled(self, request: SimulatedRequest, now: float) -> None:
        request.loading = False
        source, worker = request.held_by, request.decode
        assert source is not None
        assert worker is not None
        source.release(request, now)
        if worker.stopped:
            self._lost(request, worker, now)
        else:
            worker.loaded(request, now)

    def finished(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """The last token of a request is out."""
        if request.index not in self.live:
            return  # it made way in its last step
        worker.decode_legs -= 1
        self._close(request, Outcome.SERVED, now)

    def _reject(self, request: SimulatedRequest, reason: Reason, now: float) -> None:
        rejections = self._ledger.rejections
        rejections[reason] = rejections.get(reason, 0) + 1
        self._close(request, Outcome.REJECTED, now)

    def _close(self, request: SimulatedRequest, outcome: Outcome, now: float) -> None:
        del self.live[request.index]
        if self.gateway is not None:
            self.gateway.ended(request, now, served=outcome is Outcome.SERVED)
        self._policy.on_end(request, self._view)
        first = request.first_token_seconds
        ttft = first - request.arrival_seconds if 0 <= first <= now else _NAN
        self._ledger.expect_at_end(request.index, request.expected)
        self._ledger.close(request.index, outcome, now, ttft, request.computed)

    def engine_stopped(self, ranks: Sequence[SimulatedWorker], now: float) -> None:
        """What was on the ranks of a worker is lost; KV that it held for others has to be computed again."""
        for worker in ranks:
            self._release_held(worker, now)
        lost = [(request, worker) for worker in ranks for request in worker.stop(now)]
        for request, worker in lost:
            self._lost(request, worker, now)

    @staticmethod
    def _release_held(worker: SimulatedWorker, now: float) -> None:
        for request in worker.held.requests:
            worker.release(request, now)
            decode = request.decode
            assert decode is not None
            if request.loading:
                request.loading = False
                request.event = -1
                decode.forget(request, now)
            elif not decode.stopped and request in decode.waiting:
                decode.kv_lost(request)

    def _lost(self, request: SimulatedRequest, worker: RequestWorker, now: float) -> None:
        """A leg failed: try elsewhere unless the answer has begun."""
        if request.held_by is not None:
            request.held_by.release(request, now)
        if request.leg is Leg.PREFILL:
            worker.prefill_legs -= 1
            assert request.decode is not None
            request.decode.decode_legs -= 1
        else:
            worker.decode_legs -= 1
        if 0 <= request.first_token_seconds <= now or request.attempts >= self._max_attempts:
            self._close(request, Outcome.FAILED, now)
            return
        if self.gateway is not None:
            self.gateway.ended(request, now, served=False)
        request.first_token_seconds = -1.0
        request.tried = (*request.tried, worker.pod)
        request.restart()
        self._attempt(request, now)
