"""The life of a worker's engine: start it, watch it, drain it, end with an exit code that says why."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.worker import EXIT_ENGINE_DIED, EXIT_ENGINE_NOT_STARTED, EXIT_ENGINE_STALLED, WorkerConfig
from fulcrum_worker.config import BadConfigError
from fulcrum_worker.device_faults import blamed
from fulcrum_worker.drain import wait_until_idle
from fulcrum_worker.engine_command import SHUTDOWN_TIMEOUT_SECONDS, EngineCommand
from fulcrum_worker.engine_process import EngineProcess, digest
from fulcrum_worker.engine_ranks import how, lost_rank, refusal
from fulcrum_worker.engine_start import kv_role
from fulcrum_worker.kv.speed_file import write_speed
from fulcrum_worker.measured_engine import compile_ahead
from fulcrum_worker.models import downloaded_bytes, model_config
from fulcrum_worker.orphans import remove_orphans
from fulcrum_worker.readiness import SideChannel, not_ready_reason
from fulcrum_worker.stall import wait_until_stalled
from fulcrum_worker.start_progress import usage_of, wait_until_stuck
from fulcrum_worker.state import WorkerState

logger = logging.getLogger(__name__)

Turned = Callable[[Role], EngineCommand]
"""The command of the engine that takes a role."""

_START_POLL_SECONDS: Final = 0.2
_STOP_GRACE_SECONDS: Final = SHUTDOWN_TIMEOUT_SECONDS + 10.0
_TOLD_SECONDS: Final = 10.0
"""Longest wait for a startup probe between the engine's start and its measurement: the local kubelet then holds it to
its CPU limit. It asks every 0.5 s, and later on a busy machine."""
_STALLED_GRACE_SECONDS: Final = 1.0
"""An engine that hangs finishes nothing more, and its requests go on elsewhere once its connections break."""

_ADAPTERS_SECONDS: Final = 60.0
"""Longest wait for adapters before a worker is ready without them: others are served meanwhile."""


class EngineLife:
    """One worker, over as many engines as its roles need."""

    def __init__(
        self,
        config: WorkerConfig,
        state: WorkerState,
        engine: EngineProcess,
        stop: asyncio.Event,
        hurry: asyncio.Event,
        *,
        channels: tuple[SideChannel, ...],
        turned: Turned | None,
    ) -> None:
        self._config = config
        self._state = state
        self._engine = engine
        self._channels = channels
        self._stop = stop
        self._hurry = hurry
        self._turned = turned
        self._engine_role = kv_role(state.roles, config.role)
        state.engine_stage = lambda: self._engine.stage
        state.expert_balance = lambda: self._engine.expert_balance

    async def run(self) -> int:
        """Until the worker is told to stop or an engine ends; returns the process's exit code."""
        while (code := await self._run_engine()) is None:
            assert self._turned is not None
            role = self._state.role.role
            self._engine, self._engine_role = EngineProcess(self._turned(role)), kv_role(self._state.roles, role)
        return code

    async def _run_engine(self) -> int | None:
        """One engine from its start to its end; None: another one must follow, for another role."""
        started = time.monotonic()
        exchanges = self._config.exchanges_kv and self._engine_role is not None
        self._state.side_channels = self._channels if exchanges else ()
        remove_orphans()  # of an engine that was killed together with its agent
        try:
            await self._engine.start()
        except OSError as error:
            return await self._failed(EXIT_ENGINE_NOT_STARTED, f"vLLM could not be executed: {error}")
        self._state.engine_alive = True
        logger.info("engine_started pid=%s", self._engine.pid)
        try:
            return await self._watch(started)
        finally:
            await self._engine.stop(grace_seconds=_STOP_GRACE_SECONDS)
            remove_orphans()

    async def _watch(self, started: float) -> int | None:
        ended = asyncio.create_task(self._engine.wait())
        stopped = asyncio.create_task(self._stop.wait())
        stuck = asyncio.create_task(
            wait_until_stuck(
                lambda: usage_of(self._engine.pid, new_lines=self._engine.new_lines),
                timeout_seconds=self._config.start_timeout_seconds,
                longest_seconds=self._config.longest_start_seconds,
                downloaded=lambda: downloaded_bytes(self._config.model, os.environ),
            )
        )
        try:
            up = await _first(self._bring_up(started), ended, stopped, stuck)
            if ended.done():
                if (why := refusal(ended.result(), await self._engine.last_lines())) is not None:
                    raise BadConfigError(why)
                return await self._failed(EXIT_ENGINE_NOT_STARTED, f"vLLM {how(ended.result())} before it was ready")
            if stopped.done():
                logger.info("worker_stopping reason=signal phase=starting")
                return 0
            if not up:
                stage = self._state.stage
                reason = self._state.missing or await not_ready_reason(
                    self._state.session, self._state.engine_url, self._state.side_channels
                )
                await self._engine.stop(grace_seconds=_STOP_GRACE_SECONDS)
                return await self._failed(EXIT_ENGINE_NOT_STARTED, f"vLLM {stuck.result()} (stage {stage}): {reason}")
            stuck.cancel()
            return await self._serve(ended, stopped)
        finally:
            for task in (ended, stopped, stuck):
                task.cancel()

    async def _serve(self, ended: asyncio.Task[int], stopped: asyncio.Task[Any]) -> int | None:
        """From the engine's readiness on; None: it is of another role than the worker now."""
        stalled = asyncio.create_task(wait_until_stalled(self._state.engine_metrics, self._state.speed))
        turning = asyncio.create_task(self._until_turned())
        sleep = self._state.sleep
        unwoken = asyncio.create_task((sleep.failed if sleep is not None else asyncio.Event()).wait())
        try:
            await asyncio.wait((ended, stopped, stalled, turning, unwoken), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return await self._failed(EXIT_ENGINE_DIED, f"vLLM {how(ended.result())} while serving")
            if stopped.done():
                return await self._drain(ended)
            if stalled.done():
                return await self._stalled(stalled.result())
            if sleep is not None and unwoken.done():
                await self._engine.stop(grace_seconds=_STALLED_GRACE_SECONDS)
                return await self._failed(EXIT_ENGINE_STALLED, f"{Reason.ENGINE_STALLED}: {sleep.failure}")
            return await self._turn(ended, stopped)
        finally:
            stalled.cancel()
            unwoken.cancel()
            turning.cancel()

    async def _until_turned(self) -> None:
        """Wait for a role that this engine cannot take. A mixed worker, or one that drains, needs none."""
        while (wanted := kv_role(self._state.roles, self._state.role.role)) in (None, self._engine_role):
            await self._state.role_changed.wait()
            self._state.role_changed.clear()
        logger.info("role_needs_restart engine=%s wanted=%s", self._engine_role, wanted)

    async def _turn(self, ended: asyncio.Task[int], stopped: asyncio.Task[Any]) -> int | None:
        """Finish what the engine has, unready meanwhile, so that requests of its new role wait for the next one."""
        self._state.warm = False
        timeout_seconds = self._config.drain_timeout_seconds
        idling = wait_until_idle(self._state.engine_metrics, timeout_seconds=timeout_seconds)
        await _first(idling, ended, stopped)
        if ended.done():
            return await self._failed(EXIT_ENGINE_DIED, f"vLLM {how(ended.result())} while it finished for a flip")
        self._state.engine_alive = False
        return 0 if stopped.done() else None

    async def _bring_up(self, started: float) -> bool:
        state = self._state
        while await not_ready_reason(state.session, state.engine_url, state.side_channels) is not None:  # noqa: ASYNC110
            await asyncio.sleep(_START_POLL_SECONDS)
        state.engine_start_seconds = time.monotonic() - started
        logger.info("engine_up seconds=%.1f", state.engine_start_seconds)
        state.model_config = model_config(self._config.model, self._config.model_revision, os.environ)
        if not self._config.pools:
            await compile_ahead(
                state.session,
                state.engine_url,
                self._config.served_name,
                ranks=self._config.data_parallel,
                timeout_seconds=self._config.longest_start_seconds,
            )
        if self._config.measure_at_start and state.speed is None:
            if state.startup_probed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(state.startup_told.wait(), _TOLD_SECONDS)
            from fulcrum_worker.measure import budget_for, measure_engine, patience_for

            measuring = time.monotonic()
            state.speed = await measure_engine(
                state.session,
                state.engine_url,
                self._config.served_name,
                max_model_len=self._config.max_model_len,
                ranks=self._config.data_parallel,
                pools=self._config.pools,
                budget_seconds=budget_for(state.engine_start_seconds),
                patience_seconds=patience_for(state.engine_start_seconds),
            )
            state.measure_seconds = time.monotonic() - measuring
            if state.speed is not None and state.speed_file is not None:
                try:
                    write_speed(state.speed_file, state.speed)
                except OSError as error:  # the engine learns it by itself, or loads all there is
                    logger.warning("speed_not_written path=%s error=%r", state.speed_file, str(error))
        if state.adapters is not None:
            # Else the worker that this one replaces could leave before an adapter is anywhere.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(state.adapters.settle(), _ADAPTERS_SECONDS)
        state.warm = True
        logger.info("worker_ready role=%s epoch=%d", state.role.role, state.role.epoch)
        return True

    async def _drain(self, ended: asyncio.Task[int]) -> int:
        """Finishes what is left, then ends well; a vLLM that dies or hangs meanwhile has lost requests: not well."""
        timeout_seconds = self._config.drain_timeout_seconds
        logger.info("drain_begun reason=signal role=%s timeout_seconds=%g", self._state.role.role, timeout_seconds)
        self._state.change_role(self._state.role.asked_to_terminate())
        started = time.monotonic()
        hurried = asyncio.create_task(self._hurry.wait())
        stalled = asyncio.create_task(wait_until_stalled(self._state.engine_metrics, self._state.speed))
        idling = wait_until_idle(self._state.engine_metrics, timeout_seconds=timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds + 5.0):
                idle = await _first(idling, ended, hurried, stalled)
        except TimeoutError:
            idle = False
        finally:
            hurried.cancel()
            stalled.cancel()
        if not idle and stalled.done() and not stalled.cancelled():
            return await self._stalled(stalled.result())
        if ended.done():
            return await self._failed(EXIT_ENGINE_DIED, f"vLLM {how(ended.result())} while draining")
        outcome = "idle" if idle else "hurried" if self._hurry.is_set() else "timed_out"
        logger.info("drain_ended outcome=%s seconds=%.1f", outcome, time.monotonic() - started)
        return 0

    async def _stalled(self, silent_seconds: float) -> int:
        """Ends vLLM at once; the kubelet starts the container again."""
        metrics = await self._state.engine_metrics()
        await self._engine.stop(grace_seconds=_STALLED_GRACE_SECONDS)
        work = f"{metrics.running or 0} running and {metrics.waiting or 0} waiting requests"
        return await self._failed(
            EXIT_ENGINE_STALLED,
            f"{Reason.ENGINE_STALLED}: vLLM made no progress for {silent_seconds:.0f} s with {work}",
        )

    async def _failed(self, code: int, what: str) -> int:
        """Ends the log with vLLM's last lines: Kubernetes takes the end of the log as the termination message."""
        self._state.engine_alive = False
        lines = await self._engine.last_lines()
        if (lost := lost_rank(lines)) is not None:
            what = f"{lost}; {what}"
        code, what = blamed(code, what, lines)
        logger.error("worker_failed exit_code=%d reason=%r", code, what)
        print(f"{what}; its last lines:\n{digest(lines)}", flush=True)
        return code


async def _first(work: Coroutine[Any, Any, bool], *others: asyncio.Task[Any]) -> bool:
    """The result of `work`; False when one of the others ends before it."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
        return task.done() and task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
