"""OpenAI's batch API on real engines: every line is answered once, though the batch process is killed half-way.

    python benchmarks/batches.py [--lines 40]     # about 2 minutes: starts a local cluster with the tiny model

The official client uploads a file, creates a batch and watches it while online requests stream. Once a quarter of the
lines has a result, the batch process gets SIGKILL. Exit code 1 if a line has no result or two, the progress ever goes
back, an online request gets no complete answer, or the cluster's status does not say what became of the batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import openai
import yaml
from local_cluster import QUICKSTART, Cluster, local_cluster, wait_until
from processes import processes
from this_machine import TINY

NAME: Final = "batches"
CLAIM: Final = "batch-files"
KEY: Final = "key-of-a-team"
MOST_SECONDS: Final = 240.0
"""Time in which the batch has to end: 40 lines take a tenth of it."""
_ENDED: Final = ("completed", "failed", "expired", "cancelled")
_CLASSES: Final = [
    {"name": "chat", "priority": 10},
    {"name": "batch", "kind": "Batch", "priority": 0, "match": {"header": "x-class", "value": "batch"}},
]


@dataclass(slots=True)
class Online:
    """Streamed requests, one after the other."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    answered: int = 0
    lost: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0
    """Until a first token."""

    async def ask(self, client: openai.AsyncOpenAI, model: str) -> None:
        while not self.over.is_set():
            began, first, ended = time.monotonic(), 0.0, False
            prompt = f"Online {self.answered}: the sky"
            try:
                async for chunk in await client.completions.create(
                    model=model, prompt=prompt, max_tokens=16, stream=True
                ):
                    first = first or time.monotonic() - began
                    ended = ended or any(choice.finish_reason for choice in chunk.choices)
            except openai.OpenAIError as error:
                self.lost.append(repr(error)[:200])
                continue
            self.slowest_seconds = max(self.slowest_seconds, first)
            self.answered += ended
            if not ended:
                self.lost.append("its stream ended early")
            await asyncio.sleep(0.2)


def lines(count: int, model: str) -> bytes:
    bodies = (
        {"model": model, "messages": [{"role": "user", "content": f"Tell story {at}."}], "max_tokens": 48,
         "ignore_eos": True}
        for at in range(count)
    )  # fmt: skip
    return b"".join(
        json.dumps({"custom_id": f"line-{at}", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode()
        + b"\n"
        for at, body in enumerate(bodies)
    )


def kill(cluster: Cluster) -> None:
    processes(cluster, pod=cluster.pods("batch")[0]["metadata"]["name"])[0].kill()


async def watch(cluster: Cluster, client: openai.AsyncOpenAI, batch: Any) -> tuple[Any, list[tuple[float, str, int]]]:
    """The batch once it has ended, and what the client saw on the way; kills the process once."""
    began, killed, seen = time.monotonic(), False, list[tuple[float, str, int]]()
    while batch.status not in _ENDED and time.monotonic() < began + MOST_SECONDS:
        batch = await client.batches.retrieve(batch.id)
        counts = batch.request_counts
        now = (batch.status, counts.completed + counts.failed)
        if not seen or seen[-1][1:] != now:
            seen.append((time.monotonic() - began, *now))
        if not killed and counts.completed >= max(counts.total // 4, 1):
            await asyncio.to_thread(kill, cluster)
            killed = True
            seen.append((time.monotonic() - began, "killed", counts.completed))
        await asyncio.sleep(0.05)
    return batch, seen


def told(what: str, holds: bool, figures: str) -> bool:
    print(f"{'ok  ' if holds else 'FAIL'} {what:22} {figures}", flush=True)
    return holds


async def measure(cluster: Cluster, count: int) -> bool:
    async with openai.AsyncOpenAI(base_url=f"{cluster.endpoint()}/v1", api_key=KEY, max_retries=20) as client:
        model = (await client.models.list()).data[0].id
        online = Online()
        asking = [asyncio.create_task(online.ask(client, model)) for _ in range(2)]
        file = await client.files.create(file=("in.jsonl", lines(count, model)), purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h"
        )
        try:
            batch, seen = await watch(cluster, client, made)
        finally:
            online.over.set()
            await asyncio.gather(*asking)
        good = await judge(cluster, client, batch, seen, online=online, count=count)
        return await asyncio.to_thread(status_says_so, cluster) and good


def status_says_so(cluster: Cluster) -> bool:
    """Whether the operator has read that nothing runs any more: it asks every 30 seconds."""

    def shown() -> dict[str, int] | None:
        found: dict[str, int] | None = cluster.cluster()["status"].get("batches")
        return found if found is not None and not found["running"] else None

    found = wait_until("status.batches", shown, seconds=120)
    return told("status.batches", not any(found.values()), json.dumps(found))


async def judge(
    cluster: Cluster,
    client: openai.AsyncOpenAI,
    batch: Any,
    seen: list[tuple[float, str, int]],
    *,
    online: Online,
    count: int,
) -> bool:
    results: list[dict[str, Any]] = []
    if batch.output_file_id is not None:
        content = await client.files.content(batch.output_file_id)
        results = [json.loads(line) for line in content.text.splitlines()]
    answers = Counter(each["custom_id"] for each in results if each["response"]["status_code"] == 200)
    tokens = sum(each["response"]["body"]["usage"]["completion_tokens"] for each in results)
    killed = next((at for at, state, _ in seen if state == "killed"), None)
    done = [number for _, state, number in seen if state != "killed"]
    restarts = sum(each["restartCount"] for pod in cluster.pods("batch") for each in pod["status"]["containerStatuses"])
    progress = "  ".join(f"{at:.1f} s {state} {number}" for at, state, number in seen[:: max(len(seen) // 12, 1)])
    print(f"     progress               {progress}")
    return all([
        told("the batch", batch.status == "completed", f"{batch.status}, {batch.request_counts.to_dict()}"),
        told("lines answered once", answers == Counter(f"line-{at}" for at in range(count)),
             f"{len(answers)} of {count}, {sum(answers.values())} results, {tokens} tokens, {seen[-1][0]:.1f} s"),
        told("a kill half-way", killed is not None and restarts >= 1 and done == sorted(done),
             f"after {killed or 0:.1f} s, {restarts} restarts, progress {'grew' if done == sorted(done) else done}"),
        told("online requests", online.answered > 0 and not online.lost,
             f"{online.answered} answered, lost {len(online.lost)} {online.lost[:2]}, "
             f"slowest first token {online.slowest_seconds:.2f} s"),
    ])  # fmt: skip


def manifest(folder: Path) -> Path:
    """Write `examples/quickstart.yaml` with one prefill and one decode worker, and without batches."""
    document = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    document["metadata"]["name"] = NAME
    spec = document["spec"]
    spec["pools"][0]["workers"] = {"min": 2, "max": 2}
    spec["balance"] = {"mode": "Manual", "ratio": {"prefill": 1, "decode": 1}}
    spec["admission"] = {"policy": "Predictive", "classes": _CLASSES}
    path = folder / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def turn_on(cluster: Cluster, folder: Path) -> None:
    """Give the running cluster API keys, and batches."""
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    path = folder / "claim.yaml"
    path.write_text(yaml.safe_dump(claim))
    cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl("create", "secret", "generic", "api-keys", f"--from-literal=team={KEY}")
    cluster.patch({"gateway": {"auth": {"secretName": "api-keys"}}, "batch": {"claim": CLAIM, "maxInFlight": 4}})
    wait_until("gateways with keys", cluster.rolled_out, seconds=120)
    wait_until("the batch Pod", lambda: _ready(cluster.pods("batch")), seconds=60)


def _ready(pods: list[Any]) -> bool:
    return any(
        each["type"] == "Ready" and each["status"] == "True"
        for pod in pods
        for each in pod.get("status", {}).get("conditions", [])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="OpenAI's batch API on real engines.")
    parser.add_argument("--lines", type=int, default=40)
    count = parser.parse_args().lines
    with tempfile.TemporaryDirectory(prefix="batches") as name:
        folder = Path(name)
        with local_cluster(folder / "home", manifest=manifest(folder), name=NAME, model=TINY) as cluster:
            try:
                turn_on(cluster, folder)
                good = asyncio.run(measure(cluster, count))
            except BaseException:
                print(cluster.described())
                print(cluster.kubectl("logs", f"deployment/{NAME}-batch", "--tail=40", check=False))
                raise
            if not good:
                print(cluster.described())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
