"""What pages receive: everything once, then changes; and what all of it takes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboard.facts import Played, document, load, pod
from tests.machine import deadline_seconds

from fulcrum.dashboard import Board, ClusterFacts
from fulcrum.dashboard.board import MOST_PAGES, Page, TooManyPagesError
from fulcrum.dashboard.history import POINTS, SAMPLE_SECONDS, SERIES, History

Events = dict[str, dict[str, Any]]


def chat(*, version: int = 1, kv: float = 0.5, workers: int = 2, name: str = "chat", **status: Any) -> ClusterFacts:
    names = [f"{name}-p-{n}" for n in range(workers)]
    return ClusterFacts(
        document=document(name=name, version=version, **status),
        pods=[pod(each) for each in names],
        loads={each: load(kv_usage=kv if n == 0 else 0.1) for n, each in enumerate(names)},
    )


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def board_of(*clusters: ClusterFacts) -> tuple[Board, Played, Clock]:
    clock = Clock()
    board, source = Board(origin="test", waiting="", now=clock), Played(*clusters)
    board.source = source
    return board, source, clock


async def news(board: Board, page: Page) -> Events:
    text = (await board.news(page)).decode()
    lines = [block.split("\n") for block in text.strip().split("\n\n")]
    return {name.removeprefix("event: "): json.loads(data.removeprefix("data: ")) for name, data in lines}


async def test_a_page_gets_everything_once_and_changes_afterwards() -> None:
    board, source, clock = board_of(chat(ratio="1P:1D"), chat(name="code"))
    with board.open("ml/chat") as page:
        await board.refresh()
        first = await news(board, page)
        assert first["hello"]["series"] == list(SERIES)
        assert [each["name"] for each in first["fleet"]["rows"]] == ["chat", "code"]
        assert [each["name"] for each in first["cluster"]["workers"]] == ["chat-p-0", "chat-p-1"]
        assert first["cluster"]["detail"]["row"]["ratio"] == "1P:1D"
        assert len(first["cluster"]["points"]) == 1

        await board.refresh()
        quiet = await news(board, page)
        assert quiet["fleet"]["rows"] == quiet["cluster"]["workers"] == quiet["cluster"]["points"] == []
        assert "detail" not in quiet["cluster"]

        clock.seconds += SAMPLE_SECONDS
        source.clusters[0] = chat(version=2, kv=0.9, ratio="2P:0D")
        await board.refresh()
        third = await news(board, page)
        assert [each["ratio"] for each in third["fleet"]["rows"]] == ["2P:0D"]
        assert [(each["name"], each["kv"]) for each in third["cluster"]["workers"]] == [("chat-p-0", 0.9)]
        assert [each[0] for each in third["cluster"]["points"]] == [clock.seconds]


async def test_what_is_gone_is_named_once() -> None:
    board, source, _ = board_of(chat(), chat(name="code"))
    with board.open("ml/chat") as page:
        await board.refresh()
        await board.news(page)
        source.clusters = [chat(version=2, workers=1)]
        await board.refresh()
        gone = await news(board, page)
        assert (gone["fleet"]["gone"], gone["cluster"]["left"]) == (["ml/code"], ["chat-p-1"])
        source.clusters = []
        await board.refresh()
        gone = await news(board, page)
        assert gone["fleet"]["gone"] == ["ml/chat"]
        assert "cluster" not in gone


async def test_a_slow_page_skips_ticks_and_catches_up() -> None:
    board, source, _ = board_of(chat())
    with board.open("ml/chat") as page:
        await board.refresh()
        await board.news(page)
        for version in range(2, 50):
            source.clusters[0] = chat(version=version, kv=version / 100, ratio=f"{version}P:1D")
            await board.refresh()
        late = await news(board, page)
        assert [each["ratio"] for each in late["fleet"]["rows"]] == ["49P:1D"]
        assert [each["kv"] for each in late["cluster"]["workers"]] == [0.49]


async def test_only_watched_clusters_are_read_in_full_and_pages_are_bounded() -> None:
    board, source, _ = board_of(chat())
    with board.open("ml/chat"), board.open("ml/chat"):
        await board.refresh()
        assert source.watched == {"ml/chat"}
    await board.refresh()
    assert source.watched == set()
    pages = [board.open("") for _ in range(MOST_PAGES)]
    for each in pages:
        each.__enter__()
    with pytest.raises(TooManyPagesError), board.open(""):
        pass
    pages[0].__exit__(None, None, None)
    with board.open(""):
        pass


async def test_a_source_that_fails_is_said_and_what_was_known_stays(caplog: pytest.LogCaptureFixture) -> None:
    board, source, _ = board_of(chat())
    with board.open("ml/chat") as page:
        await board.refresh()
        await board.news(page)
        source.error = RuntimeError("a prompt")
        await board.refresh()
        told = await news(board, page)
        assert "RuntimeError" in told["fleet"]["problem"]
        assert "a prompt" not in told["fleet"]["problem"]
        assert told["fleet"]["gone"] == []
        source.error = None
        await board.refresh()
        assert (await news(board, page))["fleet"]["problem"] == ""


async def test_it_reads_soon_after_a_page_was_opened() -> None:
    board, source, _ = board_of(chat())
    running = asyncio.create_task(board.run())
    try:
        with board.open("") as idle:
            await board.news(idle)
        # Nobody looks: the next read would come after SAMPLE_SECONDS.
        with board.open("ml/chat") as page:
            async with asyncio.timeout(deadline_seconds(5)):
                while source.watched != {"ml/chat"}:
                    await board.news(page)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


FIGURE = st.none() | st.integers(0, 1000).map(float)


@given(st.lists(st.dictionaries(st.sampled_from(SERIES), FIGURE), max_size=30), st.integers(1, 12))
def test_a_ring_is_the_end_of_a_list(points: list[dict[str, float | None]], most: int) -> None:
    ring = History(points=most)
    for time_seconds, figures in enumerate(points):
        ring.add(time_seconds, figures)
    kept = [(at, *(figures.get(name) for name in SERIES)) for at, figures in enumerate(points)][-most:]
    assert ring.since(-1) == kept
    assert ring.since(len(points) - 3) == [each for each in kept if (each[0] or 0) > len(points) - 3]
    assert ring.last("rate", 5) == [figures.get("rate") for figures in points][-most:][-5:]


async def test_the_history_of_a_cluster_is_bounded_and_goes_with_it() -> None:
    board, source, clock = board_of(chat())
    for _ in range(2 * POINTS):
        await board.refresh()
        clock.seconds += SAMPLE_SECONDS
    (history,) = board._histories.values()
    assert len(history) == POINTS
    assert history._figures.buffer_info()[1] == POINTS * len(SERIES)
    source.clusters = []
    await board.refresh()
    assert not board._histories
    assert not board._statuses
