"""From recorded requests to Mooncake's format, and back through its reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.record import Outcome, RecordedRequest
from fulcrum.cli.record import said
from fulcrum.cli.record.trace import Trace, trace_of
from fulcrum.rehearsal.rings import Recording
from fulcrum.simulation.traffic.load import load_trace

ENDS = (512, 2048, 4096, 6144, 8192, 10240)


def request(age: float, **fields: Any) -> RecordedRequest:
    usual: dict[str, Any] = {
        "age_seconds": age, "duration_seconds": 1.0, "outcome": Outcome.SERVED, "qos_class": "a", "batch": False,
        "prompt_tokens": 100, "output_tokens": 20, "ttft_seconds": 0.1, "retry_after_seconds": 0.0, "identity": 1,
        "units": 400, "number": 1, "keys": (),
    }  # fmt: skip
    return RecordedRequest(**(usual | fields))


def prompt(tokens: int, keys: tuple[int, ...], units_per_token: float = 4.0) -> dict[str, Any]:
    return {"prompt_tokens": tokens, "units": round(tokens * units_per_token), "keys": keys}


def ids(*requests: RecordedRequest) -> list[list[int]]:
    return [msgspec.json.decode(line)["hash_ids"] for line in trace_of(requests, ENDS).lines]


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    asked = [
        request(10.0, **prompt(2100, (1, 2, 3, 4, 5))),
        request(8.5, **prompt(2700, (1, 2, 3, 4, 5, 6)), output_tokens=0, qos_class="default"),
    ]
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"\n".join(trace_of(asked, ENDS).lines) + b"\n")
    first, second = load_trace(file)
    assert (first.arrival_seconds, second.arrival_seconds) == (0.0, 1.5)
    assert (first.prompt_tokens, first.output_tokens, second.output_tokens) == (2100, 20, 1)
    assert (first.qos_class, second.qos_class) == ("a", None), "the second one is of a cluster without classes"
    assert first.prefix_hash_ids[:4] == second.prefix_hash_ids[:4], "8,192 bytes are 2,048 tokens: four blocks"
    assert set(first.prefix_hash_ids[4:]).isdisjoint(second.prefix_hash_ids)
    assert (len(first.prefix_hash_ids), len(second.prefix_hash_ids)) == (5, 6)


def test_prompts_share_the_blocks_of_the_prefix_that_they_share() -> None:
    one, other, third = ids(
        request(3, **prompt(1600, (1, 2, 3, 4))),
        request(2, **prompt(1600, (1, 2, 30, 40))),
        request(1, **prompt(600, ())),
    )
    assert one[:1] == other[:1]
    assert set(one[1:]).isdisjoint(other[1:])
    assert set(third).isdisjoint(one + other)


def test_a_prefix_has_as_many_tokens_as_its_first_prompt_says() -> None:
    """Estimates differ a little from prompt to prompt; what is shared must stay shared."""
    one, other = ids(request(3, **prompt(1600, (1, 2, 3, 4), 4.0)), request(2, **prompt(1610, (1, 2, 3, 4), 4.2)))
    assert one[:3] == other[:3]


def test_ids_are_numbered_anew_so_that_exports_cannot_be_joined() -> None:
    shared = prompt(1600, (1, 2, 3, 4))
    first = ids(request(9, **prompt(600, (7, 8))), request(3, **shared))
    second = ids(request(3, **shared))
    assert first[1] != second[0]
    assert second[0] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "written", "assumed"),
    [
        ({"outcome": Outcome.REJECTED, "output_tokens": None}, None, 50),
        ({"outcome": Outcome.PENDING, "output_tokens": 7}, None, 50),
        ({"outcome": Outcome.LEFT, "output_tokens": 70}, None, 70),
        ({"outcome": Outcome.FAILED, "output_tokens": 0}, None, 50),
        ({"output_tokens": None}, None, 50),
        ({"outcome": Outcome.UNREAD}, None, None),
        ({"outcome": Outcome.INVALID}, None, None),
        ({"batch": True}, None, None),
        ({}, 20, 20),
    ],
)
def test_answers_of_unknown_length(fields: dict[str, Any], written: int | None, assumed: int | None) -> None:
    for length, wanted in ((None, written), (50, assumed)):
        trace = trace_of([request(5, **fields)], ENDS, assumed_output_tokens=length)
        found = [msgspec.json.decode(line)["output_length"] for line in trace.lines]
        assert found == ([] if wanted is None else [wanted])
        assert sum(count for _, count in trace.left_out) == (wanted is None)


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 30_000), st.lists(st.integers(0, 3), max_size=6)), max_size=20
    )
)
def test_every_trace_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, list[int]]]
) -> None:
    asked = []
    for age, (tokens, units, path) in enumerate(rows):
        keys, key = [], 0
        for step in path:
            key = key * 4 + step + 1
            keys.append(key)
        asked.append(request(100.0 - age, prompt_tokens=tokens, units=units, keys=tuple(keys)))
    trace = trace_of(asked, ENDS)
    assert len(trace.lines) == len(asked)
    if asked:
        file = tmp_path_factory.mktemp("trace") / "trace.jsonl"
        file.write_bytes(b"\n".join(trace.lines))
        assert [each.prompt_tokens for each in load_trace(file)] == [max(tokens, 1) for tokens, _, _ in rows]


def test_it_is_said_what_a_trace_covers() -> None:
    recording = Recording(
        requests=tuple(request(5) for _ in range(4)), covers_from_seconds=61.0, limited_by="g-1", sampling_rate=0.25,
        retries=2,
    )  # fmt: skip
    text = "\n".join(said(recording, Trace(lines=(b"{}",) * 3, left_out=(("were turned away", 1),))))
    assert "3 of 4 requests of the last 61 s, as far back as gateway g-1 knows" in text
    assert "one request of 4" in text
    assert "2 retries" in text
    assert "left out: 1 were turned away" in text
    assert "33% higher" in text
