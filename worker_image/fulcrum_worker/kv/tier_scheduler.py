"""The scheduler's half of the connector: what is loaded, what is computed, and what is under way.

It decides (`fulcrum.kv.restore`) and keeps book. Written against vLLM 0.32.0, whose classes it extends.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
    _TransferMetricName,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.request import RequestStatus

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import How, LinkRate, Restore, Waits, restore
from fulcrum_worker.kv.front import Front
from fulcrum_worker.kv.host_worker import LoadProgress
from fulcrum_worker.kv.policy import FRONT, check_host_room
from fulcrum_worker.kv.pool.loads import PoolLoads
from fulcrum_worker.kv.promise import seconds_left
from fulcrum_worker.kv.registration import HOST_TOKENS, HOST_USED
from fulcrum_worker.kv.speed import StepSpeed
from fulcrum_worker.kv.speed_file import SPEED_FILE, MeasuredSpeed
from fulcrum_worker.kv.step_metadata import TierMetadata, TierWorkerMetadata
from fulcrum_worker.kv.told_stats import ToldStats

_PRIOR_BYTES_PER_SECOND: Final = 5e9
"""What one core copies, until a load was seen."""
IDLE_WAIT_SECONDS: Final = 0.005
"""Longest time that a new request waits for an engine that only waits for a load; without a wait it would spin."""


@dataclass(slots=True, kw_only=True)
class _Loading:
    front: Front
    job_id: int
    keys: set[Any]
    context: Any
    finished: bool = False
    """The worker will write nothing more."""
    blocks: list[Any] = field(default_factory=list)
    """Blocks of an abandoned request, which the worker may still write to."""


class TierScheduler(OffloadingConnectorScheduler):
    """What is loaded, what is computed, and what is under way."""

    def __init__(self, spec: Any, vllm_config: Any, kv_cache_config: Any) -> None:
        super().__init__(spec, vllm_config, kv_cache_config)
        self.speed = StepSpeed()
        """Learnt from this engine's steps, by a scheduler that tells of them."""
        self._measured = MeasuredSpeed(spec.extra_config.get(SPEED_FILE))
        self._front = bool(spec.extra_config.get(FRONT)) and _can_front(self, vllm_config)
        self._block = self.config.kv_group_configs[0].tokens_per_chunk
        self._bytes_per_token = spec.kv_bytes_per_chunk / self._block
        check_host_room(spec.num_chunks * self._block, vllm_config.model_config.max_model_len)
        prior = TransferCost(base_seconds=0.0, seconds_per_token=self._bytes_per_token / _PRIOR_BYTES_PER_SECOND)
        self._link = LinkRate(prior)
        self._offers: dict[str, Front] = {}
        """Requests that this schedule may admit with a front."""
        self._loading: dict[str, _Loading] = {}
        self._ending: dict[int, _Loading] = {}
        """Loads whose request went on or away, and of which the worker has not said yet that they ended."""
        self._released: list[list[Any]] = []
        self._begun: dict[int, TransferJob] = {}
        self._told = ToldStats()
        self._pool = PoolLoads.of(
            self.manager, block_tokens=self._block, bytes_per_token=self._bytes_per_token, speed=self.known_speed
        )

    def known_speed(self) -> SpeedCoefficients | None:
        """How fast this engine computes: by its steps, or by the agent's measurement; None: it is not known yet."""
        return self.speed.coefficients() or self._measured.coefficients()

    def decide(self, request: Any, *, present: int, matched: int) -> Restore | None:
        """How to restore a prefix; None where nothing is known of the engine's speed."""
        speed = self.known_speed()
        if speed is None:
            return None
        link = self._link.predict()
        waiting = sum(
            max(each.front.loaded_from - each.front.split, 0)
            for each in (*self._loading.values(), *self._ending.values())
        )
        return restore(
            present_tokens=present,
            matched_tokens=matched,
            prompt_tokens=request.num_tokens,
            speed=speed,
            link=link,
            waits=Waits(link_seconds=waiting * link.seconds_per_token),
            within_seconds=seconds_left(
                request.kv_transfer_params, waited_seconds=max(time.time() - request.arrival_time, 0.0)
            ),
            block_tokens=self._block,
        )

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, max_num_new_tokens: int | None = None
    ) -> tuple[int | None, bool]:
        """Tokens that vLLM shall load before it begins; none where the front is computed meanwhile."""
        self._offers.pop(request.request_id, None)
        if any(each.context.req_id == request.request_id for each in self._ending.values()):  # it was preempted
            return None, False
        if self._pool is not None:
            self._pool.asks(request, num_computed_tokens, self._link.predict())
        hit, later = super().get_num_new_matched_tokens(request, num_computed_tokens, max_num_new_tokens)
        if hit is None and self._pool is not None:
            self._pool.give_up_late(request.request_id)
        if not hit or not self._front or request.status != RequestStatus.WAITING:
            return hit, later
        last = (request.num_tokens - 1) // self._block * self._block
        matched = min(num_computed_tokens + hit, last)
        if matched <= num_computed_tokens:
            return hit, later
        way = self.decide(request, present=num_computed_tokens, matched=matched)
        if way is None or way.how is How.LOAD:
            return hit, later
        if way.how is How.FRONT:
            self._offers[request.request_id] = Front(
                present=num_computed_tokens,
                matched=matched,
                prompt=request.num_tokens,
                block=self._block,
                split=num_computed_tokens + way.recompute_tokens,
                loaded_from=matched,
                changed=time.monotonic(),
            )
        return 0, False

    def limit(self, request: Any, computed: int, new_tokens: int) -> int:
        """Tokens that a step may compute of this request: none beyond the split, before the rest is there."""
        loading = self._loading.get(request.request_id)
        if loading is not None:
            return int(max(min(new_tokens, loading.front.split - computed), 0))
        offer = self._offers.get(request.request_id)
        if offer is not None and computed == offer.present:
            return int(min(new_tokens, offer.split - computed))
        return new_tokens

    def offered(self, request_id: str, computed: int) -> int | None:
        """Tokens for which a request that was admitted needs blocks, where its front is computed."""
        offer = self._offers.get(request_id)
        return offer.matched if offer is not None and offer.present == computed else None

    def begin(self, request: Any, block_ids: list[int]) -> None:
        """Load what is behind the split into `block_ids`, the request's blocks from its first token on."""
        front = self._offers.pop(request.request_id)
        status = self._req_status[request.request_id]
        first, end = front.split // self._block, front.matched // self._block
        keys = status.group_states[0].offload_keys[first:end]
        source = self.manager.prepare_load(keys, status.req_context)
        job_id = self._generate_job_id()
        target = GPULoadStoreSpec(block_ids[first:end], group_sizes=[end - first], block_indices=[first])
        self._begun[job_id] = TransferJob(req_id=request.request_id, src_spec=source, dst_spec=target)
        self._loading[request.request_id] = _Loading(
            front=front, job_id=job_id, keys=set(keys), context=status.req_context
        )
        if self._chunks_being_loaded is not None:
            self._chunks_being_loaded.update(keys)

    def fronts(self) -> list[str]:
        """Requests whose front is computed."""
        return list(self._loading)

    def advance(self, request: Any) -> int | None:
        """Tokens that the request has once computing and loading have met; None before that."""
        loading = self._loading[request.request_id]
        front = loading.front
        if request.num_computed_tokens < front.split:
            return None
        if front.loaded_from > front.split:
            self.split_again(front)
            return None
        self._end(self._loading.pop(request.request_id))
        return front.matched

    def sources(self, request_id: str, start: int, end: int) -> dict[Any, int]:
        """Where the tokens `start` to `end` of a request came from, as vLLM names it."""
        status = self._req_status[request_id]
        keys = status.group_states[0].offload_keys[start // self._block : end // self._block]
        found = Counter(self.manager.get_load_source(key, status.req_context) for key in keys)
        return {source: blocks * self._block for source, blocks in found.items()}

    def split_again(self, front: Front) -> None:
        """Compute more of what is still missing, where that is quicker than waiting for it."""
        speed = self.known_speed()
        if speed is not None:
            front.split_again(speed=speed, link=self._link.predict(), now=time.monotonic())

    def abandon(self, request_id: str, blocks: list[Any]) -> None:
        """Stop a load whose request goes; `blocks` are given back once nothing writes to them."""
        loading = self._loading.pop(request_id)
        loading.blocks = blocks
        loading.front.split = loading.front.matched
        self._end(loading)

    def _end(self, loading: _Loading) -> None:
        if not loading.finished:
            self._ending[loading.job_id] = loading
        elif loading.blocks:
            self._released.append(loading.blocks)

    def released(self) -> list[list[Any]]:
        """Blocks of abandoned requests that nothing writes to any more."""
        released, self._released = self._released, []
        return released

    @property
    def holds_blocks(self) -> bool:
        """Blocks of abandoned requests will come free."""
        return any(each.blocks for each in self._ending.values())

    def build_connector_meta(self, scheduler_output: Any) -> TierMetadata:
        """What the worker shall do in this step."""
        self._offers.clear()
        stock = super().build_connector_meta(scheduler_output)
        begun, self._begun = self._begun, {}
        idle = scheduler_output.total_num_scheduled_tokens == 0
        if idle and self._pool is not None:
            self._pool.await_change(IDLE_WAIT_SECONDS)
        open_loads = (*self._loading.values(), *self._ending.values())
        return TierMetadata(
            load_jobs=stock.load_jobs,
            store_jobs=stock.store_jobs,
            jobs_to_flush=stock.jobs_to_flush,
            fronts=begun,
            kept={each.job_id: each.front.kept_blocks for each in open_loads},
            idle=idle,
        )

    def update_connector_output(self, connector_output: Any) -> None:
        """Take note of what was loaded."""
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, TierWorkerMetadata):
            size, seconds = meta.moved
            self._link.learn(tokens=round(size / self._bytes_per_token), seconds=seconds)
            for job_id, progress in meta.progress.items():
                self._progressed(job_id, progress)
        super().update_connector_output(connector_output)

    def _progressed(self, job_id: int, progress: LoadProgress) -> None:
        loading = self._ending.get(job_id) or next(
            (each for each in self._loading.values() if each.job_id == job_id), None
        )
        if loading is None:
            return
        loading.front.loaded(progress.blocks, time.monotonic())
        if not progress.finished:
            return
        loading.finished = True
        self._connector_stats.increase_counter(_TransferMetricName.LOAD_BYTES, progress.size)
        self._connector_stats.increase_counter(_TransferMetricName.LOAD_TIME, progress.seconds)
        self._connector_stats.observe_histogram(_TransferMetricName.LOAD_SIZE, progress.size)
        if loading.keys:
            self.manager.complete_load(loading.keys, loading.context)
            if self._chunks_being_loaded is not None:
                self._chunks_being_loaded.difference_update(loading.keys)
            loading.keys = set()
        if self._ending.pop(job_id, None) is not None and loading.blocks:
            self._released.append(loading.blocks)

    def get_stats(self) -> Any:
        """What vLLM exports, and how full host memory is; None where nothing is new since the last call."""
        stats = super().get_stats() or OffloadingConnectorStats()
        primary = self.manager.primary_tier
        held = primary._num_allocated_chunks - len(primary._free_list)  # noqa: SLF001 - it has no name for it
        stats.set_gauge(HOST_USED, held / primary._num_chunks if primary._num_chunks else 0.0)  # noqa: SLF001
        stats.set_gauge(HOST_TOKENS, primary._num_chunks * self._block)  # noqa: SLF001
        return stats if self._told.is_news(stats.data) else None

    def has_pending_push_work(self) -> bool:
        """Whether the engine must go on stepping."""
        return super().has_pending_push_work() or bool(self._loading or self._ending)

    def reset_cache(self) -> None:
        """Forget what is offloaded; loads under way end where they are."""
        for each in (*self._loading.values(), *self._ending.values()):
            each.front.split = max(each.front.split, each.front.loaded_from)
            each.keys = set()
        super().reset_cache()


def _can_front(scheduler: OffloadingConnectorScheduler, vllm_config: Any) -> bool:
    """One rank, one group of full attention, and a runner that takes `num_computed_tokens` from the scheduler."""
    groups = scheduler.config.kv_group_configs
    return (
        len(groups) == 1
        and groups[0].sliding_window_size_in_chunks is None
        and not groups[0].requires_cow_source
        and not groups[0].is_eagle_group
        and scheduler.config.blocks_per_chunk == 1
        and vllm_config.parallel_config.world_size == 1
        and not vllm_config.use_v2_model_runner
        and not vllm_config.scheduler_config.async_scheduling
    )
