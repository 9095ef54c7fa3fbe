"""`fulcrum kv-check`: what counts as drift, answers of engines that are none, and what users get wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.cli.app import main
from fulcrum.cli.kv_check import DRIFTED
from fulcrum.cli.kv_check.drift import Answer, drift_between
from fulcrum.cli.kv_check.engine import Asking, EngineError, ask

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PROMPT = (7, 8, 9)


def answer(*tokens: int, decoded: float = -0.1, forced: float = -0.1, of: int | None = None) -> Answer:
    """An answer in which the likeliest tokens of a step are its own and the number after it, 2 nats behind."""
    return Answer(
        prompt=PROMPT,
        tokens=tokens,
        decoded=(decoded,) * len(tokens),
        likeliest=tuple({token: decoded, token + 1: decoded - 2} for token in tokens),
        forced=(forced,) * (len(tokens) if of is None else of),
    )


@pytest.mark.parametrize(
    ("other", "equal", "first", "decoded_mean", "decoded_max"),
    [
        (answer(1, 2, 3), 3, None, 0.0, 0.0),
        (answer(1, 2, 3, decoded=-0.4), 3, None, 0.3, 0.3),
        (answer(1, 1, 3), 1, 1, 1.0, 2.0),  # the reference's token is its second likeliest
        (answer(9, 9, 9), 0, 0, 2.0, 2.0),  # it is not among them: at most as likely as the last of them
        (answer(1, 2, of=3), 2, 2, 0.0, 0.0),  # it ends earlier
    ],
)
def test_tokens_as_they_are_decoded(
    other: Answer, equal: int, first: int | None, decoded_mean: float, decoded_max: float
) -> None:
    """Tokens count until the answers part, and the one at which they do."""
    found = drift_between([answer(1, 2, 3)], [other])
    assert (found.equal_tokens, found.answer_tokens, found.first_difference) == (equal, 3, first)
    assert (found.decoded_mean, found.decoded_max) == pytest.approx((decoded_mean, decoded_max))
    assert found.forced_mean == found.forced_max == 0


def test_a_longer_answer_differs_where_the_reference_ends() -> None:
    found = drift_between([answer(1, 2)], [answer(1, 2, 3, of=2)])
    assert (found.equal_tokens, found.first_difference, found.decoded_tokens) == (2, 2, 2)


def test_drift_is_the_larger_mean_over_all_prompts() -> None:
    found = drift_between([answer(1, 2), answer(3)], [answer(1, 2, forced=-0.4), answer(3)])
    assert found.forced_mean == pytest.approx(0.2)
    assert found.nats == found.forced_mean
    found = drift_between([answer(1, 2), answer(3)], [answer(1, 2), answer(3, decoded=-1.0)])
    assert found.nats == found.decoded_mean == pytest.approx(0.3)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=4))
def test_an_engine_departs_from_itself_by_nothing(texts: list[list[int]]) -> None:
    answers = [answer(*text) for text in texts]
    found = drift_between(answers, answers)
    assert (found.nats, found.first_difference) == (0, None)
    assert found.equal_tokens == found.answer_tokens == found.decoded_tokens == sum(map(len, texts))


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def asked(url: str, *, timeout_seconds: float = 30.0, token: str | None = None) -> tuple[Answer, ...]:
    asking = Asking(model="chat", most_tokens=2, timeout_seconds=timeout_seconds, token=token)
    return await ask(url, asking, ["north"])


DECODED = {
    "token_ids": [4, 5],
    "prompt_token_ids": list(PROMPT),
    "logprobs": {"token_logprobs": [-0.5, -0.25], "top_logprobs": [{"token_id:4": -0.5}, {"token_id:5": -0.25}]},
}
FORCED = {"prompt_logprobs": [None, *({str(token): {"logprob": -0.125}} for token in (8, 9, 4, 5))]}


def completing(decoded: object = DECODED, forced: object = FORCED, seen: list[Any] | None = None) -> Handler:
    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        if seen is not None:
            seen.append((request.headers.get("Authorization"), body))
        return web.json_response({"choices": [forced if "prompt_logprobs" in body else decoded]})

    return complete


async def test_what_is_asked_and_read() -> None:
    seen: list[Any] = []
    async with served(completing(seen=seen)) as url:
        (found,) = await asked(f"{url}/v1/", token="secret")
        (again,) = await asked(url)
    assert found == again == Answer(
        prompt=PROMPT, tokens=(4, 5), decoded=(-0.5, -0.25), likeliest=({4: -0.5}, {5: -0.25}), forced=(-0.125, -0.125)
    )  # fmt: skip
    assert [given for given, _ in seen] == ["Bearer secret"] * 2 + [None] * 2
    decode, forced, later, _ = (body for _, body in seen)
    assert decode["prompt"] == "north"
    assert forced["prompt"] == [7, 8, 9, 4, 5]
    assert decode["temperature"] == 0
    assert decode["cache_salt"] == forced["cache_salt"] != later["cache_salt"], "KV of an earlier run is not found"


@pytest.mark.parametrize(
    ("decoded", "forced", "says"),
    [
        ({"text": "hello"}, FORCED, "no vLLM engine"),
        ({**DECODED, "token_ids": []}, FORCED, "no vLLM engine"),
        ({**DECODED, "token_ids": [4]}, FORCED, "other log-probabilities"),
        (
            {**DECODED, "logprobs": {"token_logprobs": [0, 0], "top_logprobs": [{"a": 0}, {"b": 0}]}},
            FORCED,
            "by their text",
        ),
        (
            {**DECODED, "logprobs": {"token_logprobs": [0, 0], "top_logprobs": [{}, {}]}},
            FORCED,
            "other log-probabilities",
        ),
        (DECODED, {"prompt_logprobs": None}, "log-probabilities of a prompt"),
        (DECODED, {"prompt_logprobs": [None] * 5}, "log-probabilities of a prompt"),
        (DECODED, {"prompt_logprobs": [None, *({"1": {"logprob": 0}} for _ in range(4))]}, "of a prompt"),
        (DECODED, {"prompt_logprobs": 3}, "not one of vLLM"),
        (None, FORCED, "not one of vLLM"),
    ],
)
async def test_answers_of_other_servers(decoded: object, forced: object, says: str) -> None:
    async with served(completing(decoded, forced)) as url:
        with pytest.raises(EngineError, match=says):
            await asked(url)


@pytest.mark.parametrize(
    ("answered", "says"),
    [
        (web.Response(status=401, text="{}"), "VLLM_API_KEY"),
        (web.Response(status=400, text='{"error":{"message":"too long"}}'), "HTTP 400: too long"),
        (web.Response(status=400, text='{"error":{"message":"' + 5000 * "x" + '"}}'), "HTTP 400: x{300}$"),
        (web.Response(status=500, text="<html>"), "HTTP 500$"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "HTTP 302"),
        (web.Response(text="{nonsense"), "not one of vLLM"),
        (web.Response(text=100_000 * "["), "not one of vLLM"),
        (web.Response(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}), "compressed"),
        (web.Response(body=bytes((8 << 20) + 1)), "larger than"),
    ],
    ids=["401", "400", "long", "500", "redirect", "nonsense", "deep", "gzip", "large"],
)
async def test_refusals_and_hostile_answers(answered: web.Response, says: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return answered

    async with served(refuse) as url:
        with pytest.raises(EngineError, match=says):
            await asked(url)


async def test_an_engine_that_hangs_or_is_not_there() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with served(hang) as url:
        with pytest.raises(EngineError, match="did not answer in time"):
            await asked(url, timeout_seconds=0.2)
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:1"):
        await asked("http://127.0.0.1:1")


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["kv-check", "chat", *arguments], input=stdin)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--reference", "http://127.0.0.1:1"), "--candidate"),
        (("--reference", "a.json", "--candidate", "10.0.0.8:8000"), "http://10.0.0.8:8000"),
        (("--reference", "a.json", "--candidate", "http://x", "--timeout", "soon"), "--timeout"),
        (("--reference", "a.json", "--candidate", "http://x", "--timeout", "0s"), "above 0"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read"),
        (b"{}", "no file that --save wrote"),
        (b"[]", "holds no answers"),
        (b'[{"prompt":[1],"tokens":[1],"decoded":["x"],"likeliest":[],"forced":[]}]', "no file that --save wrote"),
        (b'[{"prompt":[1],"tokens":[1,2],"decoded":[0],"likeliest":[{}],"forced":[0]}]', "or parts of them"),
    ],
)
def test_files_that_are_no_record(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "answers.json"
    if content is not None:
        file.write_bytes(content)
    done = run("--reference", str(file), "--candidate", "http://127.0.0.1:1")
    assert done.exit_code == 1
    assert says in done.output


def test_a_record_goes_through_pipes() -> None:
    record = msgspec.json.encode([answer(4, 5)])
    done = run("--reference", "-", "--save", "-", stdin=record)
    assert done.exit_code == 0
    assert msgspec.json.decode(done.stdout, type=tuple[Answer, ...]) == (answer(4, 5),)


@pytest.mark.parametrize(("limit", "code"), [("1.5", 0), ("1", 0), ("0.9", DRIFTED)])
def test_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, code: int) -> None:
    """The exit code follows the limit, and both forms of the report say the same."""

    async def candidate(*_: Any, **__: Any) -> tuple[Answer, ...]:
        return (answer(4, 6, forced=-0.35),)

    monkeypatch.setattr("fulcrum.cli.kv_check.engine.ask", candidate)
    file = tmp_path / "answers.json"
    file.write_bytes(msgspec.json.encode([answer(4, 5, forced=-0.1)]))
    arguments = ("--reference", str(file), "--candidate", "http://x", "--limit", limit)
    shown, told = run(*arguments), run(*arguments, "--json")
    assert shown.exit_code == told.exit_code == code
    assert "50.0% (earliest difference: at token 2)" in shown.output
    assert ("within" if code == 0 else "BEYOND") in shown.output
    assert json.loads(told.stdout)["driftNats"] == 1.0


def test_it_runs_in_the_worker_image() -> None:
    """Without those of our packages that its Dockerfile does not ask vLLM's image for."""
    absent = ("kopf", "kubernetes", "prometheus_api_client", "rich", "scipy", "statsmodels", "uvloop", "xxhash", "yaml")
    imports = "import fulcrum.cli.app, fulcrum.cli.kv_check.engine"
    program = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); {imports}"
    subprocess.run([sys.executable, "-c", program], check=True)
    for dockerfile in (Path(__file__).resolve().parents[2] / "worker_image").glob("Dockerfile*"):
        assert imports.removeprefix("import ") in dockerfile.read_text()
