"""Batches by the official client against a gateway: every state, results, progress, owners, and what is refused."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.batch.conftest import MakeHouse, ended, lines, read
from tests.gateway.conftest import Engine, Seen, eventually
from tests.machine import deadline_seconds

from fulcrum.api.batch import BatchConfig
from fulcrum.batch.scheduler import Scheduler
from fulcrum.batch.sender import Sender
from fulcrum.batch.store import Store

TORN = (b'{"id": "batch_req_torn", "custom_id": "request-5', b'{"custom_id": "a\xc3"', b"\0" * 4096)
"""Ends of a line that was not written whole: cut, cut within a character, and blocks that were never filled."""


async def test_a_batch_by_the_official_client(make_house: MakeHouse) -> None:
    house = await make_house()
    client = house.client()
    file = await client.files.create(file=("in.jsonl", lines(5)), purpose="batch")
    assert (file.object, file.purpose, file.filename, file.bytes) == ("file", "batch", "in.jsonl", len(lines(5)))
    made = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"team": "a"}
    )
    assert (made.status, made.metadata) == ("validating", {"team": "a"})
    assert made.expires_at == made.created_at + 86_400
    batch = await ended(client, made.id)
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": 5, "completed": 5, "failed": 0}
    assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.error_file_id is None
    results = read((await client.files.content(batch.output_file_id)).text)
    assert sorted(each["custom_id"] for each in results) == [f"request-{number}" for number in range(5)]
    for each in results:
        assert each["error"] is None
        assert each["id"].startswith("batch_req_")
        assert each["response"]["status_code"] == 200
        assert each["response"]["body"]["usage"]["prompt_tokens"] == 7
        assert each["response"]["request_id"]
    assert [each.id async for each in client.batches.list()] == [batch.id]
    assert {each.id async for each in client.files.list()} == {file.id, batch.output_file_id}
    assert [each.id async for each in client.files.list(purpose="batch")] == [file.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    # The class of lines is the batch class's, whatever class the key has; the key itself went nowhere.
    assert await house.site.metric('fulcrum_gateway_requests_total{class="batch",code="200"}') == 5
    kept = b"".join(path.read_bytes() for path in house.directory.rglob("*") if path.is_file())
    assert b"secret-of" not in kept


async def test_a_key_sees_its_own_only(make_house: MakeHouse) -> None:
    house = await make_house()
    anna, ben = house.client(), house.client("secret-of-ben")
    file = await anna.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    batch = await anna.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for call in (
        ben.files.retrieve(file.id), ben.files.content(file.id), ben.files.delete(file.id),
        ben.batches.retrieve(batch.id), ben.batches.cancel(batch.id),
    ):  # fmt: skip
        with pytest.raises(openai.NotFoundError):
            await call
    with pytest.raises(openai.BadRequestError, match="There is no file"):
        await ben.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert [each async for each in ben.files.list()] == []
    assert [each async for each in ben.batches.list()] == []
    with pytest.raises(openai.AuthenticationError):
        await house.client("secret-of-nobody").files.list()
    # A key cannot name another one: only the cluster's token makes the name count.
    forged = house.client("secret-of-ben").with_options(default_headers={"x-fulcrum-key-name": "anna"})
    assert [each async for each in forged.files.list()] == []
    own = await ben.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    batch = await ben.batches.create(input_file_id=own.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert (await ended(ben, batch.id)).status == "completed"
    await ended(anna, (await anna.batches.list()).data[0].id)
    assert await house.site.metric('fulcrum_gateway_requests_total{class="batch",code="200"}') == 2


async def test_killed_at_any_time_it_answers_each_line_once(make_house: MakeHouse) -> None:
    """SIGKILL again and again while lines are answered; each has one result in the end."""
    house = await make_house(limits={"maxInFlight": 4})
    client = house.client()
    gates: list[asyncio.Event] = []

    async def slowly(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if len(engine.seen) % 7 == 0:  # these are under way when the process is killed
            gates.append(asyncio.Event())
            await gates[-1].wait()
        return False

    house.engine.behave = slowly
    file = await client.files.create(file=("in.jsonl", lines(60)), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    results = house.directory / "files"
    for kills in range(1, 4):
        await eventually(lambda kills=kills: len(gates) >= kills)  # type: ignore[misc]
        assert await house.end(signal.SIGKILL) == -signal.SIGKILL
        growing = max((path for path in results.iterdir() if path.suffix != ".json" and path.name != file.id),
                      key=lambda path: path.stat().st_size)  # fmt: skip
        with growing.open("ab") as output:
            output.write(TORN[kills - 1])  # what a crash of the node may leave
        kept = growing.read_bytes().count(b"\n")
        assert await counted_at_start(house.directory, made.id) == kept > 0
        for gate in gates:
            gate.set()
        await house.start()
        assert (await client.batches.retrieve(made.id)).request_counts.completed >= kept
    house.engine.behave = None
    for gate in gates:
        gate.set()
    batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 60)
    told = [each["custom_id"] for each in read((await client.files.content(batch.output_file_id)).text)]
    assert sorted(told) == sorted(f"request-{number}" for number in range(60))


async def counted_at_start(directory: Path, batch_id: str) -> int:
    """What the next process says that was completed, before it sends a line."""
    store = Store(directory)
    config = BatchConfig(cluster="c", gateway_host="127.0.0.1", directory=str(directory))
    await Scheduler(store, Sender(config, None), config.limits).recount()
    store.close()
    return store.batches[batch_id].completed


async def test_comes_again_where_nothing_is_idle(make_house: MakeHouse) -> None:
    """Of an engine whose speed is unknown nothing is idle: the lines wait, and expire with their batch."""
    house = await make_house(known=False, limits={"maxInFlight": 3})
    client = house.client()
    file = await client.files.create(file=("in.jsonl", lines(3)), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    refused = 'fulcrum_gateway_rejected_total{class="batch",reason="NothingIdle"}'
    async with asyncio.timeout(deadline_seconds(60)):
        while await house.site.metric(refused) < 5:  # noqa: ASYNC110  (a page has no event)
            await asyncio.sleep(0.05)
    batch = await client.batches.retrieve(made.id)
    assert (batch.status, batch.request_counts.to_dict()) == ("in_progress", {"total": 3, "completed": 0, "failed": 0})
    document = house.directory / "batches" / f"{made.id}.json"
    assert await house.end(signal.SIGTERM) == 0
    document.write_text(document.read_text().replace(f'"expires_at":{made.expires_at}', '"expires_at":1'))
    await house.start()
    batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.to_dict()) == ("expired", {"total": 3, "completed": 0, "failed": 3})
    assert batch.output_file_id is None
    late = read((await client.files.content(batch.error_file_id)).text)
    assert {each["error"]["code"] for each in late} == {"batch_expired"}


async def test_what_fails_is_in_the_error_file(make_house: MakeHouse) -> None:
    house = await make_house()
    client = house.client()
    content = lines(2) + lines(1, model="other").replace(b"request-0", b"request-9")
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.to_dict()) == ("completed", {"total": 3, "completed": 2, "failed": 1})
    (failed,) = read((await client.files.content(batch.error_file_id)).text)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("request-9", 404)
    assert failed["response"]["body"]["error"]["code"] == "model_not_found"


async def test_a_cancelled_one_keeps_what_is_done(make_house: MakeHouse) -> None:
    house = await make_house(limits={"maxInFlight": 2})
    client = house.client()
    never = asyncio.Event()

    async def stuck(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if len(engine.seen) > 3:
            await never.wait()
        return False

    house.engine.behave = stuck
    file = await client.files.create(file=("in.jsonl", lines(9)), purpose="batch")

    async def begin() -> Any:
        made = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        await eventually(lambda: len(house.engine.seen) >= 4)
        return made

    made = await begin()
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        await client.files.delete(file.id)
    cancelling = await client.batches.cancel(made.id)
    assert cancelling.status == "cancelling"
    batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.to_dict()) == ("cancelled", {"total": 9, "completed": 3, "failed": 0})
    assert len(read((await client.files.content(batch.output_file_id)).text)) == 3
    await eventually(lambda: house.engine.gone >= 1)  # what was under way ended with it
    with pytest.raises(openai.BadRequestError, match="that is completed cannot") as refused:
        await client.batches.cancel((await _completed(house, client, file.id)).id)
    assert refused.value.code == "batch_ended"


async def _completed(house: Any, client: openai.AsyncOpenAI, file_id: str) -> Any:
    house.engine.behave = None
    made = await client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    return await ended(client, made.id)


async def test_without_a_claim_it_says_how_to_turn_it_on(make_site: Any) -> None:
    site = await make_site()
    for path in ("/v1/files", "/v1/batches/batch_1"):
        answer = await site.get(path)
        assert answer.status == 404
        assert answer.json()["error"]["code"] == "batches_off"
        assert "spec.batch.claim" in answer.json()["error"]["message"]


async def test_while_it_is_away_clients_are_told(make_house: MakeHouse) -> None:
    house = await make_house(start=False)
    client = house.client().with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError) as failed:
        await client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    assert failed.value.status_code == 503
    assert failed.value.response.headers["retry-after"]
