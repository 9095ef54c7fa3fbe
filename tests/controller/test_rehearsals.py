"""Rehearsals of the operator: rings over HTTP, a real process that plays, and whatever fails is no answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar
from unittest.mock import Mock, patch

import msgspec
import pytest
from aiohttp import web
from tests.machine import deadline_seconds, eventually
from tests.rehearsal.worlds import SLO, SPEED, split, watch
from tests.simulation.worlds import poisson, qos_classes

from fulcrum.admission import Admission
from fulcrum.api.gateway_types import Gateway, RecordPolicy
from fulcrum.api.internal_token import HEADER, authorization
from fulcrum.api.names import Role
from fulcrum.api.record import (
    CONTENT_TYPE,
    PATH,
    SPREAD,
    Outcome,
    RecordedRequest,
    RecordError,
    RingPage,
    pack_rows,
    read_page,
    unpack_rows,
)
from fulcrum.api.serving_types import Admission as Admission_
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.play_process import PlayError, PlayProcess
from fulcrum.controller.rehearsals import (
    ESTIMATED_SECONDS,
    FRESH_SECONDS,
    PAUSE_SECONDS,
    UNANSWERED_SECONDS,
    Asked,
    Rehearsals,
    _Cluster,
)
from fulcrum.decide.measurements import Measurements
from fulcrum.decide.rehearsed import Wanted, rehearses
from fulcrum.performance.layout import Layout
from fulcrum.rehearsal.believed import believed
from fulcrum.rehearsal.case import Case, Played, played
from fulcrum.rehearsal.foretold import Course, Foretold
from fulcrum.rehearsal.memory import Memory
from fulcrum.rehearsal.rings import ReadRing
from fulcrum.rehearsal.trust import Forecast, Trust
from fulcrum.rehearsal.tuning import TUNING

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY, OTHER = ("team", "chat"), ("other", "chat")
TOKEN = "secret"
STANDING = split(1, 4)
ENDS = (512, 2048)


def make_spec(**balance: Any) -> InferenceClusterSpec:
    document = {
        "model": {"name": "m"},
        "pools": [{"name": "p", "accelerator": "H100", "workers": {"min": 5, "max": 5}}],
        "slo": {"ttft": "3s", "tpot": "150ms", "attainment": SLO.attainment},
        "admission": {"policy": "Off"},
        "balance": {"rehearse": "On", **balance},
    }
    return msgspec.convert(document, InferenceClusterSpec)


T = TypeVar("T")

SPEC = make_spec()


@cache
def ring(at: float = 60.0, rate: float = 2.2, prompt: int = 4000, standing: Layout = STANDING) -> RingPage:
    """One gateway's ring after so many seconds under 1P:4D, which is too little prefill for prompts so long."""
    load = poisson(rate=rate, count=int(110 * rate), prompt=prompt, output=12, seed=31, spread=0.3)
    [(_, seen)], result = watch(load, standing, [at])
    rows = []
    for place in range(len(seen)):
        arrival, end, ttft = (
            float(column[place]) for column in (seen.arrival_seconds, result.end_seconds, result.ttft_seconds)
        )
        over = end <= at
        rows.append(
            (
                arrival, min(end, at) - arrival, ttft if arrival + ttft <= at else -1.0, -1.0,
                int(load.prompt_tokens[place]), 4 * int(load.prompt_tokens[place]),
                int(load.output_tokens[place]) if over else int(seen.made_tokens[place]),
                (place + 1) * SPREAD % 2**64, place, 0, Outcome.SERVED if over else Outcome.PENDING, (),
            )
        )  # fmt: skip
    admission = Admission(
        AdmissionPolicy.OFF,
        (),
        ttft_seconds=SLO.ttft_seconds,
        tpot_seconds=SLO.tpot_seconds,
        attainment=0.9,
        gateways=1,
    )
    return RingPage(
        age_of_start_seconds=at, covers_from_seconds=at, classes=("default",), batch=(False,), key_ends=ENDS,
        admission=admission.learnt.state(at), packed_rows=(pack_rows(rows),),
    )  # fmt: skip


def wanted(key: str = "k", standing: Layout = STANDING) -> Wanted:
    return Wanted(key=key, standing=standing, flexible=frozenset({"p"}), mixes=True, stands_since=None)


def make_asked(gateways: Mapping[str, str], **others: Any) -> Asked:
    measured = Measurements(speeds={"p": SPEED}, start_seconds=60.0)
    given: dict[str, Any] = {"uid": "u", "spec": SPEC, "wanted": wanted(), "model": None, "measurements": measured}
    return Asked(**(given | others), gateways=gateways, token=TOKEN)


def case(*rings: ReadRing, **others: Any) -> Case:
    given: dict[str, Any] = {
        "uid": "u", "spec": SPEC, "wanted": wanted(), "time": NOW, "memory": Memory(), "speeds": {"p": SPEED},
        "start_seconds": 60.0, "pairs": (), "model": None,
    }  # fmt: skip
    return Case(rings=rings or (ReadRing(gateway="g", page=ring()),), **(given | others))


@asynccontextmanager
async def gateway(page: RingPage) -> AsyncIterator[str]:
    """Address of what answers as a gateway's inner port does."""

    async def record(request: web.Request) -> web.Response:
        if request.headers.get(HEADER) != authorization(TOKEN):
            return web.Response(status=401)
        return web.Response(body=msgspec.msgpack.encode(page), content_type=CONTENT_TYPE)

    app = web.Application()
    app.router.add_get(PATH, record)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def count(metrics: Metrics, result: str) -> int:
    line = f'fulcrum_operator_rehearsals_total{{result="{result}"}} '
    return next(int(float(each.split()[-1])) for each in metrics.page().decode().splitlines() if each.startswith(line))


@asynccontextmanager
async def rehearsing(
    metrics: Metrics, clock: Clock, *, process: PlayProcess | None = None
) -> AsyncIterator[tuple[Rehearsals, list[tuple[str, str]]]]:
    woken: list[tuple[str, str]] = []
    now = lambda: NOW + timedelta(seconds=clock.now - Clock.now)  # noqa: E731
    long_seconds = deadline_seconds(60)  # it plays when nothing else wants the cores
    process = process or PlayProcess(deadline_seconds=long_seconds, start_seconds=long_seconds)
    async with Rehearsals(metrics, wake=woken.append, now=now, process=process, clock=clock) as rehearsals:
        yield rehearsals, woken


async def test_a_cluster_in_trouble_is_rehearsed(metrics: Metrics, clock: Clock) -> None:
    async with gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        assert rehearsals.known(KEY, SPEC, Measurements()) == Measurements(rehearses=True)
        rehearsals.ask(KEY, make_asked({"g": address}))
        await eventually(lambda: woken == [KEY], what="an answer")
        found = rehearsals.known(KEY, SPEC, Measurements()).rehearsed
        assert found is not None
        assert (found.key, found.time, found.compared[0].layout) == ("k", NOW, STANDING)
        assert found.chosen != STANDING
        assert found.compared[-1].inside > found.compared[0].inside + 0.2
        assert rehearsals.known(OTHER, SPEC, Measurements()).rehearsed is None
        clock.now += FRESH_SECONDS + 1
        assert rehearsals.known(KEY, SPEC, Measurements()).rehearsed is None, "it is old"
    assert count(metrics, "answered") == 1
    assert "fulcrum_operator_plays_total 0.0" not in metrics.page().decode()


async def test_the_process_answers_as_this_one_does(metrics: Metrics, clock: Clock) -> None:
    async with gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        rehearsals.ask(KEY, make_asked({"g": address}))
        await eventually(lambda: woken == [KEY], what="an answer")
        answered = rehearsals.known(KEY, SPEC, Measurements()).rehearsed
    here = played(case())
    assert here.rehearsed is not None
    assert answered is not None
    assert answered.chosen == here.rehearsed.chosen
    assert played(case()) == here, "twice the same"


async def test_a_silent_gateway_is_no_smaller_load(metrics: Metrics, clock: Clock) -> None:
    async with gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        rehearsals.ask(KEY, make_asked({"g": address, "h": "127.0.0.1:1"}))
        await eventually(lambda: count(metrics, "unknown") == 1, what="a rehearsal that came to nothing")
        assert rehearsals.known(KEY, SPEC, Measurements()).rehearsed is None
        assert woken == []
        clock.now += PAUSE_SECONDS
        rehearsals.ask(KEY, make_asked({"g": address}))
        await eventually(lambda: woken == [KEY], what="an answer once all are heard")


async def test_estimates_decide_for_a_while_where_there_was_no_answer_for_long(metrics: Metrics, clock: Clock) -> None:
    """Gateways of an older release tell no requests."""
    unset = make_spec(rehearse=None)
    async with rehearsing(metrics, clock) as (rehearsals, _):

        def rehearses_now(spec: InferenceClusterSpec) -> bool:
            return rehearsals.known(KEY, spec, Measurements()).rehearses

        async def go_on(seconds: float) -> None:
            end = clock.now + seconds
            while clock.now < end:
                before = count(metrics, "unknown")
                rehearsals.ask(KEY, make_asked({"g": "127.0.0.1:1"}))
                await eventually(lambda before=before: count(metrics, "unknown") > before, what="no answer")  # type: ignore[misc]
                clock.now += 20.0

        await go_on(UNANSWERED_SECONDS - 40.0)
        assert rehearses_now(unset), "a gateway may be new"
        await go_on(60.0)
        assert not rehearses_now(unset)
        assert rehearses_now(SPEC), "who asks for rehearsals gets nothing else"
        clock.now += ESTIMATED_SECONDS
        assert rehearses_now(unset), "they are tried again"
        await go_on(20.0)
        assert rehearses_now(unset)
        # One that failed long ago says nothing.
        clock.now += 3600.0
        await go_on(20.0)
        assert rehearses_now(unset)


class Dead(PlayProcess):
    """Each play fails."""

    async def play(self, question: Callable[[], T]) -> T:
        raise PlayError("killed")


class Busy(PlayProcess):
    """Plays one question for ever."""

    async def play(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("process", [Dead(), Busy()])
async def test_roles_are_never_held_for_long_without_an_answer(
    metrics: Metrics, clock: Clock, process: PlayProcess
) -> None:
    """However long the pause after failures is, or the queue."""
    unset, held, seconds = make_spec(rehearse=None), 0.0, 3 * 3600.0
    async with rehearsing(metrics, clock, process=process) as (rehearsals, _):
        if isinstance(process, Busy):
            rehearsals.ask(OTHER, make_asked({}))
            await asyncio.sleep(0)
        while clock.now < Clock.now + seconds:
            if rehearsals.known(KEY, unset, Measurements()).rehearses:
                held += 5.0
                rehearsals.ask(KEY, make_asked({}))
                await asyncio.sleep(0)
            clock.now += 5.0
    share = UNANSWERED_SECONDS / (UNANSWERED_SECONDS + ESTIMATED_SECONDS)
    assert held / seconds == pytest.approx(share, rel=0.1)


async def test_a_gateway_that_does_not_answer_holds_up_no_other_cluster(metrics: Metrics, clock: Clock) -> None:
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        with patch("fulcrum.telemetry.rings.DEADLINE_SECONDS", deadline_seconds(600)):
            rehearsals.ask(KEY, make_asked({"g": address, "h": f"127.0.0.1:{port}"}))
            await asked.wait()
            rehearsals.ask(OTHER, make_asked({"g": address}))
            await eventually(lambda: woken == [OTHER], what="an answer of the other one")
            assert count(metrics, "unknown") == 0


async def test_a_clock_that_is_set_back_makes_nothing_wait(metrics: Metrics, clock: Clock) -> None:
    async with gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        rehearsals.ask(KEY, make_asked({"g": address}))
        await eventually(lambda: woken == [KEY], what="an answer")
        cluster, hour = rehearsals._clusters[KEY], timedelta(hours=1)
        later = (NOW + hour).timestamp()
        assert cluster.answer is not None
        cluster.answer = replace(cluster.answer, time=NOW + hour)
        cluster.memory = Memory(asked_at=later, trust=Trust(wrong=3, lost=True, checked_at=later))
        known = rehearsals.known(KEY, SPEC, Measurements())
        assert (known.plays_distrusted, known.rehearsed) == (False, None)
        clock.now += PAUSE_SECONDS
        rehearsals.ask(KEY, make_asked({"g": address}))
        await eventually(lambda: woken == [KEY, KEY], what="an answer by the clock of now")


async def test_many_gateways_are_asked_for_fewer_seconds(metrics: Metrics, clock: Clock) -> None:
    asked: list[float] = []

    async def read(gateways: Mapping[str, str], *, token: str | None, last_seconds: float) -> tuple[ReadRing, ...]:
        asked.append(last_seconds)
        return tuple(ReadRing(gateway=name, page=ring()) for name in gateways)

    with patch("fulcrum.controller.rehearsals.read_rings", read):
        async with rehearsing(metrics, clock, process=Dead()) as (rehearsals, _):
            for count_of in (3, 20, 100):
                rehearsals.ask((KEY[0], str(count_of)), make_asked(dict.fromkeys(map(str, range(count_of)), "")))
            await eventually(lambda: len(asked) == 6, what="all that is read")
    first, *_ = sorted(asked, reverse=True)
    assert first == TUNING.memory_seconds
    assert min(each for each in asked if each > 1) == TUNING.shortest_seconds


async def test_a_process_that_dies_costs_one_answer_and_the_others_go_on(metrics: Metrics, clock: Clock) -> None:
    long_seconds = deadline_seconds(60)
    process = PlayProcess(deadline_seconds=long_seconds, start_seconds=long_seconds)
    process._deadline_seconds = 0.0001
    async with gateway(ring()) as address, rehearsing(metrics, clock, process=process) as (rehearsals, woken):
        for key in (KEY, OTHER):
            rehearsals.ask(key, make_asked({"g": address}))
        await eventually(lambda: count(metrics, "failed") == 2, what="two that took too long")
        assert woken == []
        process._deadline_seconds = long_seconds
        clock.now += PAUSE_SECONDS
        rehearsals.ask(KEY, make_asked({"g": address}))
        clock.now += PAUSE_SECONDS  # after a failure twice as long
        for key in (KEY, OTHER):
            rehearsals.ask(key, make_asked({"g": address}))
        assert count(metrics, "failed") == 2
        await eventually(lambda: sorted(woken) == sorted([KEY, OTHER]), what="both")


async def test_a_newer_question_replaces_one_that_waits_and_none_follows_at_once(
    metrics: Metrics, clock: Clock
) -> None:
    async with gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        rehearsals.ask(OTHER, make_asked({"g": address}))
        rehearsals.ask(KEY, make_asked({"g": address}, wanted=wanted("old")))
        rehearsals.ask(KEY, make_asked({"g": address}, wanted=wanted("new")))
        await eventually(lambda: sorted(woken) == sorted([KEY, OTHER]), what="both")
        found = rehearsals.known(KEY, SPEC, Measurements()).rehearsed
        assert found is not None
        assert found.key == "new"
        rehearsals.ask(KEY, make_asked({"g": address}))
        await asyncio.sleep(0)
        assert count(metrics, "answered") == 2


async def test_a_cluster_that_is_gone_is_forgotten(metrics: Metrics, clock: Clock) -> None:
    async with gateway(ring()) as address, rehearsing(metrics, clock) as (rehearsals, woken):
        rehearsals.ask(KEY, make_asked({"g": address}))
        rehearsals.forget(KEY)
        rehearsals.forget(KEY)
        rehearsals.ask(OTHER, make_asked({"g": address}))
        await eventually(lambda: woken == [OTHER], what="the other one")
        assert rehearsals.known(KEY, SPEC, Measurements()).rehearsed is None


def test_what_cannot_be_played_says_why() -> None:
    def problem(**others: Any) -> str:
        found = played(case(**others))
        assert found == Played(memory=Memory(), problem=found.problem)
        return found.problem

    assert problem(wanted=wanted(standing=split(1, 400))) == (
        "100% of the requests are known, and 401 workers have no scale model for them"
    )
    assert problem(speeds={}) == "how fast all workers are is not known"
    half = msgspec.structs.replace(ring(), sampling_depths=(0,))
    found = played(case(ReadRing(gateway="g", page=half)))
    assert found.problem == "50% of the requests are known, and 5 workers have no scale model for them"
    found = played(case(ReadRing(gateway="g", page=ring()), ReadRing(gateway="h", page=None, problem="it is away")))
    assert found.problem == "not all gateways told their requests: h (it is away)"


@pytest.mark.parametrize("sampled", [False, True])
def test_a_large_cluster_is_rehearsed_as_a_scale_model(*, sampled: bool) -> None:
    """Ten times as many workers and requests; or twice as many, of whose requests gateways keep a half."""
    times = 2 if sampled else 10
    standing = split(times, 4 * times)
    page = ring(rate=2.2 * times, standing=standing)
    if sampled:
        page = msgspec.structs.replace(page, sampling_depths=(0,))
    answered = played(case(ReadRing(gateway="g", page=page), wanted=wanted(standing=standing)))
    found, told = answered.rehearsed, answered.memory.trust.forecast
    assert found is not None
    assert told is not None
    assert told.layout == found.chosen, "scaled anew, it need not be what was played"
    assert found.compared[0].layout == standing
    assert found.chosen.total == standing.total
    assert found.chosen.count(Role.PREFILL) > times or found.chosen.mixed
    assert found.requests < 1000


def test_no_more_of_a_large_cluster_is_read_than_its_scale_model_needs() -> None:
    standing = split(40, 160)
    page = ring(rate=2.2 * 40, standing=standing)
    (packed,) = page.packed_rows
    told = case(ReadRing(gateway="g", page=page), wanted=wanted(standing=standing))
    found = played(told)
    assert found.rehearsed is not None
    assert found.rehearsed.chosen != standing
    with patch("fulcrum.api.record.RecordedRequest", Mock(side_effect=RecordedRequest)) as made:
        assert played(told) == found
    assert 0 < made.call_count < len(unpack_rows(packed)) / 3


def test_more_than_memory_holds_is_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many gateways, each of whose rings is full: a sample of them is enough."""
    monkeypatch.setattr("fulcrum.rehearsal.case._MOST_PACKED_BYTES", sum(map(len, ring().packed_rows)) // 2)
    standing = split(2, 8)
    found = played(
        case(ReadRing(gateway="g", page=ring(rate=4.4, standing=standing)), wanted=wanted(standing=standing))
    )
    assert found.problem == ""
    assert found.rehearsed is not None
    assert found.rehearsed.chosen.count(Role.PREFILL) > 2 or found.rehearsed.chosen.mixed


def test_of_many_requests_a_scale_model_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A play of all of them would take so long that no other layout is played."""
    standing = split(2, 8)
    asked = case(ReadRing(gateway="g", page=ring(rate=4.4, standing=standing)), wanted=wanted(standing=standing))
    whole = played(asked)
    monkeypatch.setattr("fulcrum.rehearsal.case._LEAST_PLAYS", TUNING.most_played / 300)
    few = played(asked)
    assert few.rehearsed is not None
    assert few.plays > 1
    assert few.played_requests / few.plays < 0.7 * whole.played_requests / whole.plays
    assert few.rehearsed.compared[0].layout == standing
    assert few.rehearsed.chosen.count(Role.PREFILL) > 2 or few.rehearsed.chosen.mixed


def test_a_scale_model_has_as_much_fewer_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = split(2, 8)
    rings = [ReadRing(gateway=str(number), page=ring(rate=4.4, standing=standing)) for number in range(4)]
    monkeypatch.setattr("fulcrum.rehearsal.case._LEAST_PLAYS", TUNING.most_played / 1200)
    with patch("fulcrum.rehearsal.case.believed", side_effect=believed) as made:
        assert played(case(*rings, wanted=wanted(standing=standing))).rehearsed is not None
    assert 1 <= made.call_args.kwargs["gateways"] < 4


def test_where_no_other_layout_could_be_played_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no finding that what stands is best."""
    monkeypatch.setattr("fulcrum.rehearsal.rehearse.TUNING", replace(TUNING, most_played=10))
    found = played(case())
    assert found.rehearsed is None
    assert re.fullmatch(r"a play of \d+ requests is too long to compare layouts", found.problem)


def test_time_that_is_not_known_is_not_idle() -> None:
    """A gateway that is new, or whose neighbour went, tells a few seconds: they say nothing of the load before."""
    page = msgspec.structs.replace(ring(at=100.0), covers_from_seconds=40.0)
    found = played(case(ReadRing(gateway="g", page=page)))
    assert found.problem == "only the last 40 s are known: a gateway is new, or went"
    some = msgspec.structs.replace(ring(at=100.0), neighbour_left_seconds=70.0)
    found = played(case(ReadRing(gateway="g", page=some)))
    assert found.rehearsed is not None
    assert found.memory.since >= NOW.timestamp() - 70.0
    assert found.rehearsed.off == 0.0, "the play begins empty, and the cluster did not"


def test_classes_that_a_gateway_does_not_have_yet_have_no_margins() -> None:
    spec = msgspec.structs.replace(SPEC, admission=Admission_(classes=qos_classes(gold=10)))
    assert played(case(spec=spec)).rehearsed is not None


def test_a_page_of_absurd_parts_is_refused_before_it_is_kept() -> None:
    for absurd in (
        {"classes": ("x",) * 100_000, "admission": None},
        {"classes": ("x" * 100_000,), "admission": None},
        {"packed_rows": (b"",) * 100_000},
        {"key_ends": (1,) * 1_000},
        {"sampling_depths": (-1,)},
    ):
        body = msgspec.msgpack.encode(msgspec.structs.replace(ring(), **absurd))
        with pytest.raises(RecordError, match="is no ring"):
            read_page(body)


def test_a_cluster_that_is_well_is_not_worth_a_rehearsal() -> None:
    found = played(case(ReadRing(gateway="g", page=ring(rate=1.0, prompt=500))))
    assert found == Played(memory=Memory())


def test_what_stayed_is_not_played_again_until_more_is_known() -> None:
    first = played(case())
    assert first.plays > 0
    stayed = replace(first.memory, stayed=STANDING)
    assert played(case(memory=stayed)) == Played(memory=stayed)


def test_gateways_are_put_together() -> None:
    """Half of the requests each: a smaller load it is not."""
    page = ring()
    rows = [row for packed in page.packed_rows for row in msgspec.msgpack.decode(packed)]
    halves = [msgspec.structs.replace(page, packed_rows=(pack_rows(rows[at::2]),)) for at in (0, 1)]
    found = played(case(*(ReadRing(gateway=str(at), page=half) for at, half in enumerate(halves))))
    whole = played(case())
    assert found.rehearsed is not None
    assert whole.rehearsed is not None
    assert found.rehearsed.requests == whole.rehearsed.requests
    assert found.rehearsed.chosen != STANDING


@pytest.mark.parametrize(
    ("spec", "wants"),
    [
        (SPEC, True),
        (make_spec(mode="Observe"), True),
        (make_spec(mode="Manual"), False),
        (make_spec(mode="External"), False),
        (make_spec(rehearse="Off"), False),
        (msgspec.structs.replace(SPEC, gateway=Gateway(record=RecordPolicy.OFF)), False),
    ],
)
def test_whether_a_cluster_rehearses(spec: InferenceClusterSpec, *, wants: bool) -> None:
    assert rehearses(spec) is wants
    measured = Rehearsals(Metrics(), wake=lambda _: None, now=lambda: NOW).known(KEY, spec, Measurements())
    assert measured.rehearses is wants


def test_known_keeps_what_was_measured() -> None:
    measured = Measurements(start_seconds=7.0)
    rehearsals = Rehearsals(Metrics(), wake=lambda _: None, now=lambda: NOW)
    assert rehearsals.known(KEY, SPEC, measured) == replace(measured, rehearses=True)


def test_what_was_foretold_is_held_against_what_came() -> None:
    """A forecast that nothing is late, of a cluster of whose prompts most are."""
    now, every = NOW.timestamp(), tuple(float(second) for second in range(100))
    told = Foretold(draws=(Course(every, (True,) * 100),), off=0.0)
    wrong = Trust(
        wrong=2,
        checked_at=now - 100.0,
        forecast=Forecast(foretold=told, layout=STANDING, asked_at=now - 100.0, until=now),
    )
    memory = Memory(since=now - 110.0, asked_at=now - 100.0, key="k", trust=wrong)
    page = ring(at=110.0)
    found = played(case(ReadRing(gateway="g", page=page), memory=memory))
    assert found.rehearsed is not None
    assert found.rehearsed.chosen == STANDING
    assert found.rehearsed.checked is not None
    assert found.rehearsed.checked.foretold == 1.0
    assert found.rehearsed.checked.served < 0.8
    assert found.memory.distrusts(now)
    others = played(case(ReadRing(gateway="g", page=page), memory=replace(memory, key="before")))
    assert others.rehearsed is not None
    assert (others.memory.distrusts(now), others.rehearsed.checked) == (False, None), "it was about other workers"
    assert others.rehearsed.chosen != STANDING
    replaced = replace(memory, key="before", trust=replace(wrong, wrong=3, lost=True))
    held = played(case(ReadRing(gateway="g", page=page), memory=replaced))
    assert held.rehearsed is not None
    assert (held.memory.distrusts(now), held.rehearsed.chosen) == (True, STANDING), (
        "a worker that is replaced makes no play right"
    )


async def test_a_cluster_of_wrong_plays_is_told_so_and_no_other(metrics: Metrics, clock: Clock) -> None:
    async with rehearsing(metrics, clock) as (rehearsals, _):
        rehearsals._clusters[KEY] = _Cluster(
            memory=Memory(asked_at=NOW.timestamp(), trust=Trust(wrong=3, lost=True, checked_at=NOW.timestamp()))
        )
        assert rehearsals.known(KEY, SPEC, Measurements()).plays_distrusted
        assert not rehearsals.known(OTHER, SPEC, Measurements()).plays_distrusted
        rehearsals._clusters[KEY].estimated_until = clock.now + ESTIMATED_SECONDS
        estimated = rehearsals.known(KEY, make_spec(rehearse=None), Measurements())
        assert (estimated.rehearses, estimated.plays_distrusted) == (False, True), "estimates give no worker back"
        assert not rehearsals.known(KEY, make_spec(rehearse="Off"), Measurements()).plays_distrusted
        clock.now += TUNING.memory_seconds
        assert not rehearsals.known(KEY, SPEC, Measurements()).plays_distrusted
