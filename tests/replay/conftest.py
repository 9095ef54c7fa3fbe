"""A small OpenAI-compatible server with faults on demand: what `replay` must tell apart, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web


@dataclass(slots=True)
class Server:
    """Answers completions word by word; `fault` decides how it goes wrong."""

    url: str = ""
    fault: str = ""
    token_seconds: float = 0.0
    takes_ignore_eos: bool = True
    bodies: list[dict[str, object]] = field(default_factory=list)
    rejections_left: int = 0
    most_at_once: int = 0
    at_once: int = 0
    third_request: asyncio.Event = field(default_factory=asyncio.Event)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.rejections_left > 0:
            self.rejections_left -= 1
            return web.json_response({}, status=429, headers={"Retry-After": "0", "x-fulcrum-rejected": "Overloaded"})
        if "ignore_eos" in body and not self.takes_ignore_eos:
            return web.json_response({"error": {"message": "unknown field ignore_eos"}}, status=400)
        if not body.get("stream"):
            # Two tokens per word, to see that prompts are calibrated.
            usage = {"prompt_tokens": 2 * len(body["prompt"].split()), "completion_tokens": 1}
            return web.json_response({"choices": [{"text": "x"}], "usage": usage})
        self.bodies.append(body)
        if len(self.bodies) == 3:
            self.third_request.set()
        if self.fault.startswith("status "):
            return web.json_response({"error": {"message": "no"}}, status=int(self.fault.split()[1]))
        if self.fault == "reset before the answer":
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(0)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._stream(request, int(body["max_tokens"]))
        finally:
            self.at_once -= 1

    async def _stream(self, request: web.Request, tokens: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(event: object) -> None:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        count = tokens - 1 if self.fault == "a token too few" else tokens
        for number in range(count):
            await asyncio.sleep(self.token_seconds)
            if number == 1 and self.fault == "reset in the stream":
                assert request.transport is not None
                request.transport.abort()
                return response
            if number == 1 and self.fault == "error in the stream":
                await send({"error": {"message": "worker gone"}})
                return response
            if number == 1 and self.fault == "hang":
                await asyncio.Event().wait()
            if number == 1 and self.fault == "garbage":
                await response.write(b"data: {nonsense\n\n")
            last = number == count - 1 and self.fault != "no finish reason"
            await send({"choices": [{"text": f"w{number} ", "finish_reason": "length" if last else None}]})
        await send({"choices": [], "usage": {"completion_tokens": count}})
        if self.fault != "no done":
            await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    app = web.Application()
    app.router.add_get("/v1/models", served.models)
    app.router.add_post("/v1/completions", served.completions)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()
