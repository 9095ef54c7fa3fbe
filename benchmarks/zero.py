"""Scale to zero on real engines: requests that find no worker are held, none is lost, and how long they waited.

    python benchmarks/zero.py            # about 6 minutes: starts a local cluster with the tiny model

Rounds: a plain wake, a request while workers drain, the operator killed while it wakes, a gateway killed while it
holds. Clients try again after a broken connection and after 503, as official ones do. Exit code 1 if one gets no
answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from local_cluster import REPOSITORY, Cluster, local_cluster, wait_until
from processes import processes
from this_machine import TINY

IDLE_AFTER: Final = "10s"
REQUESTS: Final = 6
"""Held together in each round: every second one streams."""
MOST_TRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request."""

    ok: bool
    seconds: float
    """Until its first token, where it streams; else until its end."""
    tries: int
    comments: int
    """SSE comments before the first token."""


def ask(cluster: Cluster, number: int) -> Answer:
    """Ask until there is an answer."""
    stream, began, comments = number % 2 == 0, time.monotonic(), 0
    body = {"model": cluster.name, "prompt": f"Line {number}: the sky", "max_tokens": 8, "stream": stream}
    url = f"{cluster.endpoint()}/v1/completions"
    for tries in range(1, MOST_TRIES + 1):
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=900) as response:
                first = 0.0
                for line in response:
                    comments += line.startswith(b": waiting")
                    if b'"choices"' in line and not first:
                        first = time.monotonic() - began
                    if b"[DONE]" in line or (first and not stream):
                        return Answer(ok=True, seconds=first, tries=tries, comments=comments)
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(1)
    return Answer(ok=False, seconds=time.monotonic() - began, tries=MOST_TRIES, comments=comments)


def state(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.cluster()["status"].get("sleep") or {})


def fall_asleep(cluster: Cluster) -> None:
    wait_until("asleep", lambda: state(cluster).get("state") == "Asleep" and not cluster.workers(), seconds=240)


def kill(cluster: Cluster, component: str, namespace: str) -> None:
    """End the main process of one Pod with SIGKILL."""
    selector = f"app.kubernetes.io/component={component}"
    pod = cluster.read("pods", namespace=namespace, labels=selector)["items"][0]["metadata"]["name"]
    processes(cluster, pod=pod)[0].kill()


def waking(cluster: Cluster) -> None:
    wait_until("waking", lambda: state(cluster).get("state") == "Waking", seconds=60, every_seconds=0.1)


def round_of(cluster: Cluster, name: str, pool: ThreadPoolExecutor) -> bool:
    if name == "while workers drain":
        going = ("FallingAsleep", "Asleep")
        wait_until("draining", lambda: state(cluster).get("state") in going, seconds=240, every_seconds=0.05)
    else:
        fall_asleep(cluster)
    found = state(cluster)["state"]
    asked: list[Future[Answer]] = [pool.submit(ask, cluster, number) for number in range(REQUESTS)]
    if name == "operator killed":
        waking(cluster)
        kill(cluster, "operator", "fulcrum-system")
    elif name == "gateway killed":
        waking(cluster)
        kill(cluster, "gateway", cluster.namespace)
    answers = [each.result() for each in asked]
    seconds = sorted(answer.seconds for answer in answers)
    lost = sum(not answer.ok for answer in answers)
    print(
        f"{name:22} found {found:13} held {len(answers)}  lost {lost}  tries {sum(a.tries for a in answers):2}  "
        f"comments {sum(a.comments for a in answers):2}  first token {seconds[0]:.1f} to {seconds[-1]:.1f} s",
        flush=True,
    )
    return not lost


def manifest(folder: Path) -> Path:
    """Write `examples/auto.yaml` for two gateways and workers from none on."""
    document = yaml.safe_load((REPOSITORY / "examples" / "auto.yaml").read_text(encoding="utf-8"))
    spec = document["spec"]
    spec["pools"][0]["workers"] = {"min": 0, "max": 2}
    spec["pools"][0]["template"] = {}
    spec["balance"]["idleAfter"] = IDLE_AFTER
    spec["gateway"] = {"replicas": 2, "heartbeat": "5s"}
    path = folder / "zero.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="zero") as name, ThreadPoolExecutor(REQUESTS) as pool:
        folder = Path(name)
        with local_cluster(folder / "home", manifest=manifest(folder), name="auto", model=TINY) as cluster:
            try:
                rounds = ("plain wake", "while workers drain", "operator killed", "gateway killed")
                right = [round_of(cluster, each, pool) for each in rounds]
                wait_until("awake", lambda: state(cluster).get("state") == "Awake", seconds=60)
                print("status.sleep:", json.dumps(state(cluster)))
                print(
                    cluster.kubectl(
                        "get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=R:.reason,M:.message"
                    )
                )
            except BaseException:
                print(cluster.described())
                raise
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
