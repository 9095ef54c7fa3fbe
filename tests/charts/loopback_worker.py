"""A worker on its Pod's loopback address: speaks the contracts of engine and agent, and answers at once.

It stands where `fulcrum_worker` and vLLM would be, so that a test of the release's life takes seconds. It listens on
the ports of its configuration. A decode leg connects to NIXL's port of the prefill worker before it answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import msgspec
from aiohttp import web

from fulcrum.api.names import ENV_POD_IP, ENV_WORKER_CONFIG, Role
from fulcrum.api.worker import LoadReport, RoleRequest, WorkerConfig

TOKENS = 20
TOKEN_SECONDS = 0.02


class Worker:
    """Engine and agent of one Pod."""

    def __init__(self, config: WorkerConfig) -> None:
        self._ports = config.ports
        self._pulled = 0
        self._running = 0
        self._role = RoleRequest(role=Role.MIXED, role_epoch=0)
        self._draining = False

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a prefill leg with KV parameters, all else with tokens, one by one."""
        body = await request.json()
        count = min(TOKENS, body.get("max_completion_tokens") or body.get("max_tokens") or TOKENS)
        chat = request.path.endswith("/chat/completions")
        transfer = body.get("kv_transfer_params") or {}
        self._running += 1
        try:
            if transfer.get("do_remote_prefill"):
                _, writer = await asyncio.open_connection(transfer["remote_host"], transfer["remote_port"])
                writer.close()
                self._pulled += count > 1  # canaries ask for one token
            if body.get("stream"):
                return await self._stream(request, count, chat=chat)
            await asyncio.sleep(count * TOKEN_SECONDS)
        finally:
            self._running -= 1
        said = "word " * count
        choice = {"message": {"role": "assistant", "content": said}} if chat else {"text": said}
        answer: dict[str, Any] = {
            "id": request.headers.get("x-request-id", ""),
            "choices": [{"index": 0, "finish_reason": "length", **choice}],
            "usage": {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count},
        }
        if transfer.get("do_remote_decode"):
            remote = {"remote_engine_id": "e", "remote_block_ids": [[1]], "remote_host": os.environ[ENV_POD_IP]}
            answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_port": self._ports.nixl, **remote}
        return web.json_response(answer)

    async def _stream(self, request: web.Request, count: int, *, chat: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(count):
            await asyncio.sleep(TOKEN_SECONDS)
            word = {"delta": {"content": f"{number} "}} if chat else {"text": f"{number} "}
            choice = {"index": 0, "finish_reason": "length" if number + 1 == count else None, **word}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def load(self, _: web.Request) -> web.Response:
        """Say what runs here."""
        report = LoadReport(
            role=self._role.role,
            role_epoch=self._role.role_epoch,
            ready=True,
            draining=self._draining,
            running=self._running,
            waiting=0,
            queued_prompt_tokens=0,
            kv_usage=0.0,
            kv_held_for_peers=0.0,
            kv_capacity_tokens=100_000,
        )
        return web.Response(body=msgspec.json.encode(report))

    async def metrics(self, _: web.Request) -> web.Response:
        """Say how much runs, as engine and agent do."""
        figures = {"vllm:num_requests_running": self._running, "loopback_pulls": self._pulled}
        text = "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in figures.items())
        return web.Response(text=text, content_type="text/plain")

    async def role(self, request: web.Request) -> web.Response:
        """Take a role."""
        self._role = msgspec.json.decode(await request.read(), type=RoleRequest)
        return web.Response()

    async def drain(self, _: web.Request) -> web.Response:
        """Note that no new work should come."""
        self._draining = True
        return web.Response()

    async def run(self) -> None:
        """Serve until SIGTERM, then until what runs has ended."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        post, get = web.post, web.get
        routes = {
            self._ports.engine: [
                post("/v1/completions", self.complete), post("/v1/chat/completions", self.complete), get("/health", ok),
                get("/metrics", self.metrics),
            ],
            self._ports.agent: [
                get("/healthz", ok), get("/readyz", ok), get("/load", self.load), post("/role", self.role),
                post("/drain", self.drain), get("/metrics", self.metrics),
            ],
        }  # fmt: skip
        runners = []
        for port, served in routes.items():
            app = web.Application()
            app.add_routes(served)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=10)
            await runner.setup()
            await web.TCPSite(runner, os.environ[ENV_POD_IP], port).start()
            runners.append(runner)
        handshakes = await asyncio.start_server(greet, os.environ[ENV_POD_IP], self._ports.nixl)
        await stop.wait()
        self._draining = True
        # Gateways learn of the end from their watch; what they sent before is still served.
        await asyncio.sleep(1)
        while self._running:  # noqa: ASYNC110 - polled for a second or two, once; the kubelet ends it otherwise
            await asyncio.sleep(0.05)
        handshakes.close()
        for runner in runners:
            await runner.cleanup()


async def ok(_: web.Request) -> web.Response:
    """Say that all is well."""
    return web.Response(text="ok")


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a peer's handshake."""
    writer.close()


if __name__ == "__main__":
    asyncio.run(Worker(msgspec.json.decode(os.environ[ENV_WORKER_CONFIG], type=WorkerConfig)).run())
