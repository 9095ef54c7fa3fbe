"""The agent's HTTP server: probes, load, role, drain and metrics. Requests of users never come here."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from fulcrum.api.internal_token import HEADER as AUTHORIZATION
from fulcrum.api.internal_token import is_authorized
from fulcrum.api.names import HEADER_POD
from fulcrum.api.worker import AdaptersRequest, RoleRequest, SleepRequest, WorkerConfig
from fulcrum_worker.engine_access import REFUSAL
from fulcrum_worker.metrics_page import CONTENT_TYPE, metrics_page
from fulcrum_worker.roles import RoleOutcome
from fulcrum_worker.state import WorkerState

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES: Final = 64 * 1024
_READING: Final = frozenset(("GET", "HEAD"))
_OUTCOME_STATUS: Final = {
    RoleOutcome.CHANGED: 200,
    RoleOutcome.UNCHANGED: 200,
    RoleOutcome.STALE: 409,
    RoleOutcome.CONFLICT: 409,
}


def make_app(config: WorkerConfig, state: WorkerState) -> web.Application:
    """The agent's routes over its state."""
    routes = _Routes(config, state)
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json, _guard(state.token)])
    app.add_routes(
        [
            web.get("/healthz", routes.healthz),
            web.get("/readyz", routes.readyz),
            web.get("/load", routes.load),
            web.get("/metrics", routes.metrics),
            web.post("/role", routes.role),
            web.post("/drain", routes.drain),
            web.post("/adapters", routes.adapters),
            web.post("/sleep", routes.sleep),
        ]
    )
    return app


def _json(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json", headers=headers)


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "code": status}}, status=status)


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        response = _error(error.status, error.reason)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response


def _guard(token: str | None) -> Middleware:
    """Only callers that know the cluster's token may change something; any that reaches the agent may look."""

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if token is None or request.method in _READING:
            return await handler(request)
        given = request.headers.getall(AUTHORIZATION, [])
        if len(given) != 1 or not is_authorized(given[0], token):
            logger.warning("call_refused path=%r reason=token", request.path)
            response = _error(HTTPStatus.UNAUTHORIZED, REFUSAL)
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        return await handler(request)

    return guard


class _Routes:
    def __init__(self, config: WorkerConfig, state: WorkerState) -> None:
        self._config = config
        self._state = state

    async def healthz(self, _: web.Request) -> web.Response:
        """Alive: the agent answers, and vLLM's process lives or has not been started yet."""
        alive = self._state.engine_alive or not self._state.warm
        return _json({"alive": alive, "engineAlive": self._state.engine_alive}, status=200 if alive else 503)

    async def readyz(self, request: web.Request) -> web.Response:
        """Ready: vLLM answers and its transfer layer is up. Draining is reported, and does not make it unready.

        With `?startup` the status says whether the engine has come up, be it measured or not.
        """
        reason = await self._state.not_ready_reason()
        good = self._state.has_started() if "startup" in request.query else reason is None
        body = {
            "ready": reason is None,
            "draining": self._state.role.draining,
            "reason": reason,
            "stage": self._state.stage,
        }
        return _json(body, status=200 if good else 503)

    async def load(self, _: web.Request) -> web.Response:
        return _json(await self._state.load_report(), headers={HEADER_POD: self._state.pod_name})

    async def metrics(self, _: web.Request) -> web.Response:
        page = metrics_page(self._config, self._state, await self._state.load_report())
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    def _misdirected(self, request: web.Request) -> web.Response | None:
        meant = request.headers.get(HEADER_POD)
        if not meant or not self._state.pod_name or meant == self._state.pod_name:
            return None
        logger.info("call_refused path=%r outcome=misdirected meant=%r", request.path, meant)
        return _error(HTTPStatus.MISDIRECTED_REQUEST, f"this is {self._state.pod_name}")

    async def adapters(self, request: web.Request) -> web.Response:
        """Takes over which LoRA adapters the engine is to have; they are loaded and unloaded later."""
        if (misdirected := self._misdirected(request)) is not None:
            return misdirected
        keeper = self._state.adapters
        if keeper is None:
            return _error(409, "this engine was started without adapters (spec.adapters)")
        try:
            asked = msgspec.json.decode(await request.read(), type=AdaptersRequest)
        except msgspec.DecodeError as error:
            return _error(400, f"the body is no list of adapters: {error}")
        keeper.want(asked.adapters)
        return _json({"adapters": keeper.report()}, status=202)

    async def sleep(self, request: web.Request) -> web.Response:
        """Takes over whether the engine is to sleep; it is put to sleep, or woken, later."""
        if (misdirected := self._misdirected(request)) is not None:
            return misdirected
        keeper = self._state.sleep
        if keeper is None:
            return _error(409, "this engine was started without sleep mode (spec.balance.idleDepth: Engines)")
        try:
            asked = msgspec.json.decode(await request.read(), type=SleepRequest)
        except msgspec.DecodeError as error:
            return _error(400, f"the body is no sleep request: {error}")
        refused = keeper.want(asked)
        return _error(409, refused) if refused is not None else _json({"sleep": keeper.state}, status=202)

    async def role(self, request: web.Request) -> web.Response:
        if (misdirected := self._misdirected(request)) is not None:
            return misdirected
        try:
            asked = msgspec.json.decode(await request.read(), type=RoleRequest)
        except msgspec.DecodeError as error:  # ValidationError is one of them
            return _error(400, f"the body is no role request: {error}")
        before = self._state.role
        after, outcome = before.asked(asked)
        if outcome is RoleOutcome.CHANGED:
            self._state.change_role(after)
            logger.info("role_changed from=%s to=%s epoch=%d", before.role, after.role, after.epoch)
        status = _OUTCOME_STATUS[outcome]
        if status != 200:
            logger.info("role_refused outcome=%s epoch=%d asked_epoch=%d", outcome, before.epoch, asked.role_epoch)
            return _error(status, f"{outcome}: the worker is {before.role} at epoch {before.epoch}")
        return _json({"role": after.role, "roleEpoch": after.epoch})

    async def drain(self, _: web.Request) -> web.Response:
        """Reports the worker as draining until its next role epoch; the engine goes on serving what it gets."""
        if not self._state.role.draining:
            logger.info("drain_begun reason=asked role=%s", self._state.role.role)
        self._state.change_role(self._state.role.asked_to_drain())
        return _json({"draining": True, "idle": (await self._state.engine_metrics()).idle}, status=202)
