"""Overload on real vLLM workers: 2x and 4x of what they can serve, in bursts, under each admission policy.

    python benchmarks/overload.py                          # brings up examples/overload.yaml, and takes it down again
    python benchmarks/overload.py --kubeconfig F           # uses the cluster that is there
    python benchmarks/overload.py --policies Off,Predictive --seconds 60
    python benchmarks/overload.py --slo 6,3                # tighter: one prompt takes a quarter of the promise here

What the workers can serve is measured first: the SLO is ten times the unloaded TTFT and five times the unloaded TPOT,
as in the evaluation of Mooncake (arXiv 2407.00079), and capacity the most requests a second inside it that any
number of closed-loop clients gets. Then comes open-loop load of three classes: premium asks for 0.2 and standard for
0.3 of the capacity, free for the rest. Clients hang up when a request has taken twice as long as the SLO allows. Exits
with 0 only when Predictive kept its promises.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import sqrt
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from local_cluster import REPOSITORY, Cluster, CommandError, local_cluster, wait_until
from overload_load import CLASSES, NAMES, OUTPUT_TOKENS, PROMPT_TOKENS, Ask, Seen, arrivals, send

from fulcrum.replay import Client, Endpoint, LatencyLimits, Outcome, discover

SLO_FACTORS: Final = 10.0, 5.0
"""SLO in units of the unloaded TTFT and TPOT."""
PREMIUM: Final = 0.2
STANDARD: Final = 0.3
"""Parts of the capacity that these classes ask for; free asks for the rest."""
DRY: Final = PREMIUM + STANDARD
"""Load without any free traffic."""
ATTAINMENT: Final = 0.98
"""Configured."""
WASTED: Final = 0.02
"""Share of prefill work spent on requests that then miss the SLO."""
REJECTION_SECONDS: Final = 0.05
HARMED: Final = 0.02
"""Share of premium requests that a flood of free ones may cost."""
CAME_BACK: Final = 0.5
"""Share of those that return after their Retry-After, as workers were too busy, that is let in, at least."""
_UNLIKELY: Final = 2.33
"""Standard deviations of what happens once in a hundred times."""
_CLIENTS: Final = (3, 6, 9, 13)
"""Numbers of closed-loop clients of which the best is the capacity."""
_UNLOADED: Final = 6
_FIRST_PROMPTS: Final = count(0, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What the workers of a cluster can do, here and now."""

    endpoint: Endpoint
    slo: LatencyLimits
    capacity: float
    """Requests per second."""

    @property
    def patience_seconds(self) -> float:
        """How long a client waits before it hangs up: twice what the SLO allows a usual request."""
        return 2 * (self.slo.ttft_seconds + OUTPUT_TOKENS * self.slo.tpot_seconds)

    def summary(self) -> str:
        """One line."""
        return (
            f"SLO: TTFT {self.slo.ttft_seconds * 1000:.0f} ms, TPOT {self.slo.tpot_seconds * 1000:.0f} ms; "
            f"capacity {self.capacity:.2f} requests/s inside it"
        )

    def rates(self, load: float) -> dict[str, float]:
        """Requests per second of each class, at `load` times the capacity."""
        parts = (PREMIUM, STANDARD, load - PREMIUM - STANDARD)
        return {qos: part * self.capacity for qos, part in zip(NAMES, parts, strict=True) if part > 1e-6}

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


def set_policy(cluster: Cluster, policy: str, slo: LatencyLimits | None = None) -> None:
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


def measure(cluster: Cluster, *, seconds: float, factors: Sequence[float] = SLO_FACTORS) -> Workers:
    """SLO (`factors`: in units of the unloaded TTFT and TPOT) and capacity; the cluster's policy is Off meanwhile."""
    set_policy(cluster, "Off")
    return asyncio.run(_measure(cluster.endpoint(), seconds, factors))


async def _measure(url: str, seconds: float, factors: Sequence[float]) -> Workers:
    usual = Ask(due_seconds=0, qos="free", prompt_tokens=round(PROMPT_TOKENS), output_tokens=round(OUTPUT_TOKENS))
    loose = LatencyLimits(ttft_seconds=60, tpot_seconds=60)
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
    slo = LatencyLimits(
        ttft_seconds=round(factors[0] * median(ttfts), 3), tpot_seconds=round(factors[1] * median(tpots), 3)
    )
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


async def _closed_loop(url: str, endpoint: Endpoint, clients: int, *, seconds: float, slo: LatencyLimits) -> Seen:
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


def broken(dry: Seen, floods: Sequence[Seen], returned: Seen) -> list[str]:
    """Promises of early rejection that were not kept. `dry`: premium and standard alone; `floods`: with the free ones;
    `returned`: below capacity, where those that were turned away came back."""
    let_in = [told for seen in floods for told in seen.admitted()]
    kept = sum(seen.met() for seen in floods) / max(len(let_in), 1)
    prompt_tokens = sum(told.ask.prompt_tokens for told in let_in)
    missed = [told for told in let_in if not dry.slo.met_by(told.record)]
    wasted = sum(told.ask.prompt_tokens for told in missed) / max(prompt_tokens, 1)
    premium = sum(len(seen.of("premium")) for seen in floods)
    served = sum(seen.met("premium") for seen in floods) / premium
    alone = dry.served("premium") or 0.0
    slowest = max((rejected_within(seen, 0.99) for seen in floods), default=0.0)
    back = returned.came_back()
    checks = (
        (all(seen.whole for seen in (dry, *floods, returned)), "a request was neither served whole nor turned away"),
        (kept >= ATTAINMENT - _chance(ATTAINMENT, len(let_in)), f"{kept:.1%} of those that were let in met the SLO"),
        (wasted < WASTED + _chance(WASTED, len(let_in)), f"{wasted:.1%} of the prefill was wasted"),
        (slowest < REJECTION_SECONDS, f"the ninety-ninth of a hundred rejections took {slowest:.3f} s"),
        (
            served > alone - HARMED - _chance(served, premium),
            f"{served:.0%} of premium requests were served in the floods, {alone:.0%} without",
        ),
        (
            sum(back) >= (CAME_BACK - _chance(CAME_BACK, len(back))) * len(back),
            f"{sum(back)} of {len(back)} that came back to workers that had been too busy were let in",
        ),
    )
    return [problem for held, problem in checks if not held]


def _chance(share: float, count: int) -> float:
    """By how much a share that is seen of so few requests may be off once in a hundred runs."""
    return _UNLIKELY * sqrt(share * (1 - share) / max(count, 1))


def rejected_within(seen: Seen, share: float) -> float:
    """Time in which this share of the rejections at arrival was answered; 0 without any."""
    answered = seen.rejection_seconds
    return answered[min(int(share * len(answered)), len(answered) - 1)] if answered else 0.0


def phase(cluster: Cluster, workers: Workers, policy: str, load: float, *, seconds: float, seed: int) -> Seen:
    """One phase of load, with its line of the table; below capacity, those that are turned away come back."""
    seen = workers.run(cluster, workers.rates(load), seconds=seconds, seed=seed, come_back=DRY < load < 1)
    print(f"{row(policy, f'{load:g}x', seen)}\n      {seen.missed()}", flush=True)
    for problem, times in seen.problems().most_common():
        print(f"      {times:4d} x {problem}")
    for kept, why in ((False, "workers were too busy"), (True, "room was kept for other classes")):
        if back := seen.came_back(kept=kept):
            print(f"      came back after their Retry-After, as {why}: {sum(back)} of {len(back)} were let in")
    return seen


def contest(cluster: Cluster, policies: Sequence[str], *, seconds: float, factors: Sequence[float], seed: int) -> int:
    """The table: each policy under the same load. How many promises Predictive broke."""
    workers = measure(cluster, seconds=seconds, factors=factors)
    print(f"{workers.summary()}\n{header()}", flush=True)
    problems: list[str] = []
    for policy in policies:
        set_policy(cluster, policy, workers.slo)
        dry, *floods, returned = (
            phase(cluster, workers, policy, load, seconds=seconds, seed=seed) for load in (DRY, 2.0, 4.0, 0.9)
        )
        if policy == "Predictive":
            problems = broken(dry, floods, returned)
    print("overload " + (f"FAILED: {'; '.join(problems)}" if problems else "ok"))
    return len(problems)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of load in each line of the table")
    parser.add_argument("--policies", default="Off,Threshold,Predictive")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slo", default="10,5", help="times the unloaded TTFT, times the unloaded TPOT")
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster, whose workers are ready")
    parser.add_argument("--name", default="overload", help="name of the InferenceCluster")
    parser.add_argument("--namespace", default="default")
    options = parser.parse_args()
    policies = options.policies.split(",")
    factors = [float(factor) for factor in options.slo.split(",")]
    if len(factors) != 2 or min(factors) <= 1:
        parser.error("--slo: two numbers above 1 with a comma, such as 10,5")
    run = partial(contest, policies=policies, seconds=options.seconds, factors=factors, seed=options.seed)
    try:
        if options.kubeconfig is not None:
            cluster = Cluster(kubeconfig=options.kubeconfig, name=options.name, namespace=options.namespace)
            return 1 if run(cluster) else 0
        manifest = REPOSITORY / "examples" / "overload.yaml"
        with (
            tempfile.TemporaryDirectory(prefix="fulcrum-overload-") as home,
            local_cluster(Path(home), manifest=manifest, name="overload") as cluster,
        ):
            wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=300)
            return 1 if run(cluster) else 0
    except (CommandError, TimeoutError) as error:
        print(f"overload FAILED: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
