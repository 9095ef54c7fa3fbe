"""vLLM's development routes over its own engine core and executor, without a model: what sleeps is only written down.

    python sleep_program.py ADDRESS PORT

`POST /v1/begin` starts anew with what is to go wrong, `GET /v1/record` says what was done.
"""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI
from vllm.entrypoints.serve.dev.rpc.api_router import attach_router as attach_rpc
from vllm.entrypoints.serve.dev.sleep.api_router import attach_router as attach_sleep
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor

from fulcrum_worker.engine_access import EngineGuard


class WrittenDown:
    """vLLM's executor; `collective_rpc` is set by the engine."""

    sleep, wake_up, is_sleeping = Executor.sleep, Executor.wake_up, Executor.is_sleeping

    def __init__(self) -> None:
        self.sleeping_tags: set[str] = set()


class Engine:
    """The engine client that the routes call."""

    def __init__(self, wrong: dict[str, Any]) -> None:
        self.wrong = wrong
        self.calls: list[Any] = []
        """Methods that all workers ran, with what they were given, and whether the scheduler stood still."""
        self.paused: list[Any] = []
        core: Any = EngineCore.__new__(EngineCore)
        core.model_executor = WrittenDown()
        core.model_executor.collective_rpc = self.rpc
        core.scheduler = SimpleNamespace(pause_state=PauseState.UNPAUSED)
        core.scheduler.set_pause_state = lambda state: setattr(core.scheduler, "pause_state", state)
        core.pause_scheduler = self.pause
        self.core = core

    def pause(self, *, mode: str, clear_cache: bool) -> None:
        if self.wrong.get("pauses") is False:
            raise RuntimeError("not now")
        self.paused.append([mode, clear_cache])
        self.core.scheduler.pause_state = PauseState.PAUSED_NEW

    def rpc(self, method: str, args: Any = (), kwargs: Any = None) -> list[None]:
        self.calls.append([method, {**(kwargs or {})}, self.core.is_scheduler_paused()])
        if method == self.wrong.get("refuses"):
            raise RuntimeError("no memory is left")
        return [None]

    async def sleep(self, level: int, mode: str) -> None:
        self.core.sleep(level, mode)

    async def wake_up(self, tags: list[str] | None) -> bool:
        if self.wrong.get("hangs"):
            await asyncio.Event().wait()
        return bool(self.core.wake_up(tags))

    async def is_sleeping(self) -> bool:
        return bool(self.core.is_sleeping())

    async def collective_rpc(self, method: str, timeout: float | None, args: Any, kwargs: Any) -> list[None]:
        return self.rpc(method, args, kwargs)


app = FastAPI()
app.state.engine_client = Engine({})
attach_sleep(app)
attach_rpc(app)
app.add_middleware(EngineGuard)


@app.post("/v1/begin")
async def begin(wrong: dict[str, Any]) -> None:
    app.state.engine_client = Engine(wrong)


@app.get("/v1/record")
async def record() -> dict[str, Any]:
    engine = app.state.engine_client
    return {"calls": engine.calls, "paused": engine.paused, "still": engine.core.is_scheduler_paused()}


if __name__ == "__main__":
    uvicorn.run(app, host=sys.argv[1], port=int(sys.argv[2]), log_level="warning", timeout_graceful_shutdown=1)
