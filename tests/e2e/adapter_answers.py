"""LoRA adapters beside the model, at the endpoint of a cluster: what each answers, and whose prefixes it finds."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from answers import FLOAT32_MARGIN, margin, min_margin, post
from local_cluster import BIN, Cluster, metric, run, wait_until
from tests.machine import deadline_seconds
from tiny_adapters import write_adapter

ADAPTERS = ("poet", "clerk")
_SCALE = 0.2
"""Of their weights: the real model answers differently from the first tokens on, and rounding changes nothing."""
_TOKENS = 8
_PROMPTS = 12
_WANTED = 3


def adapters_of(model: str, folder: Path) -> dict[str, Any]:
    """`spec.adapters` for the model that `fulcrum model` has prepared, with no place for another one."""
    weights = Path(run(BIN / "fulcrum", "model", model, env={"PATH": str(BIN), "HOME": str(Path.home())}).strip())
    for seed, name in enumerate(ADAPTERS):
        write_adapter(weights, folder / name, seed=seed, scale=_SCALE)
    listed = [{"name": name, "source": str(folder / name), "rank": 8} for name in ADAPTERS]
    return {"max": len(ADAPTERS), "maxRank": 8, "list": listed}


def loaded(cluster: Cluster, name: str) -> Any:
    """The status of an adapter; None before there is one."""
    found = cluster.cluster().get("status", {}).get("adapters", [])
    return next((each for each in found if each["name"] == name), None)


def list_adapters(cluster: Cluster, listed: list[dict[str, Any]]) -> None:
    cluster.patch({"adapters": {"list": listed}})


def assert_own_answers(cluster: Cluster) -> None:
    """Model and adapters share steps, and each answers as an engine does that has nothing else to do."""
    models = (cluster.name, *ADAPTERS)
    right: dict[tuple[str, str], str] = {}
    for number in range(1, _PROMPTS):
        prompt = f"{number} Say " + ", ".join(str(each * number) for each in range(1, 20))
        answers = {model: _alone(cluster, model, prompt) for model in models}
        if None not in answers.values():
            assert len(set(answers.values())) == len(models), answers
            right |= {(model, prompt): str(answer) for model, answer in answers.items()}
        if len(right) == _WANTED * len(models):
            break
    assert right, "every prompt has a greedy step that rounding may change"
    with ThreadPoolExecutor(len(right)) as pool:
        answered = list(pool.map(lambda each: post(f"{cluster.endpoint()}/v1/completions", _body(*each)), right))
    assert [answer["choices"][0]["text"] for answer in answered] == list(right.values())


def assert_own_prefixes(cluster: Cluster) -> None:
    """Each finds its own prefix on the second time, and on the first none that another one left."""
    prompt = f"{time.monotonic_ns()} counts " + ", ".join(str(number) for number in range(200, 260))
    for model in (cluster.name, *ADAPTERS):
        found = []
        for _ in range(2):
            before = _hits(cluster)
            post(f"{cluster.endpoint()}/v1/completions", {**_body(model, prompt), "max_tokens": 2})
            found.append(_hits(cluster) - before)
        assert found[0] == 0, f"{model} found the prefix of another one"
        assert found[1] > 0, f"{model} did not find its own"


def assert_broken_is_told(cluster: Cluster, name: str, *words: str) -> None:
    """Status, condition and answers say of an adapter that no worker can load it; the others are served."""
    said = wait_until(f"what is wrong with {name}", lambda: (loaded(cluster, name) or {}).get("message"), seconds=60)
    assert all(word in said for word in words), said
    wait_until("the condition", lambda: cluster.condition("Degraded") == "True", seconds=60)
    wait_until("the gateway", lambda: code(cluster, name) == (503, "adapter_not_loaded"), seconds=60)
    assert code(cluster, ADAPTERS[0]) == (200, "")


def code(cluster: Cluster, model: str) -> tuple[int, str]:
    """Status, and the code of an error, of one short request."""
    try:
        post(f"{cluster.endpoint()}/v1/completions", {"model": model, "prompt": "x", "max_tokens": 1})
    except urllib.error.HTTPError as error:
        with error:
            return error.code, str(json.load(error)["error"]["code"])
    return 200, ""


def names(cluster: Cluster) -> list[str]:
    """What `/v1/models` lists."""
    with urllib.request.urlopen(f"{cluster.endpoint()}/v1/models", timeout=deadline_seconds(30)) as response:
        return [card["id"] for card in json.load(response)["data"]]


def _alone(cluster: Cluster, model: str, prompt: str) -> str | None:
    """What one engine answers by itself; None where a greedy step is nearly undecided."""
    choice = cluster.ask_engine("/v1/completions", {**_body(model, prompt), "logprobs": 2})["choices"][0]
    least = max(min_margin(cluster), FLOAT32_MARGIN)
    decided = all(margin(top.values()) >= least for top in choice["logprobs"]["top_logprobs"])
    return str(choice["text"]) if decided else None


def _body(model: str, prompt: str) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}


def _hits(cluster: Cluster) -> float:
    name = "vllm:prefix_cache_hits_total"
    return sum(metric(f"http://{worker.ip}:8000/metrics", name) for worker in cluster.workers())
