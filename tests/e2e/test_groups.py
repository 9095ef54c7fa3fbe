"""Workers that are groups of ranks sharing the experts of a model: chosen by prefix, flipped, and one rank killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import aiohttp
import psutil
import pytest
from answers import Question, questions_of
from cut_streams import Streams
from cut_streams import questions_of as streamed_questions_of
from lanes import state_folder
from local_cluster import QUICKSTART, Cluster, local_cluster, metric, wait_until
from manifests import changed
from processes import processes
from resume import everybody_let_in, resumed
from tests.machine import deadline_seconds
from tests.worker_image.agents import model_of_kind

from fulcrum.replay import Outcome
from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]

RANKS = 2
GROUPS = 3
FLIPS = 6
RATIOS = ((1, 2), (2, 1))
BLOCK_TOKENS = 32
PROMPT_TOKENS = 320
STREAMS = 24
STREAMED_TOKENS = 160


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three workers of two ranks each; one gateway, so that one memory of prefixes decides."""
    folder = state_folder(tmp_path_factory, "groups")
    manifest = changed(
        QUICKSTART, folder / "groups.yaml",
        pool={"workers": {"min": GROUPS, "max": GROUPS}, "parallelism": {"data": RANKS, "experts": True}},
        gateway={"replicas": 1}, admission={"policy": "Off"},
        balance={"mode": "Manual", "ratio": {"prefill": 2, "decode": 1}},
    )  # fmt: skip
    model = model_of_kind("qwen3_moe", folder)
    with local_cluster(folder, manifest=manifest, model=model) as cluster:
        wait_until("two prefill groups and one of decode", partial(has_roles, cluster, 2, 1), seconds=480)
        yield cluster


def has_roles(cluster: Cluster, prefill: int, decode: int) -> bool:
    return cluster.roles() == {"prefill": prefill, "decode": decode}


@pytest.fixture(scope="module")
def questions(groups: Cluster) -> list[Question]:
    return questions_of(groups)


async def ranks(cluster: Cluster, prompts: list[list[int]]) -> list[list[str]]:
    """Over which ranks each prompt went, asked one after the other."""
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=deadline_seconds(120))) as session:
        for prompt in prompts:
            body = {"model": cluster.name, "prompt": prompt, "max_tokens": 2}
            async with session.post(f"{cluster.endpoint()}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                found.append(response.headers["x-fulcrum-path"].split(","))
    return found


async def evenly_asked(cluster: Cluster, rounds: int = 3) -> tuple[list[list[int]], list[list[str]]]:
    """Eight new prompts, and over which ranks each went: as many to each rank that prefills.

    A rank that something else on the machine held up counts as slower for a while, so that others get more.
    """
    spread = []
    for begin in range(1000, 1000 + rounds * 1000, 1000):
        prompts = [[begin + 50 * number + token for token in range(PROMPT_TOKENS)] for number in range(8)]
        had = await ranks(cluster, prompts)
        spread.append(Counter(path[0] for path in had))
        if set(spread[-1].values()) == {2}:
            return prompts, had
    raise AssertionError(f"as many to each rank that prefills: {spread}")


def hit_tokens(cluster: Cluster) -> int:
    """Prompt tokens that the ranks' prefix caches had so far, as vLLM counts them."""
    return int(
        sum(metric(f"http://{each.ip}:8000/metrics", "vllm:prefix_cache_hits_total") for each in cluster.workers())
    )


async def test_a_second_turn_goes_to_a_rank_that_has_the_first(groups: Cluster) -> None:
    first, had = await evenly_asked(groups)
    second = [[*prompt, *range(9000, 9064)] for prompt in first]
    before = hit_tokens(groups)
    went = [*reversed(await ranks(groups, [*reversed(second)]))]
    assert all(path[0] in holders for path, holders in zip(went, had, strict=True)), (had, went)
    least = len(first) * (PROMPT_TOKENS - BLOCK_TOKENS)
    wait_until("the hits to be counted", lambda: hit_tokens(groups) - before >= least, seconds=30)


def test_groups_flip_under_load_and_nothing_is_lost(groups: Cluster, questions: list[Question]) -> None:
    before = {worker.name: (worker.uid, worker.restarts) for worker in groups.workers()}
    flips_before = groups.flips()
    with SteadyLoad(groups.endpoint(), questions, rate=4) as load:
        for number in range(FLIPS):
            wanted = RATIOS[number % len(RATIOS)]
            groups.patch_ratio(*wanted)
            wait_until(f"flip {number}: {wanted}", partial(has_roles, groups, *wanted), seconds=90, every_seconds=0.1)
            wait_until("answers in the new roles", partial(load.has, len(load.answered) + 2), seconds=90,
                       every_seconds=0.05)  # fmt: skip
    assert groups.flips() - flips_before == FLIPS
    assert {worker.name: (worker.uid, worker.restarts) for worker in groups.workers()} == before
    assert load.count(Outcome.OK) == len(load.answered), load.summary()
    assert all(answered.right for answered in load.answered), load.summary()


def rank_of(agent: psutil.Process, rank: int) -> psutil.Process:
    """The process of one rank, below an agent."""
    (found,) = (each for each in agent.children(recursive=True) if f"EngineCore_DP{rank}" in " ".join(each.cmdline()))
    return found


def test_streams_survive_a_rank_of_their_decode_group_and_the_group_is_replaced(groups: Cluster) -> None:
    groups.patch_ratio(1, 2)
    wait_until("1P:2D", partial(has_roles, groups, 1, 2), seconds=90)
    asked = streamed_questions_of(groups, 6, output_tokens=STREAMED_TOKENS, min_margin=0.02)
    with everybody_let_in(groups), Streams(groups.endpoint(), asked, STREAMS) as streams:
        names = [worker.name for worker in groups.workers() if worker.role == "decode"]
        victims = {f"{name}/dp{rank}": rank_of(processes(groups, pod=name)[0], rank)
                   for name in names for rank in range(RANKS)}  # fmt: skip
        before, restarts = resumed(groups), {worker.name: worker.restarts for worker in groups.workers()}

        def busy() -> str | None:
            return next((name for name in victims if len(streams.within(name)) >= 4), None)

        lost = wait_until("streams in the middle of a rank", busy, seconds=60, every_seconds=0.02)
        worker = lost.split("/")[0]
        cut = [stream for rank in range(RANKS) for stream in streams.within(f"{worker}/dp{rank}")]
        victims[lost].kill()
        streams.paused = True
        wait_until("all streams to end", lambda: not streams.open, seconds=400)
    wrong = [problem for stream in streams.ended if (problem := stream.wrong())]
    assert not wrong, "\n".join(wrong[:5])
    assert resumed(groups) - before >= len(cut) >= 4, "also those of the other rank, which ends with it"

    def replaced() -> bool:
        again = {each.name: each.restarts - restarts[each.name] for each in groups.workers()}
        return has_roles(groups, 1, 2) and again == {name: int(name == worker) for name in again}

    wait_until(f"{worker} to be started again, and no other", replaced, seconds=480, every_seconds=1)
