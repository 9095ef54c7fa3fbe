"""Trace loaders: what they read, and what they say about what they cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fulcrum.simulation.traffic import Request, TraceError, load_trace, prepared
from fulcrum.simulation.workload import Workload

SHARED_TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_counts_seconds_from_the_first_request(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "trace.csv",
        AZURE_HEADER + "2023-11-16 18:15:46.6805900,374,44\n\n2023-11-16 18:15:50.9951690,396,109\n",
    )
    first, second = load_trace(path)
    assert first == Request(arrival_seconds=0.0, prompt_tokens=374, output_tokens=44)
    assert second.arrival_seconds == pytest.approx(4.314579, abs=1e-6)
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)


def test_azure_2024_has_a_zone_and_other_column_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "trace.csv",
        "ContextTokens,TIMESTAMP,GeneratedTokens\n7,2024-05-10 00:00:01.5+00:00,3\n5,2024-05-10 00:00:00+00:00,2\n",
    )
    assert [(r.arrival_seconds, r.prompt_tokens) for r in load_trace(path)] == [(0.0, 5), (1.5, 7)]


def test_mooncake_reads_milliseconds_and_prefix_hashes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "trace.jsonl",
        '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}\n'
        '{"timestamp": 2500, "input_length": 10, "output_length": 1, "hash_ids": []}\n',
    )
    assert load_trace(path) == (
        Request(arrival_seconds=0.0, prompt_tokens=600, output_tokens=5, prefix_hash_ids=(0, 7)),
        Request(arrival_seconds=1.5, prompt_tokens=10, output_tokens=1),
    )


GOOD_MOONCAKE = '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "t.csv:1: TIMESTAMP: no such column; expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("t.csv", "TIMESTAMP,ContextTokens\n", "t.csv:1: GeneratedTokens: no such column"),
        ("t.csv", AZURE_HEADER, "t.csv:1: file: holds no requests"),
        ("t.csv", AZURE_HEADER + "yesterday,1,1\n", "t.csv:2: TIMESTAMP: no time like"),
        (
            "t.csv",
            AZURE_HEADER + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:46,x,1\n",
            "t.csv:3: ContextTokens: expected a",
        ),
        ("t.csv", AZURE_HEADER + "2023-11-16 18:15:46,1,0\n", "t.csv:2: GeneratedTokens: expected at least 1, got 0"),
        ("t.csv", AZURE_HEADER + "2023-11-16 18:15:46,1\n", "t.csv:2: line: expected 3 columns, got 2"),
        (
            "t.csv",
            AZURE_HEADER + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:46+00:00,1,1\n",
            "t.csv:3: TIMESTAMP: has a time zone",
        ),
        ("t.jsonl", "", "t.jsonl:1: file: holds no requests"),
        ("t.jsonl", GOOD_MOONCAKE + "{oops\n", "t.jsonl:2: line: not JSON"),
        ("t.jsonl", GOOD_MOONCAKE + "[]\n", "t.jsonl:2: line: Expected `object`"),
        ("t.jsonl", '{"timestamp": 0, "input_length": 6}\n', "t.jsonl:1: output_length: missing"),
        ("t.jsonl", GOOD_MOONCAKE.replace("}", ', "qos": 7}'), "t.jsonl:1: qos: Expected `str | null`"),
        ("t.jsonl", GOOD_MOONCAKE.replace("6", '"6"'), "t.jsonl:1: input_length: Expected `int | float`, got `str`"),
        (
            "t.jsonl",
            GOOD_MOONCAKE.replace(": 0,", ": -1,"),
            "t.jsonl:1: timestamp: expected at least 0 ms",
        ),
        ("t.jsonl", GOOD_MOONCAKE.replace("6", "0"), "t.jsonl:1: input_length: expected at least 1, got 0"),
        (
            "t.jsonl",
            GOOD_MOONCAKE.replace("[0]", "[0, 1]"),
            "t.jsonl:1: hash_ids: 2 blocks are more than 6 tokens fill",
        ),
        ("t.jsonl", GOOD_MOONCAKE.replace("[0]", '["a"]'), "t.jsonl:1: hash_ids[0]: Expected `int`, got `str`"),
        ("t.parquet", "", "t.parquet:0: file name: must end in .csv (Azure) or .jsonl (Mooncake)"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert f"{tmp_path}/{message}" in str(caught.value)


ROW = "2023-11-16 18:15:46,374,44\r\n"
QUOTED = '"TIMESTAMP", "ContextTokens" ,"GeneratedTokens"\r\n'
BURST = '"Timestamp","Model","Request tokens","Response tokens"\n0.5,"a, b",374,44.0\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", AZURE_HEADER + ROW),
        ("t.csv", QUOTED + ROW.replace("374", '"374.0"').replace("44", " 44.00 ")),
        ("t.csv", BURST),
        ("t.jsonl", '{"timestamp": 0, "input_length": 374, "output_length": 44}\n'),
        ("t.jsonl", '{"timestamp": 0, "input_length": 374.0, "output_length": 44.0}\n'),
    ],
)
def test_what_spreadsheets_save_is_read(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding=encoding, newline="")
    assert [(each.prompt_tokens, each.output_tokens) for each in load_trace(path)] == [(374, 44)]


LATIN = "TIMESTAMP,ContextTokens,GeneratedTokens,Name\n2023-11-16 18:15:46,1,1,a\n2023-11-16 18:15:46,1,1,\xe9\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", LATIN.encode("latin-1"), "t.csv:3: encoding: is no UTF-8 text; save it as UTF-8"),
        ("t.csv", (AZURE_HEADER + ROW).encode("utf-16-le"), "t.csv:1: TIMESTAMP: no such column"),
        ("t.csv", (AZURE_HEADER + ROW).encode("utf-16")[:-1], "t.csv:2: encoding: is no UTF-16 text"),
        ("t.csv", (AZURE_HEADER + ROW).replace(",", ";").encode(), "t.csv:1: TIMESTAMP: no such column"),
        ("t.csv", (AZURE_HEADER + "x" * 200_000 + ",1,1").encode(), "t.csv:2: line: is no CSV: field larger than"),
        ("t.csv", (AZURE_HEADER + ROW.replace("374", "472.5")).encode(), "t.csv:2: ContextTokens: expected a whole"),
        ("t.csv", (AZURE_HEADER + ROW.replace("374", "1e400")).encode(), "t.csv:2: ContextTokens: expected a whole"),
        ("t.csv", (AZURE_HEADER + ROW.replace("374", "9" * 5000)).encode(), "t.csv:2: ContextTokens: expected a whole"),
        (
            "t.csv",
            (AZURE_HEADER + ROW.replace("374", "2147483648")).encode(),
            "t.csv:2: ContextTokens: expected at most 2147483647, got '2147483648'",
        ),
        (
            "t.csv",
            (AZURE_HEADER + ROW + ROW.replace("44", "1" + "0" * 25)).encode(),
            "t.csv:3: GeneratedTokens: expected at most 2147483647",
        ),
        (
            "t.csv",
            (AZURE_HEADER + ROW + ROW.replace("2023", "2034")).encode(),
            "t.csv:3: TIMESTAMP: is 3.47e+08 s from the first line; ten years (315576000 s) are the most",
        ),
        ("t.csv", BURST.replace("44.0", "1e10").encode(), "t.csv:2: Response tokens: expected a whole number"),
        ("t.csv", BURST.replace("374", "4e9").encode(), "t.csv:2: Request tokens: expected a whole number"),
        ("t.csv", BURST.replace("374", "4000000000").encode(), "t.csv:2: Request tokens: expected at most"),
        ("t.csv", (BURST + "1e308,a,1,1\n").encode(), "t.csv:3: Timestamp: is 1e+308 s from the first line"),
        (
            "t.jsonl",
            GOOD_MOONCAKE.replace("6", "10000000000").encode(),
            "t.jsonl:1: input_length: expected at most 2147483647, got 10000000000",
        ),
        ("t.jsonl", GOOD_MOONCAKE.replace("5", "1.5e15").encode(), "t.jsonl:1: output_length: expected at most"),
        ("t.jsonl", GOOD_MOONCAKE.replace("5", "1e300").encode(), "t.jsonl:1: output_length: expected a whole number"),
        (
            "t.jsonl",
            (GOOD_MOONCAKE + GOOD_MOONCAKE.replace(": 0,", ": 1e17,")).encode(),
            "t.jsonl:2: timestamp: is 1e+14 s from the first line; ten years (315576000 s) are the most",
        ),
        ("t.jsonl", GOOD_MOONCAKE.replace(": 0,", ": 1e400,").encode(), "t.jsonl:1: timestamp: Number out of range"),
        ("t.jsonl", GOOD_MOONCAKE.replace("[0]", "[-1]").encode(), "t.jsonl:1: hash_ids[0]: Expected `int` >= 0"),
        (
            "t.jsonl",
            GOOD_MOONCAKE.replace("[0]", "[123456789012345678901234567890]").encode(),
            "t.jsonl:1: hash_ids[0]: Expected `int` <= 4611686018427387903",
        ),
        ("t.jsonl", GOOD_MOONCAKE.encode() + b'{"timestamp": "\xe9"}', "t.jsonl:2: encoding: is no UTF-8 text"),
        ("t.jsonl", GOOD_MOONCAKE.encode() + b'{"x": ' + b"[" * 5000, "t.jsonl:2: line: not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_and_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert f"{tmp_path}/{message}" in str(caught.value)


def test_the_largest_numbers_make_a_workload(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "trace.jsonl",
        '{"timestamp": 1700000000000, "input_length": 2147483647, "output_length": 1, '
        '"hash_ids": [4611686018427387903]}\n'
        '{"timestamp": 2000000000000, "input_length": 1, "output_length": 2147483647}\n',
    )
    load = Workload.of(load_trace(path))
    assert load.arrival_seconds.tolist() == [0.0, 3e8]
    assert load.prompt_tokens.tolist() == [2147483647, 1]
    assert load.output_tokens.tolist() == [1, 2147483647]


def test_prepared_scales_cuts_and_limits() -> None:
    requests = [Request(arrival_seconds=s, prompt_tokens=100, output_tokens=50) for s in (0.0, 2.0, 4.0)]
    assert prepared(requests, speed=2, limit=2, max_prompt_tokens=80) == (
        Request(arrival_seconds=0.0, prompt_tokens=80, output_tokens=50),
        Request(arrival_seconds=1.0, prompt_tokens=80, output_tokens=50),
    )
    assert prepared(requests, max_output_tokens=60)[0].output_tokens == 50
    with pytest.raises(ValueError, match="speed must be above 0"):
        prepared(requests, speed=0)
    with pytest.raises(ValueError, match="speed must be above 0"):
        prepared(requests, speed=float("nan"))


@pytest.mark.skipif(not SHARED_TRACES.is_dir(), reason="recorded traces are not shipped with the project")
@pytest.mark.parametrize(
    ("name", "count", "seconds", "mean_prompt", "mean_output"),
    [
        ("azure_conv_2023.csv", 19366, 3502, 1155, 211),
        ("mooncake_conversation.jsonl", 12031, 3537, 12035, 343),
    ],
)
def test_recorded_traces(name: str, count: int, seconds: int, mean_prompt: int, mean_output: int) -> None:
    requests = load_trace(SHARED_TRACES / name)
    assert len(requests) == count
    assert requests[-1].arrival_seconds == pytest.approx(seconds, abs=1)
    assert sum(r.prompt_tokens for r in requests) / count == pytest.approx(mean_prompt, abs=1)
    assert sum(r.output_tokens for r in requests) / count == pytest.approx(mean_output, abs=1)
