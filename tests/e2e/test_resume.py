"""SIGKILL of decode workers in the middle of dozens of streams: every client gets its whole answer, token for token."""

from __future__ import annotations

import pytest
from answers import FLOAT32_MARGIN
from cut_streams import CHAT, TEXT, Stream, Streams, questions_of
from local_cluster import Cluster, wait_until
from resume import everybody_let_in, kill_one, resumed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

OUTPUT_TOKENS = 160
"""Long enough that a worker dies in the middle of most answers, though a step takes milliseconds."""
STREAMS = 48
WANTED = 50
"""Streams that lose their worker in the middle."""
MOST_KILLS = 6


def test_streams_survive_their_decode_worker(whole: Cluster) -> None:
    questions = questions_of(whole, 6, output_tokens=OUTPUT_TOKENS, min_margin=FLOAT32_MARGIN)
    assert {question.path for question in questions} == {CHAT, TEXT}
    cut: list[Stream] = []
    with everybody_let_in(whole), Streams(whole.endpoint(), questions, STREAMS) as streams:
        before = resumed(whole)
        for kill in range(MOST_KILLS):
            if kill and kill % 2 == 0:
                wait_until("2P:2D", lambda: is_whole(whole), seconds=480, every_seconds=1)
            streams.paused = False
            # The first of two shares the streams with the other one; that has them all then, and leaves no such worker.
            least = 17 if kill % 2 == 0 else min(WANTED - len(cut), 34)
            name, lost = kill_one(whole, streams, engine=kill % 2 == 1, least=least)
            print(f"{name} was in the middle of {len(lost)} streams")
            cut += lost
            streams.paused = True
            wait_until("all streams to end", lambda: not streams.open, seconds=400)
            if len(cut) >= WANTED:
                break
        after = resumed(whole)
    wrong = [problem for stream in streams.ended if (problem := stream.wrong())]
    assert not wrong, "\n".join(wrong[:5])
    assert len(cut) >= WANTED
    assert after - before >= len(cut)
    gaps = sorted(stream.longest_gap_seconds() for stream in cut)
    print(f"{len(cut)} streams cut; longest pause of each: median {gaps[len(gaps) // 2]:.2f} s, most {gaps[-1]:.2f} s")
    wait_until("2P:2D", lambda: is_whole(whole), seconds=480, every_seconds=1)


def is_whole(cluster: Cluster) -> bool:
    """Two ready workers of each role."""
    return cluster.roles() == {"prefill": 2, "decode": 2}
