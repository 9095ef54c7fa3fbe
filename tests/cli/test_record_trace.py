"""From recorded requests to Mooncake's format, and back through its reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.record import MOST_TOKENS, Outcome, RecordedRequest
from fulcrum.cli.record import said
from fulcrum.cli.record import trace as module
from fulcrum.cli.record.trace import trace_of
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
    assert (first.qos_class, second.qos_class) == ("a", "default")
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


def test_equal_prefixes_stay_equal_where_prompts_differ_in_density() -> None:
    one, other = ids(request(3, **prompt(1600, (1, 2, 3, 4), 4.0)), request(2, **prompt(1610, (1, 2, 3, 4), 4.2)))
    assert one[:2] == other[:2], "6,144 bytes of 4.2 a token: 1,462 tokens"
    assert set(one[2:]).isdisjoint(other[2:])


@pytest.mark.parametrize("tokens", [2512, 5512])
def test_a_dense_prompt_does_not_stretch_the_prefix_that_it_shares(tokens: int) -> None:
    """All begin with 2,048 bytes of 512 tokens; the first one goes on with a token a byte."""
    dense = {"prompt_tokens": tokens, "units": 2048 + tokens - 512, "keys": (1, 2, 30, 31)}
    first, one, other = ids(
        request(3, **dense), request(2, **prompt(1600, (1, 2, 40, 41))), request(1, **prompt(1600, (1, 2, 50, 51)))
    )
    assert first[0] == one[0] == other[0]
    assert set(one[1:]).isdisjoint(other[1:])


def test_a_prompt_that_is_said_to_have_no_tokens_does_not_shrink_the_prefix_that_it_shares() -> None:
    shared = prompt(1600, (1, 2, 3, 4))
    _, one, other = ids(
        request(3, prompt_tokens=0, units=6400, keys=(1, 2, 3, 4)), request(2, **shared), request(1, **shared)
    )
    assert one[:3] == other[:3]


def test_a_prompt_of_absurd_length_is_written_without_blocks() -> None:
    shared = prompt(1600, (1, 2, 3, 4))
    absurd = {"prompt_tokens": MOST_TOKENS, "units": 8000, "keys": (1, 2)}
    trace = trace_of([request(3, **shared), request(2, **absurd), request(1, **shared)], ENDS)
    one, without, other = (msgspec.json.decode(line) for line in trace.lines)
    assert (without["input_length"], without["hash_ids"]) == (MOST_TOKENS, [])
    assert one["hash_ids"][:3] == other["hash_ids"][:3]
    assert trace.without_blocks == 1
    text = "\n".join(said(Recording(covers_from_seconds=60.0), trace, 60.0))
    assert "without hash_ids: 1, because a trace has at most 2,097,152 of them" in text


def test_the_oldest_requests_go_without_blocks_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BLOCKS", 8)
    lengths = [len(each) for each in ids(*(request(9 - place, **prompt(1600, (1, 2))) for place in range(4)))]
    assert lengths == [0, 0, 4, 4]


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


@pytest.mark.parametrize(("has_classes", "written"), [(True, "default"), (False, None)])
def test_a_class_called_default_is_named_where_there_are_classes(*, has_classes: bool, written: str | None) -> None:
    (line,) = trace_of([request(5, qos_class="default")], ENDS, has_classes=has_classes).lines
    assert msgspec.json.decode(line).get("qos") == written


def text_of(*requests: RecordedRequest, last_seconds: float = 60.0, assumed: int | None = None, **fields: Any) -> str:
    """What is said of a recording of these requests."""
    usual: dict[str, Any] = {"covers_from_seconds": 60.0, "limited_by": "g-1"}
    recording = Recording(requests=requests, **(usual | fields))
    return "\n".join(said(recording, trace_of(requests, ENDS, assumed_output_tokens=assumed), last_seconds))


def test_it_is_said_what_a_trace_covers() -> None:
    asked = [request(5), request(5), request(5), request(5, outcome=Outcome.REJECTED)]
    text = text_of(*asked, covers_from_seconds=61.0, last_seconds=3600.0, sampling_rate=0.25, retries=2)
    assert "3 of 4 requests of the last 61 s, as far back as gateway g-1 knows" in text
    assert "one request of 4" in text
    assert "2 retries" in text
    assert "left out: 1 were turned away" in text
    assert "33% higher" in text


@pytest.mark.parametrize(("covers", "limited"), [(60.0, False), (59.0, True)])
def test_a_gateway_limits_a_trace_only_where_its_ring_is_shorter_than_what_was_asked(
    covers: float, *, limited: bool
) -> None:
    assert ("as far back as gateway g-1 knows" in text_of(request(5), covers_from_seconds=covers)) is limited


LOAD = "the load was"
HIGHER = "the load was 100% higher than the trace"
OPTION = "--assume-output"


@pytest.mark.parametrize(
    ("left_out", "assumed", "wanted", "unwanted"),
    [
        ({"outcome": Outcome.REJECTED}, None, (f"{HIGHER}: --assume-output adds 10 of those left out",), ()),
        ({"outcome": Outcome.REJECTED}, 50, (), (LOAD, OPTION)),
        ({"outcome": Outcome.INVALID}, None, ("left out: 10 could not be served",), (LOAD, OPTION)),
        ({"batch": True}, None, ("left out: 10 are of a class of kind Batch",), (LOAD, OPTION)),
        ({"outcome": Outcome.UNREAD}, None, (HIGHER,), (OPTION,)),
        ({"outcome": Outcome.UNREAD}, 50, (HIGHER,), (OPTION,)),
        ({"outcome": Outcome.UNREAD, "batch": True}, None, (HIGHER, "turned away unread"), (OPTION, "Batch")),
    ],
)
def test_the_load_that_a_trace_lacks_is_said_with_what_would_add_it(
    left_out: dict[str, Any], assumed: int | None, wanted: tuple[str, ...], unwanted: tuple[str, ...]
) -> None:
    """Of 10 requests that are written, 10 that are not, and 10 of a class of kind Batch."""
    asked = [request(5, **fields) for fields in ({}, left_out, {"batch": True}) for _ in range(10)]
    text = text_of(*asked[:20], assumed=assumed)
    assert all(part in text for part in wanted)
    assert not any(part in text for part in unwanted)
    assert (HIGHER in text_of(*asked, assumed=assumed)) is (HIGHER in text), "requests of kind Batch change nothing"
