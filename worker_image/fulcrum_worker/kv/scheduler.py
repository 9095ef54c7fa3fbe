"""vLLM's scheduler, which lets a request jump over the part of its prefix that was loaded while its front was computed.

Between two steps a running request goes from the end of its computed front to the end of its loaded prefix. That is
sound where the runner takes `num_computed_tokens` from the scheduler at each step (vLLM 0.32.0 on CPUs); elsewhere the
agent does not choose this class.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from fulcrum_worker.kv.connector import TierConnector
from fulcrum_worker.kv.speed import LEAST_TOKENS
from fulcrum_worker.kv.tier_scheduler import TierScheduler


class FrontScheduler(Scheduler):
    """For engines with one `TierConnector`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tier = _tier(self.connector)
        self._step_began = 0.0
        self._step_ended = 0.0

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Let requests whose load and front have met go on, then schedule as ever."""
        for blocks in self._tier.released():
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
        for request_id in self._tier.fronts():
            request = self.requests[request_id]
            if request.num_in_flight_tokens:
                continue
            computed = request.num_computed_tokens
            restored = self._tier.advance(request)
            if restored is not None and restored > computed:
                request.num_computed_tokens = restored
                self.kv_cache_manager.cache_blocks(request, restored)
                self._note_source(request, computed, restored)
        self._step_began = time.monotonic()
        return super().schedule(throttle_prefills)

    def _note_source(self, request: Any, start: int, end: int) -> None:
        """Count the tokens `start` to `end` as loaded: vLLM counts at admission, when this was not known."""
        loaded_tokens = end - start
        if self.connector_prefix_cache_stats is not None:
            sources = self._tier.sources(request.request_id, start, end)
            self.connector_prefix_cache_stats.record(
                num_tokens=0, num_hits=loaded_tokens, preempted=False, hits_by_source=sources
            )
        stats = request.prefill_stats
        if stats is not None:
            stats.set(
                num_prompt_tokens=stats.num_prompt_tokens,
                num_local_cached_tokens=stats.num_local_cached_tokens,
                num_external_cached_tokens=stats.num_external_cached_tokens + loaded_tokens,
            )

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        wanted = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return self._tier.limit(request, num_computed_tokens, wanted)

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: Any) -> Any:
        for admitted in scheduler_output.scheduled_new_reqs:
            matched = self._tier.offered(admitted.req_id, admitted.num_computed_tokens)
            if matched is None:
                continue
            request = self.requests[admitted.req_id]
            more = matched - request.num_computed_tokens
            if self.kv_cache_manager.allocate_slots(request, more, delay_cache_blocks=True) is None:
                continue  # no room for the rest now: it is computed as room comes
            admitted.block_ids = self.kv_cache_manager.get_block_ids(admitted.req_id)
            self._tier.begin(request, list(admitted.block_ids[0]))
        return super()._build_kv_connector_meta(connector, scheduler_output)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Learn from the step how fast prompts are computed."""
        now = time.monotonic()
        computed = self._only_prompt(scheduler_output)
        if computed is not None:
            start, end = computed
            self._tier.speed.learn(start=start, end=end, seconds=now - max(self._step_began, self._step_ended))
        self._step_ended = now
        return super().update_from_output(scheduler_output, model_runner_output)

    def _only_prompt(self, scheduler_output: Any) -> tuple[int, int] | None:
        """The tokens that a step computed of one prompt, or of its only request; None: it tells of no single one."""
        counts = scheduler_output.num_scheduled_tokens
        if len(counts) > 1 and scheduler_output.total_num_scheduled_tokens < LEAST_TOKENS + len(counts) - 1:
            return None  # all of them decode
        telling = [
            (request.num_computed_tokens - count, request.num_computed_tokens)
            for request_id, count in counts.items()
            if (count >= LEAST_TOKENS or len(counts) == 1) and (request := self.requests.get(request_id)) is not None
        ]
        return telling[0] if len(telling) == 1 else None

    def _free_request_blocks(self, request: Any) -> None:
        if request.request_id in self._tier.fronts():
            self._tier.abandon(request.request_id, self.kv_cache_manager.pop_blocks_for_free(request))
        else:
            super()._free_request_blocks(request)

    def has_requests(self) -> bool:
        """Whether there is something to do: loads that were abandoned end before the engine rests."""
        return super().has_requests() or self._tier.has_pending_push_work()


def _tier(connector: Any) -> TierScheduler:
    for each in getattr(connector, "sub_connectors", [connector]):
        if isinstance(each, TierConnector):
            return each.tier
    raise TypeError("FrontScheduler needs a TierConnector in --kv-transfer-config")
