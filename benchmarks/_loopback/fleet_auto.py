"""What rehearsals of many clusters in mode Auto cost one operator and the process in which it plays."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import psutil
from _loopback.fleet_gateways import Fleet
from _loopback.fleet_hand import Hand
from _loopback.fleet_processes import api_server, apply, calls, cpu_seconds, metrics_url, operator, until
from _loopback.fleet_recordings import GATEWAYS, Recordings

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.sources import TICK_SECONDS
from fulcrum.kube import Api, Json

WORKERS = 10
CORES = 1.0
MEMORY_BYTES = 2**30
"""Both of the operator and the process that plays, together."""
PACE = 0.9
"""Share of the looks that are due: an event loop that has no more of its core falls behind, and uses no more."""
_SAMPLE_SECONDS = 0.5
_WAIT = "rehearsal_longest_wait_seconds"
_CALM = "calm_look_seconds"
_LINE = re.compile(
    rf"^fulcrum_operator_(\w+_total|\w+_seconds_(?:sum|count)|{_WAIT}|{_CALM})(?:\{{([^}}]*)\}})? (\S+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    clusters: int
    troubled: int
    minutes: float
    period_seconds: float
    """How long each mix of a troubled cluster lasts."""
    settle_seconds: float
    """From the last Pod to the beginning of what is measured."""
    rehearse: bool
    patience_seconds: float


@dataclass(slots=True, kw_only=True)
class Row:
    """What was measured with so many clusters."""

    plan: Plan
    cores: float = 0.0
    """Of the operator alone."""
    play_cores: float = 0.0
    memory_bytes: float = 0.0
    """Resident, of both processes, at the end."""
    peak_bytes: float = 0.0
    """The most from the start of the operator to the end, seen every half second."""
    calls_per_second: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    """Requests to Pods, by path."""
    calm_seconds: float = 0.0
    """What the operator says, at the end: time between two looks at a calm cluster."""
    pace: float = 0.0
    """Scrapes of the clusters that are never troubled, as a share of those that are due at that pace."""
    troubled_pace: float = 0.0
    """Scrapes of the troubled ones as a share of those that are due if they are never calm."""
    flips: int = 0
    """Changes of a worker's role that were written."""
    metrics: Counter[str] = field(default_factory=Counter)
    """Increase of the operator's own counters, without their prefix, and with the label that matters."""
    start_rehearsals: float = 0.0
    """Before what is measured."""
    start_wait_seconds: float = 0.0
    wait_seconds: float = 0.0
    """Longest time from a question to its answer, before what is measured and in all."""

    def problems(self) -> Iterator[str]:
        """Targets that do not hold."""
        if (cores := self.cores + self.play_cores) > CORES:
            yield f"{cores:.2f} cores"
        if self.peak_bytes > MEMORY_BYTES:
            yield f"{self.peak_bytes / 2**20:.0f} MiB"
        if self.pace < PACE:
            yield f"it looks at calm clusters {self.pace:.0%} as often as every {self.calm_seconds:.0f} s"
        if self.plan.rehearse and not self.metrics["plays_total"]:
            yield "nothing was played"


def document(name: str, *, rehearse: bool) -> Json:
    """Return an InferenceCluster whose gateways and workers are those of `fleet_recordings`."""
    return {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "m"},
            "pools": [{"name": "p", "accelerator": "cpu", "workers": {"min": WORKERS, "max": WORKERS}}],
            "slo": {"ttft": "4s", "tpot": "18ms", "attainment": 0.95},
            "balance": {
                "mode": "Auto",
                "rehearse": "On" if rehearse else "Off",
                "ratio": {"prefill": WORKERS // 2, "decode": WORKERS // 2},
            },
        },
    }


class _Meter:
    """CPU and memory of the operator and its children."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.peak_bytes = self.memory_bytes = 0.0

    async def run(self) -> None:
        """Watch memory until cancelled."""
        while True:
            self.memory_bytes = sum(self._all(lambda each: each.memory_info().rss))
            self.peak_bytes = max(self.peak_bytes, self.memory_bytes)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def play_cpu_seconds(self) -> float:
        """Of the children so far, those that have ended included."""
        spent = self._process.cpu_times()
        return spent.children_user + spent.children_system + sum(self._all(cpu_seconds)[1:])

    def cpu_seconds(self) -> float:
        """Of the operator alone so far."""
        return cpu_seconds(self._process)

    def _all(self, figure: Callable[[psutil.Process], float]) -> list[float]:
        """Return a figure of the operator, and of each child that there is."""
        found = [figure(self._process)]
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(figure(child))
        return found


async def measure(plan: Plan) -> Row:
    """One fleet from nothing to its end."""
    names = [f"c{number}" for number in range(plan.clusters)]
    spec = msgspec.convert(document("c", rehearse=True)["spec"], InferenceClusterSpec)
    recordings = Recordings(spec, period_seconds=plan.period_seconds)
    if plan.troubled:
        recordings.make_all()
    fleet = Fleet(recordings, troubled=frozenset(names[: plan.troubled]))
    row = Row(plan=plan)
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, api_server(Path(name)) as (kubeconfig, _):
        async with _playing(kubeconfig, fleet) as (api, hand):
            with operator(Path(name)) as process:
                meter = _Meter(process)
                watching = asyncio.create_task(meter.run())
                try:
                    for each in names:
                        await apply(api, each, document(each, rehearse=plan.rehearse))
                    pods = plan.clusters * (WORKERS + GATEWAYS)
                    await until("all Pods", lambda: hand.count() >= pods, seconds=plan.patience_seconds)
                    await asyncio.sleep(plan.settle_seconds)
                    await _measured(row, api, fleet, meter, metrics_url(Path(name)))
                finally:
                    watching.cancel()
            _show_log(Path(name) / "operator.log")
    return row


@contextlib.asynccontextmanager
async def _playing(kubeconfig: Path, fleet: Fleet) -> AsyncIterator[tuple[Api, Hand]]:
    """Pods become ready, and answer."""
    api = Api(kubeconfig, timeout_seconds=60)
    hand = Hand(api, makes_gateways=True)
    hand.pods.subscribe(fleet.pod_changed)
    playing = asyncio.create_task(hand.run())
    try:
        async with fleet.listening():
            yield api, hand
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        await api.close()


async def _measured(row: Row, api: Api, fleet: Fleet, meter: _Meter, url: str) -> None:
    """Fill in what so many minutes cost."""
    before, asked, flips = await _metrics(url), Counter(fleet.asked), fleet.flips
    calls_before, cpu, play_cpu, began = (
        await calls(api),
        meter.cpu_seconds(),
        meter.play_cpu_seconds(),
        time.monotonic(),
    )
    await asyncio.sleep(60 * row.plan.minutes)
    spent = time.monotonic() - began
    row.cores = (meter.cpu_seconds() - cpu) / spent
    row.play_cores = (meter.play_cpu_seconds() - play_cpu) / spent
    row.memory_bytes, row.peak_bytes = meter.memory_bytes, meter.peak_bytes
    row.calls_per_second = max(0.0, await calls(api) - calls_before - 1) / spent
    after = await _metrics(url)
    row.metrics, row.asked, row.flips = after - before, fleet.asked - asked, fleet.flips - flips
    row.calm_seconds = after[_CALM]
    calm = row.plan.clusters - row.plan.troubled
    row.pace = (row.asked["/metrics"] - row.asked["troubled"]) / max(1.0, calm * GATEWAYS * spent / row.calm_seconds)
    row.troubled_pace = row.asked["troubled"] / max(1.0, row.plan.troubled * GATEWAYS * spent / TICK_SECONDS)
    row.start_rehearsals = sum(count for name, count in before.items() if name.startswith("rehearsals_total"))
    row.start_wait_seconds, row.wait_seconds = before[_WAIT], after[_WAIT]


async def _metrics(url: str) -> Counter[str]:
    """Return the operator's metrics without the prefix; of labels, the last value."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    found: Counter[str] = Counter()
    for name, labels, value in _LINE.findall(text):
        part = labels.rpartition('="')[2].rstrip('"')
        found[f"{name} {part}".strip()] += float(value)
    return found


def _show_log(log: Path) -> None:
    """Print how often the operator warned of what: a fleet that answers nonsense costs something else."""
    words = (line.split("WARNING", 1)[-1] for line in log.read_text().splitlines() if "WARNING" in line)
    for what, count in Counter(re.sub(r"c\d+|\d+", "#", word)[:160] for word in words).most_common(5):
        print(f"{count:6d} times: {what.strip()}")


def show(rows: list[Row]) -> int:
    """Print the table; 0 when every target holds."""
    print(
        "\n                  cores               looked at: calm   troubled                     rehearsals"
        "                                    longest wait s\n"
        "clusters troubled operator plays   all  every s  held  held   MiB peak MiB calls/s answered none unknown "
        "failed plays requests at start in all flips"
    )
    problems = []
    for row in rows:
        known = [row.metrics[f"rehearsals_total {result}"] for result in ("answered", "none", "unknown", "failed")]
        print(
            f"{row.plan.clusters:8d} {row.plan.troubled:8d} {row.cores:8.2f} {row.play_cores:5.2f} "
            f"{row.cores + row.play_cores:5.2f} {row.calm_seconds:8.1f} {row.pace:5.0%} {row.troubled_pace:5.0%} "
            f"{row.memory_bytes / 2**20:5.0f} {row.peak_bytes / 2**20:8.0f} {row.calls_per_second:7.2f} "
            f"{known[0]:8.0f} {known[1]:4.0f} {known[2]:7.0f} {known[3]:6.0f} {row.metrics['plays_total']:5.0f} "
            f"{row.metrics['played_requests_total']:8.0f} {row.start_wait_seconds:8.1f} {row.wait_seconds:6.1f} "
            f"{row.flips:5d}"
        )
        problems += [f"{row.plan.clusters} clusters: {problem}" for problem in row.problems()]
    print("every target holds" if not problems else "does not hold: " + "; ".join(problems))
    return 1 if problems else 0
