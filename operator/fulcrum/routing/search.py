"""One request looking at the workers at one instant, and what is predicted for it on some of them. Pure."""

from __future__ import annotations

from fulcrum.kv import Tiers
from fulcrum.routing.affinity import POOL
from fulcrum.routing.latency import chunk_seconds, hand_over
from fulcrum.routing.path import HandOver, Incoming, Prefill, Route
from fulcrum.routing.restoring import Restoring, prefill_left_seconds, restoring
from fulcrum.routing.view import ClusterView
from fulcrum.routing.worker import WorkerView


class Search:
    """A request at an instant."""

    def __init__(self, incoming: Incoming, view: ClusterView, now_seconds: float) -> None:
        self.incoming = incoming
        self.view = view
        self.now_seconds = now_seconds
        self.rank = view.ranks[incoming.qos]
        self.batch = view.batch_classes[incoming.qos]
        """It gets only what is idle."""
        self.ttft_seconds = max(min(view.ttft_seconds, incoming.ttft_seconds) - incoming.waited_seconds, 0.0)
        """What is left of the TTFT promise."""
        self.tpot_seconds = min(view.tpot_seconds, incoming.tpot_seconds)
        self.pace_weight = self.ttft_seconds / self.tpot_seconds
        """Seconds of TTFT that a second of TPOT is worth: both promises weigh the same."""
        self.holders: list[WorkerView] = []
        """Workers with the longest known prefix of the prompt."""
        self._held_tokens = self.pooled_tokens = 0.0
        if incoming.prefix:
            units, indices = view.affinity.match(incoming.prefix)
            if units:
                self._held_tokens = max(min(units / incoming.units_per_token, incoming.prompt_tokens - 1), 0.0)
                self.holders = [worker for index in indices if (worker := view.workers.by_index.get(index)) is not None]
            pooled = view.affinity.held(incoming.prefix, POOL)
            self.pooled_tokens = max(min(pooled / incoming.units_per_token, incoming.prompt_tokens - 1), 0.0)

    def cached_tokens(self, worker: WorkerView) -> float:
        """Prompt tokens that `worker` holds."""
        if not self.holders:
            return 0.0
        if worker in self.holders:
            return self._held_tokens
        units = self.view.affinity.held(self.incoming.prefix, worker.index)
        return min(units / self.incoming.units_per_token, self._held_tokens)

    def prefill_on(self, worker: WorkerView) -> Prefill:
        """The prefill on `worker`."""
        prompt_tokens = self.incoming.prompt_tokens
        wait, begun, overtaken_tokens = 0.0, 0.0, 0.0
        if worker.prompts.busy:
            overtaken = 0.0
            lower = worker.prompts.lower_seconds(self.rank)
            if lower > 0:
                for leg in worker.prompts.overtaken(self.rank):
                    overtaken += leg.work_seconds
                    overtaken_tokens += leg.new_tokens
                begun = max(lower - overtaken, 0.0)
            wait = worker.prompts.backlog_seconds(self.now_seconds, overtaken)
        if worker.tiers is None or not self.incoming.prefix:
            cached, loaded, loaded_at = self.cached_tokens(worker), 0.0, 0.0
            work = worker.engine.work_seconds(prompt_tokens, cached)
        else:
            way = self._restoring(worker, worker.tiers, wait)
            cached, loaded, loaded_at, work = way.cached_tokens, way.loaded_tokens, way.loaded_seconds, way.work_seconds
        own = worker.engine.prefill_a + work - worker.prompts.spared_seconds(prompt_tokens - cached, overtaken_tokens)
        wait += chunk_seconds(worker, prompt_tokens - cached)
        own += max(loaded_at - wait - own, 0.0)
        if worker.lockstep is not None:
            # Its step begins and ends with those of the other ranks.
            left = worker.prompts.step_left_seconds(self.now_seconds)
            own = max(own, worker.lockstep.beside_seconds(worker.prompts, self.now_seconds) - (wait - left))
            wait += worker.lockstep.left_seconds(self.now_seconds) - left
        return Prefill(worker, cached, wait, begun, work, own, loaded)

    def _restoring(self, worker: WorkerView, tiers: Tiers, wait_seconds: float) -> Restoring:
        incoming, held, present = self.incoming, self.cached_tokens(worker), 0.0
        if held:
            on_device = self.view.affinity.on_device(incoming.prefix, worker.index)
            present = min(on_device / incoming.units_per_token, held)
        promised_seconds = min(self.view.ttft_seconds, incoming.ttft_seconds)
        return restoring(
            incoming.prompt_tokens,
            worker,
            tiers,
            held_tokens=held,
            device_tokens=present,
            pooled_tokens=self.pooled_tokens,
            within_seconds=prefill_left_seconds(promised_seconds, incoming.waited_seconds),
            wait_seconds=wait_seconds,
        )

    def two_legs(self, prefill: Prefill, decode: WorkerView) -> Route:
        """The prefill, and the answer on another worker."""
        transfer = self.transfer_seconds(prefill, decode)
        delay = prefill.wait_seconds + prefill.own_seconds + transfer
        there = self._joins(decode, delay)
        ttft = delay + there.slot_seconds + there.step_seconds
        if decode.answers.running:
            # A busy engine begins to pull between two steps, and adds what it has pulled between two others.
            ttft += 0.5 * there.step_seconds + max(there.step_seconds - transfer, 0.0)
        if decode.prompts.legs:
            ttft += max(decode.prompts.backlog_seconds(self.now_seconds) - delay, 0.0)
        return _route(prefill, decode, ttft, there)

    def transfer_seconds(self, prefill: Prefill, decode: WorkerView) -> float:
        """From the end of the prefill until `decode` has the KV that it does not hold yet."""
        source, transfers = prefill.prefill, self.view.transfers
        done_at = self.now_seconds + prefill.wait_seconds + prefill.own_seconds
        cost = transfers.cost(source, decode)
        tokens = self.incoming.prompt_tokens - self.on_device_tokens(decode)
        return transfers.wait_seconds(source, decode, done_at) + cost.base_seconds + cost.seconds_per_token * tokens

    def on_device_tokens(self, worker: WorkerView) -> float:
        """Prompt tokens whose KV `worker` has on its device, so that it need not pull them."""
        if worker not in self.holders:
            return 0.0
        units = self.view.affinity.on_device(self.incoming.prefix, worker.index)
        return min(units / self.incoming.units_per_token, self._held_tokens)

    def one_leg(self, prefill: Prefill) -> Route:
        """All on the worker of `prefill`."""
        worker = prefill.prefill
        prefilled = prefill.wait_seconds + prefill.own_seconds
        there = self._joins(worker, prefilled, prefill.work_seconds)
        return _route(prefill, worker, prefilled + there.slot_seconds, there)

    def _joins(self, worker: WorkerView, prefilled_seconds: float, work_seconds: float = 0.0) -> HandOver:
        """The request in the batch of `worker`, of which its own prefill takes `work_seconds`."""
        incoming = self.incoming
        return hand_over(
            worker,
            self.now_seconds,
            self.view.usual_ttft_seconds,
            incoming.prompt_tokens,
            incoming.output_tokens,
            work_seconds=work_seconds,
            prefilled_seconds=prefilled_seconds,
        )


def _route(prefill: Prefill, decode: WorkerView, ttft_seconds: float, there: HandOver) -> Route:
    return Route(
        prefill.prefill,
        prefill.cached_tokens,
        prefill.wait_seconds,
        prefill.begun_seconds,
        prefill.work_seconds,
        prefill.own_seconds,
        prefill.loaded_tokens,
        decode,
        ttft_seconds,
        there,
        prefill.prefill.engine.known and decode.engine.known,
    )
