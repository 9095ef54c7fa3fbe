"""Who may not ask is told before the rest is read; what anybody asks is in no log."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Client, Engine, MakeSite, Seen, Site, eventually

from fulcrum.api.names import Role

CANARY = "canary-9f3b"
BODY: dict[str, Any] = {"model": "m", "prompt": CANARY, "max_tokens": 3}
KEY = "secret-of-canary-key"
AUTHORIZED = f"Authorization: Bearer {KEY}\r\n"


def head(length: str, *, key: str = "wrong-key-of-canary", path: str = "/v1/completions", more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n"
        f"{more}{length}\r\n\r\n"
    ).encode()


async def guarded(make_site: MakeSite, tmp_path: Path, *engines: Engine, **settings: Any) -> Site:
    (tmp_path / "app").write_text(KEY)
    return await make_site(
        *(engines or (Engine("m", Role.MIXED),)), config={"api_keys_directory": str(tmp_path)}, **settings
    )


@pytest.mark.parametrize(
    "wire",
    [
        head("Content-Length: 8000000"),
        head("Content-Length: 8000000", path="/v1/anything"),
        head("Content-Length: 8000000", more="Expect: 100-continue\r\n"),
        head("Transfer-Encoding: chunked") + b"5\r\nhello\r\n",
        head("Content-Length: 8000000", path="http://g/v1/completions") + b"x" * 100_000,
    ],
    ids=["length", "path", "expect", "chunked", "absolute"],
)
async def test_without_a_key_the_body_is_not_waited_for(make_site: MakeSite, tmp_path: Path, wire: bytes) -> None:
    site = await guarded(make_site, tmp_path)
    client = await site.connect()
    client.send(wire)
    answer = await client.answer()
    assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert await client.reader.read() == b""
    assert (await site.post(BODY, headers=AUTHORIZED)).status == 200


async def test_behind_another_request_too(make_site: MakeSite, tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def wait(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        await go_on.wait()
        return False

    site = await guarded(make_site, tmp_path, Engine("m", Role.MIXED, behave=wait))
    client = await site.connect()
    client.post(BODY, headers=AUTHORIZED)
    await eventually(lambda: bool(site.engines["m"].seen))
    client.send(head("Content-Length: 8000000") + b"x" * 1000)
    (connection,) = site.gateway.connections
    await eventually(lambda: connection._parser.broken)
    go_on.set()
    assert [(await client.answer()).status for _ in range(2)] == [200, 401]


async def test_a_good_key_may_send_it_all(make_site: MakeSite, tmp_path: Path) -> None:
    site = await guarded(make_site, tmp_path)
    client = await site.connect()
    data = json.dumps({**BODY, "prompt": "x" * 1_000_000}).encode()
    client.send(head(f"Content-Length: {len(data)}", key=KEY, more="Expect: 100-continue\r\n"))
    assert (await client.answer()).status == 100
    client.send(data)
    assert (await client.answer()).status == 200
    assert len(site.gateway.bodies) == 0


async def test_bodies_that_do_not_end_are_bounded_together(make_site: MakeSite) -> None:
    from fulcrum.gateway.http.budget import Budget

    site = await make_site(Engine("m", Role.MIXED))
    site.gateway.bodies = Budget(1_000_000)
    patient, *others = [await site.connect() for _ in range(11)]
    patient.send(head("Content-Length: 100000") + b"x" * 70_000)
    await eventually(lambda: site.gateway.bodies.total_bytes >= 70_000)
    for client in others:
        client.send(head("Content-Length: 8000000") + b"x" * 200_000)
    answers = [asyncio.ensure_future(client.answer()) for client in others]
    await eventually(lambda: sum(answer.done() for answer in answers) >= 5)
    assert site.gateway.bodies.total_bytes <= 1_000_000
    patient.send(b"x" * 30_000)
    assert (await patient.answer()).status == 400  # it was read to its end, and is no JSON
    assert (await site.post(BODY)).status == 200
    for client in others:
        client.close()
    ended = await asyncio.gather(*answers, return_exceptions=True)
    refused = [each for each in ended if not isinstance(each, BaseException)]
    assert len(refused) >= 5
    for answer in refused:
        assert (answer.status, answer.headers["x-fulcrum-rejected"]) == (503, "Overloaded")
    await eventually(lambda: len(site.gateway.bodies) == 0 and site.gateway.bodies.total_bytes == 0)


async def test_too_many_in_one_piece(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED))
    client = await site.connect()
    client.send(b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n" * 5000)
    seen: list[int] = []
    while not seen or seen[-1] == 200:
        seen.append((await client.answer()).status)
    assert seen[-1] == 429
    assert (await site.post(BODY)).status == 200


async def test_logs_hold_neither_prompts_nor_keys(
    make_site: MakeSite, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fulcrum.gateway.unhandled import log_unhandled

    asyncio.get_running_loop().set_exception_handler(log_unhandled)
    caplog.set_level(logging.DEBUG)
    answers = ["ok"]

    async def behave(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if answers[0] == "echo":
            await engine.send(writer, 500, {"error": {"message": f"cannot serve {seen.body['prompt']}"}})
        elif answers[0] == "refuse":
            await engine.send(writer, 400, {"error": {"message": f"cannot serve {seen.body['prompt']}"}})
        elif answers[0] == "nonsense":
            writer.write(f"{CANARY} 200 OK\r\ncontent-length: {CANARY}\r\n\r\n".encode())
            await writer.drain()
        elif answers[0] == "break" and seen.leg != "prefill":
            await engine.head(writer)
            await engine.event(writer, json.dumps({"choices": [{"text": seen.body["prompt"]}]}))
            writer.transport.abort()
        else:
            return False
        return True

    engines = [Engine(name, role, behave=behave) for name, role in (("p", Role.PREFILL), ("d", Role.DECODE))]
    site = await guarded(make_site, tmp_path, *engines, access_log=True)

    async def ask(kind: str, body: object = BODY, headers: str = AUTHORIZED) -> int:
        answers[0] = kind
        return (await site.post(body, headers=headers)).status

    assert await ask("ok") == 200
    assert await ask("ok", {**BODY, "stream": True}) == 200
    assert await ask("ok", headers="") == 401
    assert await ask("ok", headers=f"Authorization: Bearer {CANARY}-no-key\r\n") == 401
    assert await ask("ok", {**BODY, "model": CANARY}) == 404
    assert await ask("ok", {**BODY, "max_tokens": CANARY}) == 400
    assert await ask("ok", f'{{"prompt": "{CANARY}'.encode()) == 400
    assert await ask("ok", b"\xff" + CANARY.encode()) == 400
    assert await ask("ok", headers=f"{AUTHORIZED}x-llm-d-slo-ttft-ms: {CANARY}\r\n") == 400
    assert await ask("refuse") == 400
    for kind in ("echo", "nonsense", "break"):
        await ask(kind, {**BODY, "stream": True})
        await ask(kind)
    client = await site.connect()
    client.send(f"POST /{CANARY} HTTP/1.1\r\nHost: g\r\n{CANARY}\r\n\r\n".encode())
    await client.answer()

    def crash(*_: object) -> None:
        try:
            json.loads("{}")[f"{CANARY} inside"]
        except KeyError as error:
            raise ValueError(CANARY) from error

    with monkeypatch.context() as broken:
        broken.setattr(site.gateway.admission.core, "consider", crash)
        assert await ask("ok") == 500
        broken.setattr(site.gateway, "answer", crash)
        client = Client(*await asyncio.open_connection("127.0.0.1", site.gateway.port))
        client.post(BODY, headers=AUTHORIZED)
        await eventually(lambda: "unhandled" in caplog.text)
        client.close()
    (tmp_path / "bad").write_text('{"key": "' + CANARY)
    (tmp_path / "short").write_text("cana")
    assert site.gateway.admission.keys is not None
    site.gateway.admission.keys.refresh()

    assert await ask("ok") in (200, 502)
    written = caplog.text
    assert "request_crashed" in written
    assert "ValueError" in written
    assert "api_key_invalid" in written
    assert "leg_failed" in written
    for secret in (CANARY, KEY, "wrong-key"):
        assert secret not in written
