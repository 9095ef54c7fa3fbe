"""Conversations over two real engines that share a KV pool: prefill on one, decode on the other, little KV on either.

    python benchmarks/kv_conversations.py [--conversations 8] [--turns 5]

The KV caches are too small for two conversations, and turns are interleaved, so that each finds the caches full of
others. In turn 3 the engines change roles. Before turn 4 one is killed (SIGKILL) and another one takes its place with
nothing but the pool. Before turn 5 the other one is drained while it answers one more request, ends, and is replaced
in the same way. Prints, for each turn, the tokens of earlier turns (answers too) that were not computed again, and
how many answers are those of one engine without tiers. Exits with 1 where an answer leaves the engine's at a step that
is not nearly a tie (`kv_departures.py`): then KV was lost or mixed up.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kv_departures import departures, finds_out
from tests.e2e.answers import MIN_MARGIN
from tests.worker_image.agents import SERVED_NAME, wait_until
from tests.worker_image.tiered_engine import TieredEngine, tiered_engine

from fulcrum_worker.kv.pool.names import BAD_BLOCKS, DROPPED_BLOCKS, PROBLEM

USER_TOKENS, ANSWER_TOKENS = 200, 96
_FULL = (
    "vllm:kv_offload_tiering_promotion_allocation_failures_total",
    "vllm:kv_offload_tiering_promotion_job_failures_total",
    "vllm:kv_offload_allocation_failure_total",
)
_REMOTE = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


@dataclass(slots=True)
class Conversation:
    """What was said, and the prompts and answers so far."""

    tokens: list[int] = field(default_factory=list)
    asked: list[tuple[list[int], tuple[int, ...]]] = field(default_factory=list)


class Fleet:
    """Engines on one pool."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack, self._count = folder, stack, 0
        (folder / "pool").mkdir()

    def start(self) -> TieredEngine:
        """Start one more engine."""
        self._count += 1
        folder = self._folder / f"engine-{self._count}"
        folder.mkdir()
        engine = self._stack.enter_context(tiered_engine(folder, pool=self._folder / "pool"))
        for tokens in (100, 400, 1200):
            engine.ask(engine.prompt(tokens), max_tokens=2)
        return engine


def post(engine: TieredEngine, request_id: str, **body: Any) -> dict[str, Any]:
    """One completion; `kv_transfer_params` come back with a prefill leg."""
    request = urllib.request.Request(
        f"{engine.url}/v1/completions",
        json.dumps(
            {"model": SERVED_NAME, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | body
        ).encode(),
        {"Content-Type": "application/json", "X-Request-Id": request_id},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return dict(json.load(response))


def ask(prefill: TieredEngine, decode: TieredEngine, prompt: list[int], request_id: str) -> tuple[int, ...]:
    """The two legs of one request."""
    remote = {"do_remote_decode": True, "do_remote_prefill": False, **dict.fromkeys(_REMOTE)}
    held = post(prefill, request_id, prompt=prompt, max_tokens=1, kv_transfer_params=remote)["kv_transfer_params"]
    answer = post(decode, request_id, prompt=prompt, max_tokens=ANSWER_TOKENS, kv_transfer_params=held)
    return tuple(answer["choices"][0]["token_ids"])


def computed(*engines: TieredEngine) -> float:
    """Prompt tokens that these engines computed."""
    return sum(each.metric("vllm:prompt_tokens_by_source_total", source="local_compute") for each in engines)


def is_stored(engine: TieredEngine) -> bool:
    """Whether the pool has what the engine has put into host memory."""
    return engine.metric("vllm:kv_offload_store_bytes_total") <= engine.metric(
        "vllm:kv_offload_tiering_write_bytes_total"
    )


def troubles(*engines: TieredEngine) -> str:
    """What the pool or host memory could not take, so far."""
    found = {
        f"{name} on engine {number}": value
        for number, engine in enumerate(engines, 1)
        for name in (f"{DROPPED_BLOCKS}_total", f"{BAD_BLOCKS}_total", PROBLEM, *_FULL)
        if (value := engine.metric(name))
    }
    return f"; {found}" if found else ""


def say(prefill: TieredEngine, decode: TieredEngine, talk: Conversation, request_id: str) -> int:
    """Go on with a conversation; returns how many tokens are new."""
    user = prefill.prompt(USER_TOKENS)
    prompt = [*talk.tokens, *user]
    answer = ask(prefill, decode, prompt, request_id)
    talk.asked.append((prompt, answer))
    talk.tokens = [*prompt, *answer]
    return len(user)


def drain(prefill: TieredEngine, decode: TieredEngine, talk: Conversation) -> None:
    """End an engine as its agent does: it gets nothing new, answers what it has, and is told to end (SIGTERM)."""
    with ThreadPoolExecutor(1) as beside:
        under_way = beside.submit(say, prefill, decode, talk, "talk-drain")
        wait_until(lambda: is_busy(decode), seconds=60, what="the engine answers when its drain begins")
        wait_until(lambda: not is_busy(decode), seconds=120, what="the engine has nothing to do")
        under_way.result()
    decode.process.send_signal(signal.SIGTERM)
    decode.process.wait(60)


def is_busy(engine: TieredEngine) -> bool:
    """Whether requests run or wait."""
    return engine.metric("vllm:num_requests_running") + engine.metric("vllm:num_requests_waiting") > 0


def turn(number: int, prefill: TieredEngine, decode: TieredEngine, talks: list[Conversation]) -> None:
    """One turn of each conversation."""
    earlier = again = 0.0
    for index, talk in enumerate(talks):
        earlier += len(talk.tokens)
        before = computed(prefill, decode)
        new = say(prefill, decode, talk, f"talk-{index}-{number}")
        again += computed(prefill, decode) - before - new - 1  # each decode leg computes the last token
    for each in (prefill, decode):
        wait_until(lambda each=each: is_stored(each), seconds=60, what="the pool has it")
    saved = f"{1 - again / earlier:.1%} of {earlier:.0f} earlier tokens not computed again" if earlier else "all is new"
    print(f"turn {number}: {saved}{troubles(prefill, decode)}", flush=True)


def compare(talks: list[Conversation]) -> bool:
    """Print how the answers are those of one engine without tiers; returns whether rounding explains what is not."""
    with tempfile.TemporaryDirectory() as name, tiered_engine(Path(name), tier=False) as alone:
        compared = same = 0
        explained = True
        for number, talk in enumerate(talks, 1):
            for turn_number, (prompt, answer) in enumerate(talk.asked, 1):
                found = departures(alone, prompt, answer)
                compared, same = compared + 1, same + (not found)
                explained = explained and all(each.is_tie for each in found)
                for each in found:
                    print(f"conversation {number}, turn {turn_number}, {each}", flush=True)
        if len(talks) > 1:
            explained = finds_out(alone, talks[0].asked[-1][0], talks[-1].asked[-1][1]) and explained
    print(
        f"{same} of {compared} answers are those of one engine without tiers, token for token; "
        f"{'the others leave it only' if explained else 'others leave it not only'} at steps that are nearly a tie "
        f"(less than {MIN_MARGIN:g} nats)"
    )
    return explained


def main() -> int:
    """Talk, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compared", type=int, default=8, help="conversations whose answers one engine gives again")
    asked = parser.parse_args()
    talks = [Conversation() for _ in range(asked.conversations)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        fleet = Fleet(Path(name), stack)
        prefill, decode = fleet.start(), fleet.start()
        for number in range(1, asked.turns + 1):
            if number == 3:
                prefill, decode = decode, prefill
                print("the engines change roles", flush=True)
            if number == 4:
                prefill.process.send_signal(signal.SIGKILL)
                prefill.process.wait()
                prefill = fleet.start()
                print("the prefill engine was killed; another one has the pool", flush=True)
            if number == 5:
                drain(prefill, decode, talks[0])
                decode = fleet.start()
                print("the decode engine was drained while it answered; another one has the pool", flush=True)
            turn(number, prefill, decode, talks)
    print("none of all was lost", flush=True)
    return 0 if compare(talks[: asked.compared]) else 1


if __name__ == "__main__":
    sys.exit(main())
