"""How long a flip takes on real engines: from `kubectl patch` to the first request served in the new role.

    python benchmarks/flip.py                        # brings up examples/quickstart.yaml, and takes it down again
    python benchmarks/flip.py --kubeconfig F         # uses the cluster that is there

The clock starts when the kubectl process is started, and again when the API server has accepted the patch (a watch
sees it). It stops when the first byte of an answer arrives whose headers say that the flipped worker served it in its
new role. Exits with 0 only when the median is within the target and no probe was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Self

import aiohttp
from local_cluster import BIN, Cluster, CommandError, local_cluster, wait_until

from fulcrum.kube import Api, Changed, Event, Json, Listed, follow, selector

TARGET_MEDIAN_SECONDS = 0.300
DEADLINE_SECONDS = 30.0
RATIOS = ((3, 1), (2, 2), (1, 3), (2, 2))
"""Each differs from the one before by one worker, so that each patch is one flip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One probe that was answered, on the benchmark's clock."""

    sent_seconds: float
    first_byte_seconds: float
    prefill: str
    decode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Seconds from the start of `kubectl patch`."""

    accepted: float
    labelled: float
    """The worker's Pod has its new role."""
    sent: float
    """The first request that was routed by the new role was sent."""
    served: float


class Watch:
    """Objects as the API server sends them: when each came, and what `fields` says of it."""

    def __init__(
        self, events: AsyncIterable[Event[Json]], fields: Callable[[Any], tuple[str, str]], *, at_first: int
    ) -> None:
        self._events = events
        self._fields = fields
        self._at_first = at_first
        self.seen: list[tuple[float, str, str]] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Returns when the `at_first` objects that are there already have come."""
        self._task = asyncio.create_task(self._read())
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.seen) < self._at_first:
                await self._next()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        async for event in self._events:
            items = event.items if isinstance(event, Listed) else [event.object] if isinstance(event, Changed) else []
            self.seen.extend((perf_counter(), *self._fields(item)) for item in items)
            self._changed.set()

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def first(self, since: int, wanted: Callable[[str, str], bool]) -> tuple[float, str, str]:
        """The first from number `since` on that is `wanted`, waiting for it."""
        while True:
            for at_seconds, one, other in self.seen[since:]:
                if wanted(one, other):
                    return at_seconds, one, other
            await self._next()


class Probes:
    """Short requests, `count` at a time, one after the other."""

    def __init__(self, url: str, model: str, count: int) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self._count = count
        self.served: list[Served] = []
        self.problems: list[str] = []
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, number: int) -> None:
        connector = aiohttp.TCPConnector(force_close=True)  # so that every gateway gets its share
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
            while True:
                number += self._count
                # Longer than a KV block and new each time, so that there is KV to hand over.
                prompt = f"{number} " + "one two three four five six seven eight nine ten " * 2
                body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
                try:
                    await self._one(session, body)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self.problems.append(repr(error))

    async def _one(self, session: aiohttp.ClientSession, body: dict[str, object]) -> None:
        sent_seconds = perf_counter()
        async with session.post(self._url, json=body) as response:
            first_byte_seconds = 0.0
            content = b""
            async for data in response.content.iter_any():
                first_byte_seconds = first_byte_seconds or perf_counter()
                content += data
            if response.status != 200 or b"[DONE]" not in content:
                self.problems.append(f"HTTP {response.status}: {content[:200].decode(errors='replace')}")
                return
            prefill, _, decode = response.headers.get("x-fulcrum-path", "").partition(",")
            served = Served(
                sent_seconds=sent_seconds,
                first_byte_seconds=first_byte_seconds,
                prefill=prefill,
                decode=decode,
            )
        self.served.append(served)
        self._changed.set()

    async def first(self, since: int, worker: str, role: str) -> Served:
        """The first answer from number `since` on that `worker` served in `role`, waiting for it."""
        while True:
            found = [probe for probe in self.served[since:] if getattr(probe, role) == worker]
            if found:
                return min(found, key=lambda probe: probe.first_byte_seconds)
            self._changed.clear()
            await self._changed.wait()


async def measure(cluster: Cluster, *, flips: int, probes_at_once: int) -> tuple[list[Flip], list[str]]:
    """The flips, one after the other, and what went wrong with probes meanwhile."""
    cluster.patch_ratio(2, 2)
    wait_until("2P:2D", lambda: cluster.roles() == {"prefill": 2, "decode": 2}, seconds=DEADLINE_SECONDS)
    api = Api(cluster.kubeconfig)
    workers = selector({"fulcrum.dev/cluster": cluster.name, "app.kubernetes.io/component": "worker"})
    of_workers = follow(api, f"/api/v1/namespaces/{cluster.namespace}/pods", dict[str, Any], selectors=workers)
    of_cluster = follow(
        api,
        f"/apis/fulcrum.dev/v1alpha1/namespaces/{cluster.namespace}/inferenceclusters",
        dict[str, Any],
        selectors={"fieldSelector": f"metadata.name={cluster.name}"},
    )
    measured: list[Flip] = []
    async with (
        Watch(of_workers, _name_and_role, at_first=4) as pods,
        Watch(of_cluster, _ratio, at_first=1) as ratios,
        Probes(cluster.endpoint(), cluster.name, probes_at_once) as probes,
    ):
        for number in range(flips):
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    flip, what = await _flip(cluster, RATIOS[number % len(RATIOS)], pods, ratios, probes)
            except TimeoutError:
                raise TimeoutError(f"flip {number + 1} was not seen within {DEADLINE_SECONDS:g} s") from None
            measured.append(flip)
            print(
                f"{number + 1:3d}  {what:28}  accepted {flip.accepted * 1000:5.0f} ms  labelled "
                f"{flip.labelled * 1000:5.0f} ms  served {flip.served * 1000:5.0f} ms",
                flush=True,
            )
    await api.close()
    return measured, probes.problems


async def _flip(
    cluster: Cluster, ratio: tuple[int, int], pods: Watch, ratios: Watch, probes: Probes
) -> tuple[Flip, str]:
    roles = {name: role for _, name, role in pods.seen}
    pods_before, ratios_before, probes_before = len(pods.seen), len(ratios.seen), len(probes.served)
    wanted = tuple(map(str, ratio))
    patch = json.dumps({"spec": {"balance": {"ratio": {"prefill": ratio[0], "decode": ratio[1]}}}})
    arguments = ["-n", cluster.namespace, "patch", "ic", cluster.name, "--type", "merge", "-p", patch]
    start_seconds = perf_counter()
    kubectl = await asyncio.create_subprocess_exec(
        str(BIN / "kubectl"), *arguments, env=cluster.env, stdout=asyncio.subprocess.DEVNULL
    )
    accepted_seconds, *_ = await ratios.first(ratios_before, lambda *now: now == wanted)
    labelled_seconds, worker, role = await pods.first(
        pods_before, lambda name, role: role in {"prefill", "decode"} and roles[name] != role
    )
    served = await probes.first(probes_before, worker, role)
    await kubectl.wait()
    flip = Flip(
        accepted=accepted_seconds - start_seconds,
        labelled=labelled_seconds - start_seconds,
        sent=served.sent_seconds - start_seconds,
        served=served.first_byte_seconds - start_seconds,
    )
    return flip, f"{worker} -> {role}"


def _name_and_role(pod: Any) -> tuple[str, str]:
    return pod["metadata"]["name"], pod["metadata"]["labels"].get("fulcrum.dev/role", "")


def _ratio(cluster: Any) -> tuple[str, str]:
    ratio = cluster["spec"]["balance"].get("ratio", {})
    return str(ratio.get("prefill")), str(ratio.get("decode"))


def show(name: str, seconds: Sequence[float]) -> None:
    p90 = quantiles(seconds, n=10)[-1] if len(seconds) > 1 else seconds[0]
    print(f"{name:44} median {median(seconds) * 1000:6.1f} ms   p90 {p90 * 1000:6.1f} ms")


def report(flips: list[Flip], problems: list[str]) -> int:
    print()
    show("kubectl patch -> accepted by the API server", [f.accepted for f in flips])
    show("accepted -> Pod has the new role", [f.labelled - f.accepted for f in flips])
    show("new role -> first request served in it", [f.served - f.labelled for f in flips])
    show("  of which that request took", [f.served - f.sent for f in flips])
    show("accepted -> first request served", [f.served - f.accepted for f in flips])
    show("kubectl patch -> first request served", [f.served for f in flips])
    for problem in problems[:5]:
        print(f"probe: {problem}")
    middle_seconds = median(f.served for f in flips)
    ok = middle_seconds < TARGET_MEDIAN_SECONDS and not problems
    verdict = "ok" if ok else "FAILED"
    print(
        f"flip {verdict}: {len(flips)} flips, median {middle_seconds * 1000:.0f} ms from kubectl patch "
        f"to the first request served in the new role (target below {TARGET_MEDIAN_SECONDS * 1000:.0f} ms), "
        f"{len(problems)} probes lost"
    )
    return 0 if ok else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=40)
    parser.add_argument("--probes", type=int, default=2, help="requests under way at any time")
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster; 4 workers, ready")
    parser.add_argument("--name", default="quickstart", help="name of the InferenceCluster")
    parser.add_argument("--namespace", default="default")
    options = parser.parse_args()
    if options.flips < 1:
        parser.error("--flips must be at least 1")
    try:
        if options.kubeconfig is not None:
            cluster = Cluster(kubeconfig=options.kubeconfig, name=options.name, namespace=options.namespace)
            return report(*asyncio.run(measure(cluster, flips=options.flips, probes_at_once=options.probes)))
        with tempfile.TemporaryDirectory(prefix="fulcrum-flip-") as home, local_cluster(Path(home)) as cluster:
            wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=300)
            return report(*asyncio.run(measure(cluster, flips=options.flips, probes_at_once=options.probes)))
    except (CommandError, TimeoutError) as error:
        print(f"flip FAILED: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
