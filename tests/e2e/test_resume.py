"""SIGKILL of decode workers in the middle of dozens of streams: every client gets its whole answer, token for token."""

from __future__ import annotations

import pytest
from cut_streams import CHAT, TEXT, Stream, Streams, questions_of
from local_cluster import Cluster, wait_until
from resume import kill_one, resumed, wait_for_return

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

STREAMS = 36
WANTED = 50
"""Streams that lose their worker in the middle."""
MOST_KILLS = 6


def test_streams_survive_their_decode_worker(whole: Cluster) -> None:
    questions = questions_of(f"http://{whole.workers()[0].ip}:8000", whole.name, 6)
    assert {question.path for question in questions} == {CHAT, TEXT}
    before = resumed(whole)
    cut: list[Stream] = []
    with Streams(whole.endpoint(), questions, STREAMS) as streams:
        for kill in range(MOST_KILLS):
            workers = whole.workers()
            name, lost = kill_one(whole, streams, engine=kill % 2 == 1, least=STREAMS // 3)
            cut += lost
            streams.paused = True
            wait_until("all streams to end", lambda: not streams.open, seconds=120)
            print(f"{name} was in the middle of {len(lost)} streams")
            wait_for_return(whole, workers, name)
            if len(cut) >= WANTED:
                break
            streams.paused = False
    wrong = [problem for stream in streams.ended if (problem := stream.wrong())]
    assert not wrong, "\n".join(wrong[:5])
    assert len(cut) >= WANTED
    assert resumed(whole) - before >= len(cut)
    gaps = sorted(stream.longest_gap_seconds() for stream in cut)
    print(f"{len(cut)} streams cut; longest pause of each: median {gaps[len(gaps) // 2]:.2f} s, most {gaps[-1]:.2f} s")
