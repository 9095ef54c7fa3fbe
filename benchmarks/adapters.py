"""LoRA adapters on real vLLM: both legs, loaded and unloaded under traffic, routed to workers that hold them.

    python benchmarks/adapters.py                       # brings up four workers with the tiny model, about 5 minutes
    python benchmarks/adapters.py --cycles 10

Two adapters of random weights are there from the start. Clients ask for the model and for both, open loop, while a
third one is added to the spec and removed again, and one worker is killed. Each answer must be, token for token, the
greedy one that an engine alone gave. Prints how many answers were right, how long loading and unloading took, and how
many legs went to workers that held the adapter, beside what picking workers blindly would have hit. Exits with 0 only
when nothing failed and every leg was a hit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from local_cluster import BIN, QUICKSTART, Cluster, local_cluster, metric, run, wait_until
from processes import processes
from this_machine import TINY, deadline_seconds
from tiny_adapters import write_adapter

FIXED = ("poet", "clerk")
COMING = "guest"
RATE = 8.0
"""Requests a second: a few are always under way, and two cores keep up."""
TOKENS = 16
PROMPTS = 6
FORGET_SECONDS = 5
"""`balance.flip.drainTimeout`: a removed adapter is unloaded after so long."""
LEAST_MARGIN = 0.02
"""By how much each greedy token leads, in nats: float32 rounds thousands of times less."""


@dataclass
class Asked:
    """A request and what came of it."""

    model: str
    at: float
    status: int = 0
    right: bool = False
    path: tuple[str, ...] = ()
    detail: str = ""


@dataclass
class Traffic:
    """What clients ask for, and what came of it; `models` may change meanwhile."""

    models: list[str]
    asked: list[Asked] = field(default_factory=list)
    samples: list[tuple[float, dict[str, frozenset[str]]]] = field(default_factory=list)
    """Adapters that each worker reports, over time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=3, help="how often the third adapter comes and goes")
    parser.add_argument("--kills", type=int, default=1, help="workers that are killed, at most one in each cycle")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fulcrum-adapters-") as folder, _cluster(Path(folder)) as cluster:
        return _measure(cluster, Path(folder), options.cycles, options.kills)


@contextmanager
def _cluster(folder: Path) -> Iterator[Cluster]:
    model = Path(run(BIN / "fulcrum", "model", TINY, env={"PATH": str(BIN), "HOME": str(Path.home())}).strip())
    for seed, name in enumerate((*FIXED, COMING)):
        write_adapter(model, folder / name, seed=seed)
    document = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    document["spec"]["adapters"] = {"max": 3, "maxRank": 8, "list": [_listed(folder, name) for name in FIXED]}
    document["spec"]["admission"] = {"policy": "Off"}
    document["spec"]["balance"] |= {
        "ratio": {"prefill": 2, "decode": 2},
        "flip": {"drainTimeout": f"{FORGET_SECONDS}s"},
    }
    document["spec"]["pools"][0]["workers"] = {"min": 4, "max": 4}
    manifest = folder / "quickstart.yaml"
    manifest.write_text(yaml.safe_dump(document), encoding="utf-8")
    home = folder / "home"
    with local_cluster(home, manifest=manifest, model=TINY) as cluster:
        wait_until("2P:2D", lambda: cluster.roles() == {"prefill": 2, "decode": 2}, seconds=480)
        wait_until("adapters in the status", lambda: _loaded_on(cluster, FIXED[1]) == 4, seconds=120)
        yield cluster


def _listed(folder: Path, name: str) -> dict[str, str]:
    return {"name": name, "source": str(folder / name)}


def _loaded_on(cluster: Cluster, name: str) -> int:
    found = cluster.cluster().get("status", {}).get("adapters", [])
    return next((int(each["loaded"]) for each in found if each["name"] == name), 0)


def _measure(cluster: Cluster, folder: Path, cycles: int, kills: int) -> int:
    _check_prefixes(cluster)
    names = [_listed(folder, name) for name in FIXED]
    coming = [*names, _listed(folder, COMING)]
    cluster.patch({"adapters": {"list": coming}})
    wait_until("all three", lambda: _held(cluster, COMING) == 4, seconds=60)
    answers = _answers(cluster)
    _forget(cluster, names)
    traffic = Traffic(models=[cluster.name, *FIXED])
    stop = threading.Event()
    threads = [
        threading.Thread(target=lambda: asyncio.run(_ask_all(cluster.endpoint(), traffic, answers, stop))),
        threading.Thread(target=_sample, args=(cluster, traffic, stop)),
    ]
    for thread in threads:
        thread.start()
    loads, unloads = [], []
    try:
        for cycle in range(cycles):
            began = time.monotonic()
            cluster.patch({"adapters": {"list": coming}})
            traffic.models.append(COMING)
            wait_until("the third on all", lambda: _held(cluster, COMING) == 4, seconds=60, every_seconds=0.05)
            loads.append(time.monotonic() - began)
            if cycle < kills:
                _kill_one(cluster)
            time.sleep(3)  # traffic to measure
            traffic.models.remove(COMING)
            began = time.monotonic()
            _forget(cluster, names)
            unloads.append(time.monotonic() - began)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return _report(traffic, loads, unloads)


def _check_prefixes(cluster: Cluster) -> None:
    """One prompt, asked of the model and of both adapters on one engine: none finds what another left."""
    body = {"prompt": "Counting: " + ", ".join(str(number) for number in range(200, 320)), "max_tokens": 1}
    worker = cluster.workers()[0]
    print("cached tokens of one prompt, engine by itself:")
    for model in (cluster.name, *FIXED):
        found = []
        for _ in range(2):
            before = _hits(worker.ip)
            cluster.ask_engine("/v1/completions", {**body, "model": model}, of=worker)
            found.append(_hits(worker.ip) - before)
        print(f"  {model}: first {found[0]:.0f}, then {found[1]:.0f}")
        if found[0] or not found[1]:
            raise SystemExit(f"{model}: the prefix of another was used, or its own was not")


def _hits(ip: str) -> float:
    return metric(f"http://{ip}:8000/metrics", "vllm:prefix_cache_hits_total")


def _answers(cluster: Cluster) -> dict[str, dict[str, str]]:
    """By model and prompt: what an engine alone answers, where no token is a near tie."""
    found: dict[str, dict[str, str]] = {}
    for model in (cluster.name, *FIXED, COMING):
        answers = found[model] = {}
        for number in range(10 * PROMPTS):
            if len(answers) == PROMPTS:
                break
            prompt = f"{number} Say " + ", ".join(str(each * number) for each in range(1, 60))
            body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            choice = cluster.ask_engine("/v1/completions", {**body, "logprobs": 2})["choices"][0]
            tops = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
            if min(top[-1] - top[-2] for top in tops) >= LEAST_MARGIN:
                answers[prompt] = choice["text"]
    texts = [text for answers in found.values() for text in answers.values()]
    common = {model: sum(text == found[cluster.name].get(prompt) for prompt, text in answers.items())
              for model, answers in found.items() if model != cluster.name}  # fmt: skip
    print(f"answers that equal the model's: {common}; different ones among all: {len(set(texts))} of {len(texts)}")
    return found


def _held(cluster: Cluster, name: str) -> int:
    """Workers that have loaded an adapter, as their agents say."""
    return sum(name in held for held in _residency(cluster).values())


def _residency(cluster: Cluster) -> dict[str, frozenset[str]]:
    found = {}
    for worker in cluster.workers():
        try:
            with urllib.request.urlopen(f"http://{worker.ip}:8001/load", timeout=5) as response:
                report = json.load(response)
        except (OSError, ValueError):
            continue
        held = (each["name"] for each in report["adapters"] if each["state"] in ("loaded", "leaving"))
        found[worker.name] = frozenset(held) if worker.ready else frozenset()
    return found


def _forget(cluster: Cluster, names: list[dict[str, str]]) -> None:
    cluster.patch({"adapters": {"list": names}})
    wait_until("the third on none", lambda: _held(cluster, COMING) == 0, seconds=FORGET_SECONDS + 60)


def _kill_one(cluster: Cluster) -> None:
    """SIGKILL of a decode worker: adapters are loaded again before it is ready."""
    victim = next(worker for worker in cluster.workers() if worker.role == "decode")
    began = time.monotonic()
    processes(cluster, pod=victim.name)[0].kill()

    def back() -> bool:
        worker = next(each for each in cluster.workers() if each.name == victim.name)
        return worker.restarts > victim.restarts and worker.ready

    wait_until("the killed worker", back, seconds=240)
    held = sorted(_residency(cluster).get(victim.name, ()))
    print(f"{victim.name} was killed; ready again after {time.monotonic() - began:.0f} s, with {held}")
    if set(FIXED) - set(held):
        raise SystemExit("it was ready without its adapters")


def _sample(cluster: Cluster, traffic: Traffic, stop: threading.Event) -> None:
    while not stop.wait(0.1):
        traffic.samples.append((time.monotonic(), _residency(cluster)))


async def _ask_all(url: str, traffic: Traffic, answers: dict[str, dict[str, str]], stop: threading.Event) -> None:
    timeout = aiohttp.ClientTimeout(total=deadline_seconds(120))
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
        number = 0
        while not stop.is_set():
            models = list(traffic.models)
            model = models[number % len(models)]
            prompts = list(answers[model])
            prompt = prompts[number // len(models) % len(prompts)]
            asked = Asked(model, time.monotonic())
            traffic.asked.append(asked)
            tasks.create_task(_ask(session, url, asked, prompt, answers[model][prompt]))
            number += 1
            await asyncio.sleep(1 / RATE)


async def _ask(session: aiohttp.ClientSession, url: str, asked: Asked, prompt: str, answer: str) -> None:
    body = {"model": asked.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            content = await response.read()
            asked.status = response.status
            asked.path = tuple(response.headers.get("x-fulcrum-path", "").split(","))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        asked.detail = repr(error)
        return
    asked.right = asked.status == 200 and json.loads(content)["choices"][0]["text"] == answer
    if not asked.right:
        asked.detail = content[:300].decode(errors="replace")


def _report(traffic: Traffic, loads: list[float], unloads: list[float]) -> int:
    kinds: Counter[tuple[str, str]] = Counter()
    bad: list[Asked] = []
    legs = hits = 0
    blind: list[float] = []
    for asked in traffic.asked:
        early = asked.model == COMING and asked.status in (404, 503)  # not listed or not loaded yet, or gone again
        kind = "right" if asked.right else "loading or gone" if early else "WRONG"
        kinds[asked.model, kind] += 1
        if kind == "WRONG":
            bad.append(asked)
        around = [held for at, held in traffic.samples if asked.at - 0.5 <= at <= asked.at + 2.0]
        if asked.model in (*FIXED, COMING) and asked.right and around:
            legs += len(asked.path)
            hits += sum(any(asked.model in held.get(worker, ()) for held in around) for worker in asked.path)
            blind.append(sum(asked.model in held for held in around[0].values()) / 4)
    for (model, kind), count in sorted(kinds.items()):
        print(f"{model:12} {kind:16} {count}")
    paths = Counter(len(asked.path) for asked in traffic.asked if asked.right and asked.model != "quickstart")
    print(f"answers of adapters over two workers: {paths[2]}, over one: {paths[1]}")
    print(f"loaded on all four after {', '.join(f'{each:.1f}' for each in loads)} s")
    print(f"unloaded on all after {', '.join(f'{each:.1f}' for each in unloads)} s, {FORGET_SECONDS} s of them grace")
    share = hits / legs if legs else 0.0
    print(f"hit rate: {share:.1%} of {legs} legs; picked blindly: {sum(blind) / max(len(blind), 1):.1%}")
    for asked in bad[:5]:
        print(f"WRONG {asked.model} {asked.status} {asked.path}: {asked.detail}")
    return 0 if not bad and legs and hits == legs else 1


if __name__ == "__main__":
    sys.exit(main())
