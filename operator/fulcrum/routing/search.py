"""One request looking at the workers at one instant, and what is predicted for it on some of them. Pure."""

from __future__ import annotations

from fulcrum.kv import Tiers, Waits, restore
from fulcrum.routing.affinity import POOL
from fulcrum.routing.latency import chunk_seconds, hand_over
from fulcrum.routing.path import HandOver, Incoming, Prefill, Route
from fulcrum.routing.tuning import TUNING
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
        self._held_tokens = self._pooled_tokens = 0.0
        if incoming.prefix:
            units, indices = view.affinity.match(incoming.prefix)
            if units:
                self._held_tokens = self._prefix_tokens(units)
                self.holders = [worker for index in indices if (worker := view.workers.by_index.get(index)) is not None]
            self._pooled_tokens = self._prefix_tokens(view.affinity.held(incoming.prefix, POOL))

    def _prefix_tokens(self, units: int) -> float:
        """So much of the prompt in tokens; its last one is always computed."""
        return max(min(units / self.incoming.units_per_token, self.incoming.prompt_tokens - 1), 0.0)

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
            cached, loaded, loaded_at, work = self._restored(worker, worker.tiers, wait)
        own = worker.engine.prefill_a + work - worker.prompts.spared_seconds(prompt_tokens - cached, overtaken_tokens)
        wait += chunk_seconds(worker, prompt_tokens - cached)
        own += max(loaded_at - wait - own, 0.0)
        if worker.lockstep is not None:
            # Its step begins and ends with those of the other ranks.
            left = worker.prompts.step_left_seconds(self.now_seconds)
            own = max(own, worker.lockstep.beside_seconds(worker.prompts, self.now_seconds) - (wait - left))
            wait += worker.lockstep.left_seconds(self.now_seconds) - left
        return Prefill(worker, cached, wait, begun, work, own, loaded)

    def _restored(self, worker: WorkerView, tiers: Tiers, wait_seconds: float) -> tuple[float, float, float, float]:
        """How the prompt begins on a worker with tiers, by the split that the engine uses itself; its turn comes after
        `wait_seconds`.

        Returns the tokens that are not computed; those of them that are loaded; the seconds from now to the first token
        by the split, 0 where nothing is loaded; and the seconds that computing the rest takes.
        """
        incoming, engine = self.incoming, worker.engine
        prompt, matched, present = incoming.prompt_tokens, self.cached_tokens(worker), 0.0
        if matched:
            on_device = self.view.affinity.on_device(incoming.prefix, worker.index)
            present = min(on_device / incoming.units_per_token, matched)
        link = tiers.host_link
        if tiers.pool_link is not None and self._pooled_tokens > matched:
            link, matched = tiers.pool_link, self._pooled_tokens
        if matched - present < 1.0 or prompt < matched + 1.0:
            return present, 0.0, 0.0, engine.work_seconds(prompt, present)
        promised_seconds = min(self.view.ttft_seconds, incoming.ttft_seconds)
        way = restore(
            present_tokens=int(present),
            matched_tokens=int(matched),
            prompt_tokens=int(prompt),
            speed=engine.speed.coefficients,
            link=link,
            waits=Waits(compute_seconds=wait_seconds),
            within_seconds=prefill_left_seconds(promised_seconds, incoming.waited_seconds),
            front=tiers.front,
        )
        if not way.load_tokens:
            return present, 0.0, 0.0, engine.work_seconds(prompt, present)
        work = engine.work_seconds(present + way.recompute_tokens, present) + engine.work_seconds(prompt, matched)
        return matched - way.recompute_tokens, float(way.load_tokens), way.predicted_seconds, work

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


def prefill_left_seconds(ttft_seconds: float, waited_seconds: float) -> float:
    """Return what is left for the prefill of a request that came `waited_seconds` ago: the hand-over comes after it."""
    return max(TUNING.estimate_share * ttft_seconds - waited_seconds, 0.0)


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
