"""Requests through a gateway, read back from its ring: what became of them, and never their text."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.gateway.conftest import Engine, MakeSite, Seen, Site, eventually
from tests.machine import deadline_seconds

from fulcrum.admission import Admission
from fulcrum.api.internal_token import record_token
from fulcrum.api.names import Role
from fulcrum.api.record import Outcome, RecordedRequest, RingPage, decode, read_page
from fulcrum.api.serving_types import AdmissionPolicy, ClassKind, ClassMatch, QosClass
from fulcrum.cli.record.trace import trace_of
from fulcrum.gateway.dispatch.recorder import KEY_ENDS, Recorder, record_page
from fulcrum.rehearsal.rings import merge
from fulcrum.routing.prefixes import BYTE_ENDS
from fulcrum.simulation.traffic.load import load_trace
from fulcrum.telemetry.rings import read_rings

TOKEN = "cluster-token"
SECRET_TEXT = "attack at dawn "
LONG = SECRET_TEXT * 700
"""10,500 bytes, of which five ends of prefixes and 10,240 bytes are kept."""


def pair(**options: object) -> tuple[Engine, Engine]:
    return Engine("p", Role.PREFILL), Engine("d", Role.DECODE, **options)  # type: ignore[arg-type]


async def ask(
    site: Site, path: str = "/record", *, token: str | None = TOKEN, method: str = "GET"
) -> tuple[int, bytes]:
    """Status and body of an answer of the inner port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    sent = "" if token is None else f"Authorization: Bearer {token}\r\n"
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: g\r\n{sent}\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), deadline_seconds(20))
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def ring(site: Site) -> tuple[RingPage, list[RecordedRequest]]:
    status, body = await ask(site)
    assert status == 200
    page = read_page(body)
    return page, decode(page)


async def test_what_became_of_requests_is_read_back(make_site: MakeSite) -> None:
    waiting = asyncio.Event()

    async def behave(engine: Engine, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if "hold" not in str(seen.body.get("user")):
            return False
        await engine.head(writer)
        for number in range(2):
            await engine.event(writer, json.dumps({"choices": [{"text": f"d{number} "}]}))
        waiting.set()
        await asyncio.Event().wait()
        return True

    site = await make_site(*pair(behave=behave, tokens=5), token=TOKEN)
    await site.post({"model": "m", "prompt": LONG, "max_tokens": 5})
    await site.post({"model": "m", "prompt": LONG + "and more", "max_tokens": 5, "stream": True})
    await site.post({"model": "m", "prompt": "no", "max_tokens": -1})  # cannot be read: no request
    leaver = await site.connect()
    leaver.post({"model": "m", "prompt": "bye", "max_tokens": 9, "stream": True, "user": "hold"})
    await waiting.wait()
    _, found = await ring(site)
    assert [request.outcome for request in found] == [Outcome.SERVED, Outcome.SERVED, Outcome.PENDING]
    assert found[-1].output_tokens == 2, "so far"
    leaver.close()
    recorder = site.gateway.recorder
    assert recorder is not None
    await eventually(lambda: len(recorder.ring) == 3)
    page, found = await ring(site)
    whole, streamed, left = found
    assert (whole.outcome, whole.output_tokens, whole.prompt_tokens) == (Outcome.SERVED, 5, 7), "as the engine says"
    assert (streamed.outcome, streamed.output_tokens) == (Outcome.SERVED, 5)
    assert streamed.ttft_seconds is not None
    assert streamed.tpot_seconds is not None
    assert 0 <= streamed.ttft_seconds <= streamed.duration_seconds < deadline_seconds(20)
    assert (left.outcome, left.output_tokens) == (Outcome.LEFT, 2)
    assert left.qos_class == page.classes[0] == "default"
    assert page.age_of_start_seconds >= whole.age_seconds >= streamed.age_seconds >= left.age_seconds >= 0
    known = sum(end <= len(LONG) for end in KEY_ENDS)
    assert whole.keys == streamed.keys[:known]
    assert len(whole.keys) == known
    assert left.keys == ()
    assert page.key_ends[:known] == KEY_ENDS[:known]


async def test_requests_that_are_turned_away_are_load_too(make_site: MakeSite) -> None:
    site = await make_site(token=TOKEN)
    answer = await site.post({"model": "m", "prompt": LONG, "max_tokens": 5})
    assert answer.status == 503
    await site.post({"model": "m", "prompt": LONG, "max_tokens": 5})
    _, (first, second) = await ring(site)
    assert first.outcome is second.outcome is Outcome.REJECTED
    assert first.identity == second.identity
    assert first.units == second.units
    assert 0 < first.retry_after_seconds <= float(answer.headers["retry-after"]) < first.retry_after_seconds + 1
    assert first.output_tokens is None
    assert first.prompt_tokens == pytest.approx(len(LONG) / 4, rel=0.1)


def test_requests_that_were_not_read_count_for_the_class_of_the_rest() -> None:
    classes = (
        QosClass(name="night", kind=ClassKind.BATCH, priority=0, match=ClassMatch(header="x-class", value="night")),
        QosClass(name="chat", priority=1),
    )
    kept = Recorder(Admission(AdmissionPolicy.PREDICTIVE, classes), seed=7, shares_seed=True, now=0.0)
    kept.unread(1.0)
    (request,) = decode(kept.read(2.0))
    assert (request.outcome, request.qos_class, request.batch) == (Outcome.UNREAD, "chat", False)


async def test_short_prompts_are_known_again_by_all_of_their_text(make_site: MakeSite) -> None:
    site = await make_site(token=TOKEN)
    for prompt in ("aaa", "bbb", "aaa"):
        await site.post({"model": "m", "prompt": prompt})
    _, (one, other, again) = await ring(site)
    assert one.identity == again.identity != other.identity
    assert one.units == other.units


async def test_there_is_no_text_and_no_clock_time_in_it(make_site: MakeSite) -> None:
    site = await make_site(*pair(), token=TOKEN)
    await site.post({"model": "m", "prompt": LONG, "user": "alice-the-user"})
    _, body = await ask(site)
    for text in (SECRET_TEXT.strip(), "attack", "alice", "d0", TOKEN):
        assert text.encode() not in body
    page, (request,) = await ring(site)
    assert 0 <= request.age_seconds <= page.age_of_start_seconds < deadline_seconds(60), "ages, not a clock's time"


async def test_without_a_token_prefix_keys_would_mean_nothing_elsewhere(make_site: MakeSite) -> None:
    site = await make_site(*pair())
    await site.post({"model": "m", "prompt": LONG})
    status, body = await ask(site, token=None)
    (request,) = decode(read_page(body))
    assert (status, request.keys) == (200, ())


@pytest.mark.parametrize(
    ("token", "path", "method", "status"),
    [
        (None, "/record", "GET", 401),
        ("cluster-tokem", "/record", "GET", 401),
        (None, "/record", "HEAD", 401),
        (TOKEN, "/record?last=30", "GET", 200),
        (record_token(TOKEN), "/record", "GET", 200),
        (record_token(TOKEN), "/sent-prefixes", "POST", 401),
        (record_token(record_token(TOKEN)), "/record", "GET", 401),
        (TOKEN, "/record?last=soon", "GET", 400),
        (TOKEN, "/record?last=-1", "GET", 400),
        (TOKEN, "/record?last=nan", "GET", 400),
        (TOKEN, "/record", "POST", 405),
        (TOKEN, "/recorded", "GET", 404),
    ],
)
async def test_who_may_read_it(make_site: MakeSite, token: str | None, path: str, method: str, status: int) -> None:
    site = await make_site(*pair(), token=TOKEN)
    found, body = await ask(site, path, token=token, method=method)
    assert found == status
    if status == 401:
        assert body in (b"", b"Send the cluster's record token: Authorization: Bearer TOKEN\n")
    assert (await site.get("/record")).status == 404, "clients never"


async def test_one_large_answer_is_under_way_at_a_time(make_site: MakeSite) -> None:
    site = await make_site(*pair(), token=TOKEN)
    _, other = await asyncio.open_connection("127.0.0.1", site.gateway.inside_port)
    site.gateway._inside._large = other
    assert (await ask(site))[0] == 503
    site.gateway._inside._large = None
    other.close()
    assert (await ask(site))[0] == 200
    assert site.gateway._inside._large is None, "and it is over"


async def test_off_takes_no_memory_and_says_so(make_site: MakeSite) -> None:
    site = await make_site(*pair(), token=TOKEN, config={"record": False})
    await site.post({"model": "m", "prompt": LONG})
    assert site.gateway.recorder is None
    status, body = await ask(site)
    assert status == 404
    assert b"spec.gateway.record is Off: set it to On" in body
    assert record_page(None, "", 0.0)[0] == 404


async def test_a_gateway_that_goes_is_noted(make_site: MakeSite) -> None:
    site = await make_site(*pair(), token=TOKEN)
    site.gateway.share(3)
    assert (await ring(site))[0].neighbour_left_seconds is None
    site.gateway.share(2)
    left = (await ring(site))[0].neighbour_left_seconds
    assert left is not None
    assert 0 <= left < deadline_seconds(60)


async def test_what_is_read_becomes_a_trace_that_the_simulator_plays(make_site: MakeSite, tmp_path: Path) -> None:
    site = await make_site(*pair(tokens=5), token=TOKEN)
    for turn in range(3):
        await site.post({"model": "m", "prompt": LONG * (turn + 1), "max_tokens": 5, "stream": True})
    await site.post({"model": "m", "prompt": "x" * 9000, "max_tokens": 5, "stream": True})
    there = {"g": f"127.0.0.1:{site.gateway.inside_port}"}
    read = await read_rings(there, token=TOKEN, last_seconds=600)
    refused = await read_rings(there, token=None, last_seconds=600)
    gone = await read_rings({"g": "127.0.0.1:1"}, token=None, last_seconds=600)
    assert refused[0].problem.startswith("it answers 401")
    assert gone[0].page is None
    assert gone[0].problem
    recording = merge(read)
    assert (recording.complete, len(recording.requests)) == (True, 4)
    trace = trace_of(recording.requests, KEY_ENDS)
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"\n".join(trace.lines))
    requests = load_trace(file)
    assert [request.output_tokens for request in requests] == [5, 5, 5, 5]
    assert trace.left_out == ()


def test_kept_prefixes_are_those_of_about_512_tokens() -> None:
    assert KEY_ENDS[:6] == (512, 2048, 4096, 6144, 8192, 10240)
    assert list(KEY_ENDS) == sorted(set(KEY_ENDS))
    assert set(KEY_ENDS) <= set(BYTE_ENDS)
    assert len(KEY_ENDS) == 64
