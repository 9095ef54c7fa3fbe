"""Overload on real vLLM workers: 2x and 4x of what they can serve, in bursts, under each admission policy.

    python benchmarks/overload.py                          # brings up examples/auto.yaml, and takes it down again
    python benchmarks/overload.py --kubeconfig F           # uses the cluster that is there
    python benchmarks/overload.py --policies Off,Predictive --seconds 60

What the workers can serve is measured first: the SLO is six times the unloaded TTFT and three times the
unloaded TPOT, capacity the most requests a second inside it that any number of closed-loop clients gets. Then open-loop
load of three classes: premium asks for 0.2 and standard for 0.3 of the capacity, free for all the rest. Clients hang up
long after the SLO is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from local_cluster import REPOSITORY, Cluster, CommandError, local_cluster, wait_until
from overload_load import CLASSES, NAMES, OUTPUT_TOKENS, PROMPT_TOKENS, Ask, Seen, arrivals, send

from fulcrum.replay import Client, Endpoint, Outcome, Slo, discover

TTFT_FACTOR: Final = 6.0
TPOT_FACTOR: Final = 3.0
PREMIUM: Final = 0.2
STANDARD: Final = 0.3
"""Parts of the capacity that these classes ask for; free asks for the rest."""
ATTAINMENT: Final = 0.98
_CLIENTS: Final = (2, 4, 6, 9)
"""Numbers of closed-loop clients of which the best is the capacity."""
_UNLOADED: Final = 8
_FIRST_PROMPTS: Final = count(0, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What the workers of a cluster can do, here and now."""

    endpoint: Endpoint
    slo: Slo
    capacity: float
    """Requests per second."""

    @property
    def patience_seconds(self) -> float:
        """How long a client waits before it hangs up."""
        return 4 * (self.slo.ttft_seconds + OUTPUT_TOKENS * self.slo.tpot_seconds)

    def summary(self) -> str:
        """One line."""
        return (
            f"SLO: TTFT {self.slo.ttft_seconds * 1000:.0f} ms, TPOT {self.slo.tpot_seconds * 1000:.0f} ms; "
            f"capacity {self.capacity:.2f} requests/s inside it"
        )

    def rates(self, load: float) -> dict[str, float]:
        """Requests per second of each class, at `load` times the capacity."""
        parts = (PREMIUM, STANDARD, load - PREMIUM - STANDARD)
        return {qos: part * self.capacity for qos, part in zip(NAMES, parts, strict=True)}

    def run(
        self, cluster: Cluster, rates: dict[str, float], *, seconds: float, seed: int, come_back: bool = False
    ) -> Seen:
        """One phase of load."""
        return asyncio.run(
            send(
                cluster.endpoint(),
                self.endpoint,
                arrivals(rates, seconds=seconds, seed=seed),
                seconds=seconds,
                slo=self.slo,
                patience_seconds=self.patience_seconds,
                come_back=come_back,
                first_prompt=next(_FIRST_PROMPTS),
            )
        )


def set_policy(cluster: Cluster, policy: str, slo: Slo | None = None) -> None:
    """Patch the admission policy, and the SLO, and wait until every gateway has it."""
    before = {pod["metadata"]["uid"] for pod in cluster.pods("gateway")}
    spec: dict[str, object] = {"admission": {"policy": policy, "classes": CLASSES}}
    if slo is not None:
        spec["slo"] = {
            "ttft": f"{slo.ttft_seconds * 1000:.0f}ms",
            "tpot": f"{slo.tpot_seconds * 1000:.0f}ms",
            "attainment": ATTAINMENT,
        }
    cluster.patch(spec)

    def rolled() -> bool:
        pods = cluster.pods("gateway")
        ready = [
            p
            for p in pods
            if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
        ]
        return len(ready) == len(pods) and before.isdisjoint(pod["metadata"]["uid"] for pod in pods)

    wait_until(f"gateways with the policy {policy}", rolled, seconds=60)


def measure(cluster: Cluster, *, seconds: float) -> Workers:
    """SLO and capacity; the cluster's policy is Off meanwhile."""
    set_policy(cluster, "Off")
    return asyncio.run(_measure(cluster.endpoint(), seconds))


async def _measure(url: str, seconds: float) -> Workers:
    usual = Ask(due_seconds=0, qos="free", prompt_tokens=round(PROMPT_TOKENS), output_tokens=round(OUTPUT_TOKENS))
    loose = Slo(ttft_seconds=60, tpot_seconds=60)
    async with Client(url, timeout_seconds=60) as client:
        endpoint = await discover(client)
    ttfts, tpots = [], []
    for number in range(_UNLOADED):
        seen = await send(
            url, endpoint, [usual], seconds=1, slo=loose, patience_seconds=60, first_prompt=next(_FIRST_PROMPTS)
        )
        record = seen.told[0].record
        if record.outcome is not Outcome.OK:
            raise CommandError(f"a request to an idle cluster failed: {record.detail}")
        if number:  # the first one pays for connections
            ttfts.append(record.ttft_seconds or 0.0)
            tpots.append(record.tpot_seconds or 0.0)
    slo = Slo(ttft_seconds=round(TTFT_FACTOR * median(ttfts), 3), tpot_seconds=round(TPOT_FACTOR * median(tpots), 3))
    print(f"unloaded: TTFT {median(ttfts) * 1000:.0f} ms, TPOT {median(tpots) * 1000:.0f} ms", flush=True)
    best = 0.0
    for clients in _CLIENTS:
        seen = await _closed_loop(url, endpoint, clients, seconds=seconds / len(_CLIENTS), slo=slo)
        print(
            f"  {clients:2d} clients in closed loop: {len(seen.told) / seen.seconds:5.2f} requests/s, "
            f"{seen.goodput:5.2f} inside the SLO; {seen.missed()}; machine {seen.machine_busy:.0%}",
            flush=True,
        )
        best = max(best, seen.goodput)
    return Workers(endpoint=endpoint, slo=slo, capacity=best)


async def _closed_loop(url: str, endpoint: Endpoint, clients: int, *, seconds: float, slo: Slo) -> Seen:
    """So many clients, each sending its next request after the answer."""
    started = perf_counter()

    async def client() -> list[Seen]:
        seen = []
        first = next(_FIRST_PROMPTS)
        for number, ask in enumerate(arrivals({"free": 10.0}, seconds=100, seed=first)):
            if perf_counter() - started > seconds:
                break
            now = replace(ask, due_seconds=0)
            seen.append(
                await send(url, endpoint, [now], seconds=1, slo=slo, patience_seconds=60, first_prompt=first + number)
            )
        return seen

    each = [one for seen in await asyncio.gather(*(client() for _ in range(clients))) for one in seen]
    told = tuple(told for one in each for told in one.told)
    busy = sum(one.machine_busy for one in each) / len(each)
    return Seen(seconds=perf_counter() - started, told=told, slo=slo, machine_busy=busy)


COLUMNS: Final = (
    "policy", "load", "offered", "admitted", "attained", "premium", "standard", "free", "wasted", "goodput/s",
    "reject p50", "p99", "max ms", "preempted", "machine",
)  # fmt: skip


def header() -> str:
    return "  ".join(f"{name:>9}" for name in COLUMNS)


def row(policy: str, load: str, seen: Seen) -> str:
    """One line of the table; the classes' shares are of all that they asked for."""
    rejections = seen.rejection_seconds
    cells = (
        policy, load, str(len(seen.told)), str(len(seen.admitted())), _percent(seen.attainment()),
        *(_percent(seen.served(qos)) for qos in NAMES), _percent(seen.wasted_prefill), f"{seen.goodput:.2f}",
        *(_milliseconds(rejections, share) for share in (0.5, 0.99, 1.0)),
        str(sum(told.preempted for told in seen.told)), f"{seen.machine_busy:.0%}",
    )  # fmt: skip
    return "  ".join(f"{cell:>9}" for cell in cells)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _milliseconds(sorted_seconds: Sequence[float], share: float) -> str:
    if not sorted_seconds:
        return "-"
    return f"{sorted_seconds[min(int(share * len(sorted_seconds)), len(sorted_seconds) - 1)] * 1000:.1f}"


def contest(cluster: Cluster, policies: Sequence[str], *, seconds: float, seed: int) -> None:
    """The table: each policy under the same load."""
    workers = measure(cluster, seconds=seconds)
    print(f"{workers.summary()}\n{header()}", flush=True)
    for policy in policies:
        set_policy(cluster, policy, workers.slo)
        alone = workers.run(cluster, {"premium": PREMIUM * workers.capacity}, seconds=seconds, seed=seed)
        print(row(policy, "premium", alone), flush=True)
        for load in (2.0, 4.0):
            seen = workers.run(cluster, workers.rates(load), seconds=seconds, seed=seed)
            print(row(policy, f"{load:g}x", seen), flush=True)
            print(f"      {seen.missed()}")
            for problem, times in seen.problems().most_common():
                print(f"      {times:4d} x {problem}")
        if policy != "Off":
            seen = workers.run(cluster, workers.rates(0.9), seconds=seconds, seed=seed, come_back=True)
            print(row(policy, "0.9x", seen))
            again = sum(told.again is not None for told in seen.told)
            print(
                f"      {again} came back after their Retry-After: {_percent(seen.came_back)} were let in", flush=True
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of load in each line of the table")
    parser.add_argument("--policies", default="Off,Threshold,Predictive")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster; 4 workers, ready")
    parser.add_argument("--name", default="overload", help="name of the InferenceCluster")
    parser.add_argument("--namespace", default="default")
    options = parser.parse_args()
    policies = options.policies.split(",")
    try:
        if options.kubeconfig is not None:
            cluster = Cluster(kubeconfig=options.kubeconfig, name=options.name, namespace=options.namespace)
            contest(cluster, policies, seconds=options.seconds, seed=options.seed)
            return 0
        manifest = REPOSITORY / "examples" / "overload.yaml"
        with (
            tempfile.TemporaryDirectory(prefix="fulcrum-overload-") as home,
            local_cluster(Path(home), manifest=manifest, name="overload") as cluster,
        ):
            wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=300)
            contest(cluster, policies, seconds=options.seconds, seed=options.seed)
    except (CommandError, TimeoutError) as error:
        print(f"overload FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
