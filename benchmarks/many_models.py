"""Two InferenceClusters of real engines behind one InferenceGateway, with the tiny model.

A canary of 90:10 over 1,000 requests; conversations; fallback while one cluster is overloaded; keys and limits of a
model; a cluster of another namespace with and without its grant; a front killed (SIGKILL) under load; a cluster deleted
under load. Fails when a share is off by more than two requests, or a request is lost. A client whose front was killed
asks once more; that is counted.

    python benchmarks/many_models.py
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from local_cluster import BIN, QUICKSTART, Cluster, local_cluster, wait_until
from processes import processes
from this_machine import TINY

KEY = "key-of-a-team"
REQUESTS = 1000
_AT_ONCE = 8
_FRONT = {
    "apiVersion": "fulcrum.dev/v1alpha1",
    "kind": "InferenceGateway",
    "metadata": {"name": "front"},
    "spec": {
        "gateway": {"replicas": 2},
        "models": [
            {
                "name": "chat",
                "aliases": ["chat-latest"],
                "backends": [{"cluster": "one", "weight": 90}, {"cluster": "two", "weight": 10}],
                "fallback": [{"cluster": "one"}],
            },
            {"name": "half", "backends": [{"cluster": "one"}, {"cluster": "two"}]},
            {"name": "spare", "backends": [{"cluster": "two"}], "fallback": [{"cluster": "one"}]},
            {"name": "guarded", "backends": [{"cluster": "one"}], "auth": {"secretName": "team-keys"}},
            {"name": "limited", "backends": [{"cluster": "one"}], "limits": {"requestsPerMinute": 4}},
        ],
    },
}
_OF_ANOTHER = {
    "apiVersion": "fulcrum.dev/v1alpha1",
    "kind": "InferenceGateway",
    "metadata": {"name": "theirs", "namespace": "other"},
    "spec": {
        "gateway": {"replicas": 1},
        "models": [{"name": "chat", "backends": [{"cluster": "one", "namespace": "default"}]}],
    },
}


class Client:
    """Asks a front; `lost` counts requests without an answer, or with one that is neither 200 nor 429 or 503."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.served: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.again = 0
        self.lost: list[str] = []

    async def ask(self, model: str, said: list[str], headers: dict[str, str] | None = None, **fields: Any) -> str:
        """The cluster that answered, or the status as text."""
        messages = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
        body = {"model": model, "messages": messages, "max_tokens": 4, **fields}
        for attempt in range(2):
            try:
                async with self._session.post(
                    f"{self._url}/v1/chat/completions", json=body, headers=headers or {}
                ) as answer:
                    text = await answer.text()
                    complete = answer.status != 200 or not fields.get("stream") or text.endswith("data: [DONE]\n\n")
            except aiohttp.ClientError as error:
                if attempt:
                    self.lost.append(repr(error))
                self.again += not attempt
                continue
            self.statuses[answer.status] += 1
            if answer.status not in (200, 401, 429) or not complete:
                self.lost.append(f"{answer.status} {text[-300:]}")
            cluster = answer.headers.get("x-fulcrum-cluster", "") if answer.status == 200 else str(answer.status)
            self.served[cluster] += 1
            return cluster
        return "lost"

    async def load(self, model: str, until: Callable[[], bool], at_once: int = _AT_ONCE) -> int:
        """Ask, streamed and whole in turn, until it is over; returns how many were asked."""
        number = 0

        async def one_after_the_other() -> None:
            nonlocal number
            while not until():
                number += 1
                await self.ask(model, [f"Question {number}"], stream=number % 2 == 0)

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
        return number


def second(folder: Path) -> Path:
    """The second cluster: as the first one, and it keeps its promise by turning requests away."""
    document = yaml.safe_load((folder / "one.yaml").read_text())
    document["metadata"]["name"] = "two"
    document["spec"]["admission"] = {"policy": "Predictive"}
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def apply(cluster: Cluster, document: dict[str, Any]) -> None:
    subprocess.run([BIN / "kubectl", "apply", "-f", "-"], input=json.dumps(document), env=cluster.env, text=True,
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip


def condition(cluster: Cluster, name: str, kind: str, namespace: str = "default") -> str:
    path = f"{{.status.conditions[?(@.type=='{kind}')].reason}}"
    return cluster.kubectl("-n", namespace, "get", "ig", name, "-o", f"jsonpath={path}", check=False)


def endpoint(cluster: Cluster, name: str, namespace: str = "default") -> str:
    return cluster.kubectl("-n", namespace, "get", "ig", name, "-o", "jsonpath={.status.endpoint}")


def told(what: str, holds: bool, figures: str) -> bool:
    print(f"{'ok  ' if holds else 'FAIL'} {what}: {figures}", flush=True)
    return holds


async def shares(session: aiohttp.ClientSession, url: str) -> bool:
    """One front counts the shares of its own clients, so all go over one connection to one front."""
    client = Client(session, url)
    for number in range(REQUESTS):
        await client.ask("chat", [f"Question {number}"], max_tokens=1)
    canary = client.served["default/two"]
    good = abs(canary - REQUESTS // 10) <= 2 and not client.lost
    return told("canary 90:10", good, f"{dict(client.served)}, lost {len(client.lost)} {client.lost[:2]}")


async def conversations(session: aiohttp.ClientSession, url: str) -> bool:
    client, stayed, sides = Client(session, url), 0, Counter[str]()
    for number in range(20):
        said, seen = [f"Subject {number}"], set()
        for turn in range(3):
            seen.add(await client.ask("half", said))
            said += [f"Answer {number} {turn}", f"And {turn}?"]
        stayed += len(seen) == 1
        sides.update(seen)
    return told("conversations", stayed == 20 and len(sides) == 2, f"{stayed} of 20 stayed, {dict(sides)}")


async def overload(session: aiohttp.ClientSession, url: str) -> bool:
    client = Client(session, url)
    slo = {"x-llm-d-slo-ttft-ms": "300"}
    await asyncio.gather(*(client.ask("spare", [f"{n} " + "word " * 1500], slo, stream=n % 2 == 0) for n in range(100)))
    good = not client.lost and client.statuses[200] == 100 and client.served["default/one"] > 0
    return told("fallback under overload", good, f"{dict(client.served)}, lost {len(client.lost)} {client.lost[:2]}")


async def keys_and_limits(session: aiohttp.ClientSession, url: str) -> bool:
    client = Client(session, url)
    bearer, api_key = {"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}
    asked = [
        await client.ask("guarded", ["Hi"], headers) for headers in (None, {"x-api-key": "wrong"}, bearer, api_key)
    ]
    limited = [await client.ask("limited", ["Hi"]) for _ in range(8)]
    good = asked == ["401", "401", "default/one", "default/one"] and limited.count("429") >= 4
    return told("keys and limits", good, f"{asked}, {limited}")


async def other_namespace(session: aiohttp.ClientSession, cluster: Cluster) -> bool:
    cluster.kubectl("create", "namespace", "other")
    apply(cluster, _OF_ANOTHER)
    await asyncio.to_thread(
        wait_until, "the refusal", lambda: condition(cluster, "theirs", "Degraded", "other") == "NotGranted", seconds=60
    )
    cluster.patch({"gateway": {"allowedNamespaces": ["other"]}})
    await asyncio.to_thread(
        wait_until, "the grant", lambda: condition(cluster, "theirs", "Available", "other") == "Ready", seconds=120
    )
    client = Client(session, endpoint(cluster, "theirs", "other"))
    served = await client.ask("chat", ["Hi"])
    return told("another namespace", served == "default/one", f"NotGranted, then {served}")


async def killed_front(session: aiohttp.ClientSession, cluster: Cluster, url: str) -> bool:
    selector = "app.kubernetes.io/component=front"
    pods = cluster.read("pods", labels=selector)["items"]
    client, began = Client(session, url), time.monotonic()
    load = asyncio.create_task(client.load("chat", lambda: time.monotonic() > began + 10))
    await asyncio.sleep(3)
    processes(cluster, pod=pods[0]["metadata"]["name"])[0].send_signal(signal.SIGKILL)
    asked = await load
    return told("a front killed", not client.lost and client.again <= _AT_ONCE,
                f"{asked} asked, {client.again} once more, lost {len(client.lost)} {client.lost[:2]}")  # fmt: skip


async def deleted_cluster(session: aiohttp.ClientSession, cluster: Cluster, url: str) -> bool:
    gone = asyncio.Event()
    client = Client(session, url)
    load = asyncio.create_task(client.load("chat", gone.is_set))
    await asyncio.sleep(3)
    cluster.kubectl("delete", "ic", "two", "--wait=false")
    labels = "fulcrum.dev/cluster=two"
    await asyncio.to_thread(
        wait_until, "nothing to be left", lambda: not cluster.read("pods", labels=labels)["items"], seconds=150
    )
    gone.set()
    asked = await load
    missing = condition(cluster, "front", "Degraded")
    good = not client.lost and client.again == 0 and missing == "ClusterMissing" and client.statuses[200] == asked
    return told("a cluster deleted", good, f"{asked} asked, {dict(client.served)}, {missing}, "
                f"once more {client.again}, lost {len(client.lost)} {client.lost[:2]}")  # fmt: skip


async def measure(cluster: Cluster) -> bool:
    url = endpoint(cluster, "front")
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        return all([
            await shares(session, url),
            await conversations(session, url),
            await overload(session, url),
            await keys_and_limits(session, url),
            await killed_front(session, cluster, url),
            await other_namespace(session, cluster),
            await deleted_cluster(session, cluster, url),
        ])  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        document = yaml.safe_load(QUICKSTART.read_text())
        document["metadata"]["name"] = "one"
        document["spec"]["pools"][0]["workers"] = {"min": 2, "max": 2}
        document["spec"]["balance"] = {"mode": "Manual", "ratio": {"prefill": 1, "decode": 1}}
        document["spec"]["admission"] = {"policy": "Off"}
        document["spec"]["gateway"] = {"replicas": 1}
        (folder / "one.yaml").write_text(yaml.safe_dump(document))
        with local_cluster(folder / "home", manifest=folder / "one.yaml", name="one", model=TINY) as cluster:
            (folder / "one.yaml").write_text((folder / "home" / "one.yaml").read_text())
            cluster.kubectl("create", "secret", "generic", "team-keys", f"--from-literal=team={KEY}")
            cluster.kubectl("apply", "-f", str(second(folder)))
            apply(cluster, _FRONT)
            try:
                wait_until(
                    "all models", lambda: (condition(cluster, "front", "Available"), condition(cluster, "front",
                    "Degraded")) == ("Ready", "Healthy"), seconds=300, every_seconds=1,
                )  # fmt: skip
                good = asyncio.run(measure(cluster))
            except Exception:
                print(cluster.described(), cluster.kubectl("get", "ig", "-A", "-o", "yaml", check=False))
                raise
    sys.exit(not good)


if __name__ == "__main__":
    main()
