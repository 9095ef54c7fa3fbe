"""The page in a real browser: over a real API server, a real operator, and a fleet of 100 clusters."""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _loopback.browser import AXE, Tab
from _loopback.launch import free_ports
from _loopback.played_fleet import PlayedFleet, played_dashboard, served
from aiohttp import web
from tests.controller.cluster import (
    BIN,
    Agent,
    ApiServer,
    Cluster,
    Kubelet,
    Operator,
    client_of,
    eventually,
    running_api_server,
)
from tests.machine import deadline_seconds

from fulcrum.api.names import PORT_GATEWAY_INSIDE, Role
from fulcrum.api.worker import LoadReport
from fulcrum.controller.kube import EVENT, POD
from fulcrum.dashboard import Board

pytestmark = pytest.mark.integration

Json = dict[str, Any]
CLUSTERS, WORKERS = 100, 1000
LIVE = "document.getElementById('link').dataset.state === 'live'"
STALE = "document.getElementById('link').dataset.state === 'stale'"
SHOWN = """(() => {
  const text = id => document.getElementById(id).textContent;
  const cells = row => [...row.children].map(cell => cell.innerText);
  const rows = table => [...table.querySelectorAll("tbody tr")].map(cells);
  return {
    name: text("name"), state: text("state"), about: text("about"),
    values: Object.fromEntries([...document.querySelectorAll(".tile")].map(tile =>
      [tile.querySelector("dd").id, [...tile.querySelectorAll("dd")].map(dd => dd.textContent)])),
    notices: [...document.querySelectorAll(".notice")].map(notice => notice.textContent),
    workers: Object.fromEntries([...document.querySelectorAll(".role")].map(role =>
      [role.querySelector("h3").textContent, rows(role.querySelector("table"))])),
    titles: [...document.querySelectorAll(".role tbody th")].map(cell => cell.title),
    reasons: [...document.querySelectorAll("#reasons li")].map(item => item.innerText.split("\\n")),
    why: document.getElementById("why").innerText,
    decisions: [...document.querySelectorAll("#decisions li")].map(item => item.innerText.split("\\n")),
    charts: [...document.querySelectorAll(".chart svg")].map(chart => chart.getAttribute("aria-label")),
    html: document.documentElement.outerHTML,
  };
})()"""


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_api_server(tmp_path_factory.mktemp("api")) as server:
        server.install()
        # As the chart does with dashboard.enabled.
        server.kubectl("create", "clusterrole", "dashboard", "--verb=list,watch", "--resource=events")
        account = "--serviceaccount=fulcrum-system:fulcrum-operator"
        server.kubectl("create", "clusterrolebinding", "dashboard", "--clusterrole=dashboard", account)
        yield server


@pytest.fixture
async def cluster(api_server: ApiServer) -> AsyncIterator[Cluster]:
    namespace = f"t-{random.getrandbits(32):08x}"
    api_server.kubectl("create", "namespace", namespace)
    client = client_of(api_server)
    yield Cluster(api_server, client, namespace)
    await client.close()


class BusyAgent(Agent):
    """A worker that says how busy it is."""

    def __init__(self, role: Role, running: int, kv_usage: float) -> None:
        super().__init__()
        self._report = LoadReport(
            role=role, role_epoch=0, ready=True, draining=False, running=running, waiting=3, kv_usage=kv_usage
        )

    async def load(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._report))


@asynccontextmanager
async def gateway(address: str) -> AsyncIterator[None]:
    """A gateway's metrics: 20 requests arrive each second, of which 5 are turned away as Overloaded."""
    began = time.time()

    async def page(_: web.Request) -> web.Response:
        seconds = time.time() - began
        return web.Response(
            text='fulcrum_gateway_info{pod="c-gateway-x",fulcrum_cluster="c"} 1\n'
            f"process_start_time_seconds {began}\n"
            f'fulcrum_gateway_arrivals_total{{class="default"}} {20 * seconds}\n'
            f'fulcrum_gateway_requests_total{{code="429",reason="Overloaded"}} {5 * seconds}\n'
            f'fulcrum_gateway_requests_total{{code="200",reason=""}} {15 * seconds}\n'
        )

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, PORT_GATEWAY_INSIDE).start()
    try:
        yield
    finally:
        await runner.cleanup()


@contextmanager
def dashboard(server: ApiServer, folder: Path) -> Iterator[str]:
    """`fulcrum dashboard` as a process; yields the page's URL."""
    url_file, log = folder / "url", folder / "dashboard.log"
    command = [BIN / "fulcrum", "dashboard", "--listen", "127.0.0.1:0", "--url-file", url_file]
    with log.open("wb") as stream:
        env = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=env)
    try:
        deadline = time.monotonic() + deadline_seconds(60)
        while not (url_file.exists() and url_file.read_text().endswith("\n")):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url_file.read_text().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(deadline_seconds(20)) == 0, log.read_text()
        assert "Traceback" not in log.read_text()


async def make_pod(cluster: Cluster, name: str, labels: dict[str, str]) -> str:
    """A running Pod of the cluster, with a secret in its spec; returns its address."""
    container = {"name": "worker", "image": "none", "env": [{"name": "HF_TOKEN", "value": "hf-secret-word"}]}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": {"fulcrum.dev/cluster": cluster.name, **labels},
        },
        "spec": {"containers": [container]},
    }
    assert await cluster.kube.create(POD, document) is not None
    await cluster.set_pod_status(name)
    address: str = (await cluster.pods())[name]["status"]["podIP"]
    return address


STATUS: Json = {
    "lastDecision": {
        "action": "SetRole",
        "reason": "LoadShifted",
        "from": "0P:2D",
        "to": "1P:1D",
        "time": "2026-01-01T00:00:00Z",
        "explanation": {
            "load": {"rate": 9.1, "lowerRate": 8, "upperRate": 10.5, "inputTokens": 310, "outputTokens": 640},
            "attainment": 0.83,
            "candidates": [
                {"layout": "0P:2D", "attainment": 0.83, "lowest": 0.7, "verdict": "stands"},
                {"layout": "1P:1D", "attainment": 0.97, "lowest": 0.95, "verdict": "chosen: +12.0 requests"},
            ],
            "changes": ["more workers, once the forecast needs them"],
        },
    },
    "ratio": "1P:1D",
    "ready": "2/3",
    "roles": {
        "prefill": {"desired": 1, "ready": 1, "draining": 0},
        "decode": {"desired": 2, "ready": 1, "draining": 0},
    },
    "attainment": 0.912,
    "rejectedRatio": 0.25,
    "ttft": {"p50": "120ms", "p90": "2.5s", "p99": "3s"},
    "tpot": {"p50": "21ms", "p90": "31ms"},
    "forecast": {"method": "arima", "rate": 24.5, "upperRate": 30.0, "horizon": "90s"},
    "conditions": [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, status, reason, message in (
            ("Available", "True", "Ready", "Requests are served."),
            ("Degraded", "True", "EngineFailed", "c-p-2 said: prompt 'my PIN is 1234'"),
        )
    ],
}


def about(cluster: Cluster, uid: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"c.{uid[:8]}", "namespace": cluster.namespace},
        "involvedObject": {
            "apiVersion": "fulcrum.dev/v1alpha1",
            "kind": "InferenceCluster",
            "name": cluster.name,
            "namespace": cluster.namespace,
            "uid": uid,
        },
        "reason": "LoadShifted",
        "message": "Worker c-p-0: decode -> prefill (epoch 2), for 9.1 requests/s of 310 + 640 tokens.",
        "type": "Normal",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


async def test_values_agree_with_the_api_and_no_secret_is_shown(cluster: Cluster, tab: Tab, tmp_path: Path) -> None:
    await cluster.apply()
    patch = msgspec.json.encode({"status": STATUS}).decode()
    here = ("-n", cluster.namespace, "--subresource=status", "--type=merge", "-p", patch)
    cluster.server.kubectl("patch", "ic", "c", *here)
    await cluster.kube.create(EVENT, about(cluster, (await cluster.get())["metadata"]["uid"]))
    async with AsyncExitStack() as stack:
        for ordinal, (role, running, kv) in enumerate(((Role.PREFILL, 2, 0.25), (Role.DECODE, 40, 0.81))):
            labels = {"app.kubernetes.io/component": "worker", "fulcrum.dev/role": role, "fulcrum.dev/pool": "p"}
            address = await make_pod(cluster, f"c-p-{ordinal}", labels)
            await stack.enter_async_context(BusyAgent(role, running, kv).serve(address))
        await stack.enter_async_context(
            gateway(await make_pod(cluster, "c-gateway-x", {"app.kubernetes.io/component": "gateway"}))
        )
        url = stack.enter_context(dashboard(cluster.server, tmp_path))
        await tab.size(1360, 900)
        await tab.open(f"{url}#{cluster.namespace}/c")
        await tab.until("!!document.querySelector('#reasons li')", seconds=45)
        shown = await tab.run(SHOWN)
        status, pods = await cluster.status(), await cluster.pods()
    assert (shown["name"], shown["state"]) == ("c", "Degraded")
    values = shown["values"]
    assert values["ratio"] == [status["ratio"], f"target 1P:2D · {status['ready']} ready"]
    assert values["attainment"][0] == f"{100 * status['attainment']:.1f} %"
    assert values["ttft"] == [status["ttft"]["p90"], "of 2s · p50 120ms · p99 3s"]
    assert values["tpot"][0] == status["tpot"]["p90"]
    assert values["rejected"] == [f"{100 * status['rejectedRatio']:.1f} %", "42 running · 6 waiting"]
    assert values["rate"][1] == f"{status['forecast']['rate']}/s expected in 90s"
    assert float(values["rate"][0].removesuffix("/s")) == pytest.approx(20, rel=0.2)
    workers = {role: [row[:5] for row in rows] for role, rows in shown["workers"].items()}
    assert workers == {
        "prefill": [["p-0", "25 %", "2", "3", "ready"]],
        "decode": [["p-1", "81 %", "40", "3", "ready"]],
    }
    roles = {name: pod["metadata"]["labels"].get("fulcrum.dev/role") for name, pod in pods.items()}
    assert shown["titles"] == [f"{name}, pool p" for name, role in sorted(roles.items()) if role]
    ((reason, rate),) = shown["reasons"]
    assert reason == "Overloaded"
    assert float(rate.removesuffix("/s")) == pytest.approx(5, rel=0.25)
    assert "for 9.1 requests/s of 310 + 640 tokens." in shown["decisions"][0][1]
    for words in ("0P:2D → 1P:1D", "between 8.0 and 10.5", "97.0 %\t95.0 %\tchosen: +12.0", "once the forecast needs"):
        assert words in shown["why"]
    (notice,) = shown["notices"]
    assert notice.startswith("EngineFailed")
    assert f"kubectl describe ic c -n {cluster.namespace}" in notice
    for secret in ("1234", "hf-secret-word", "HF_TOKEN"):
        assert secret not in shown["html"]


async def test_it_survives_a_restart_of_the_operator(api_server: ApiServer, cluster: Cluster, tab: Tab) -> None:
    (port,) = free_ports(1)
    arguments = ("--dashboard", "--health-address", f"127.0.0.1:{port}", "--namespace", cluster.namespace)
    await cluster.apply(workers=2)
    async with Kubelet(cluster).run():
        operator = Operator(api_server, *arguments)
        with operator:

            async def there() -> bool:
                return (await cluster.status())["ready"] == "2/2"

            await eventually(there)
            await tab.open(f"http://127.0.0.1:{port}/dashboard#{cluster.namespace}/c")
            await tab.until(f"{LIVE} && document.querySelectorAll('.role tbody tr').length === 2")
            await tab.until("told.points.length > 0")
            first = await tab.run("[told.hello.session, told.points[0][0]]")
            operator.kill()
            await tab.until(STALE)
            said = await tab.run("document.getElementById('link').textContent")
            assert re.search(r"Figures are from \d\d:\d\d:\d\d, \d+ s ago", said)
            assert (await tab.run(SHOWN))["values"]["ratio"][0] == (await cluster.status())["ratio"]
        with Operator(api_server, *arguments) as second:
            await tab.until(f"{LIVE} && told.hello.session !== '{first[0]}' && told.points.length > 1", seconds=45)
            # What was known before the restart stays on the charts.
            assert await tab.run("told.points[0][0]") == first[1]
            cluster.name = "d"
            await cluster.apply(workers=1)
            await tab.until("document.querySelectorAll('#clusters li').length === 2")
            began = time.monotonic()
            assert second.stop() == 0
            assert time.monotonic() - began < deadline_seconds(10), "an open page kept the operator from ending"


FRAMES = """new Promise(done => {
  const gaps = [], began = performance.now();
  let before = began;
  const frame = now => {
    gaps.push(now - before); before = now;
    if (now - began < 4000) requestAnimationFrame(frame); else done(gaps.sort((a, b) => b - a));
  };
  requestAnimationFrame(frame);
})"""


async def frame_gaps(tab: Tab) -> list[float]:
    """Milliseconds between frames over four seconds, the longest first."""
    gaps: list[float] = await tab.run(FRAMES)
    return gaps


def gap_ms(gaps_ms: list[float], updates: int) -> float:
    """The gap that each of so many updates brings: of the longest ones, one for each update, the shortest."""
    return gaps_ms[min(updates, len(gaps_ms)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothness:
    """What four seconds of updates cost."""

    updates: int
    cpu_ms_per_update: float
    """Processor time of the page's thread."""
    gaps_ms: list[float]
    """Between frames, the longest first."""

    def __str__(self) -> str:
        at_update_ms = gap_ms(self.gaps_ms, self.updates)
        return (
            f"{self.updates} updates of {self.cpu_ms_per_update:.0f} ms of CPU; between frames "
            f"{statistics.median(self.gaps_ms):.0f} ms, {at_update_ms:.0f} at an update, {self.gaps_ms[0]:.0f} at most"
        )


async def measured(tab: Tab) -> Smoothness:
    busy_before, read_before = await busy_seconds(tab), await tab.run("told.fleet.readAt")
    gaps_ms = await frame_gaps(tab)
    busy_after, read_after = await busy_seconds(tab), await tab.run("told.fleet.readAt")
    updates = round(read_after - read_before)
    assert updates >= 2, "updates do not keep up"
    cpu_ms = 1000 * (busy_after - busy_before) / updates
    return Smoothness(updates=updates, cpu_ms_per_update=cpu_ms, gaps_ms=gaps_ms)


async def busy_seconds(tab: Tab) -> float:
    """Processor time of the page's thread so far; other programs on the machine do not stretch it."""
    found: dict[str, float] = {
        each["name"]: each["value"] for each in (await tab.call("Performance.getMetrics"))["metrics"]
    }
    return found["TaskDuration"]


REWRITTEN = 3
REWRITE = f"""(() => {{
  const began = performance.now();
  const html = [...document.querySelectorAll(".role tbody")].map(body => body.innerHTML).join("");
  for (let round = 0; round < {REWRITTEN}; round++) {{
    const table = document.createElement("table");
    table.innerHTML = html;
    document.body.append(table);
    table.getBoundingClientRect();
    table.remove();
  }}
  return performance.now() - began;
}})()"""


async def rewritten(tab: Tab) -> tuple[float, float]:
    """Milliseconds to write all rows that the page shows anew and lay them out: of processor time, and by the clock."""
    before = await busy_seconds(tab)
    clock_ms = await tab.run(REWRITE)
    return 1000 * (await busy_seconds(tab) - before) / REWRITTEN, clock_ms / REWRITTEN


async def test_100_clusters_and_1000_workers_stay_smooth(tab: Tab) -> None:
    """All figures of 100 clusters change each second, and those of 1,000 workers of the one that is shown."""
    async with played_dashboard(clusters=CLUSTERS, workers=10, largest=WORKERS, history_seconds=300) as url:
        await tab.size(1360, 900)
        empty_page_ms = await frame_gaps(tab)
        await tab.call("Performance.enable", timeDomain="threadTicks")
        await tab.open(f"{url}#serving/chat")
        await tab.until(f"{LIVE} && document.querySelectorAll('#clusters li').length === {CLUSTERS}")
        await tab.until("document.querySelectorAll('.more:not([hidden])').length === 2")
        as_opened = await measured(tab)
        await tab.run("document.querySelectorAll('.more').forEach(button => button.click())")
        await tab.until(f"document.querySelectorAll('.role tbody tr').length === {WORKERS}")
        all_listed = await measured(tab)
        rewritten_cpu_ms, rewritten_ms = await rewritten(tab)
        memory_bytes = await tab.run("performance.memory.usedJSHeapSize")
    print(f"as opened: {as_opened}\nall listed: {all_listed}")
    print(
        f"all rows anew: {rewritten_cpu_ms:.0f} ms of CPU, {rewritten_ms:.0f} ms; heap: {memory_bytes / 2**20:.0f} MiB"
    )
    assert as_opened.cpu_ms_per_update < rewritten_cpu_ms, "rows that are not listed cost nothing"
    assert all_listed.cpu_ms_per_update < 2 * rewritten_cpu_ms, "an update writes what changed"
    for each in (as_opened, all_listed):
        # What an empty page waits for at the same place of the ranking is the machine's part.
        machine_ms = gap_ms(empty_page_ms, each.updates)
        assert gap_ms(each.gaps_ms, each.updates) < 3 * rewritten_ms + 2 * machine_ms, "the page stands still"
    assert memory_bytes < 100 * 2**20


async def test_it_says_why_there_is_nothing_yet_and_begins_by_itself(tab: Tab) -> None:
    board = Board(origin="test", waiting="Waits for its Lease.")
    async with served(board) as url:
        await tab.open(url)
        await tab.until("document.getElementById('link').textContent === 'Waits for its Lease.'")
        board.source = PlayedFleet(clusters=1, workers=2, now=time.time)
        await tab.until(f"{LIVE} && document.querySelectorAll('.role tbody tr').length === 2", seconds=45)
        board.source = None
        await tab.until(STALE)


@pytest.mark.parametrize(
    ("scheme", "width", "mobile"), [("light", 1360, False), ("dark", 1360, False), ("light", 360, True)]
)
async def test_axe_finds_no_serious_fault_and_a_phone_shows_all_of_it(
    tab: Tab, scheme: str, width: int, mobile: bool
) -> None:
    async with played_dashboard(clusters=12, workers=16, history_seconds=600) as url:
        await tab.size(width, 800, mobile=mobile)
        await tab.scheme(scheme)
        await tab.open(url if mobile else f"{url}#search")
        await tab.until(f"{LIVE} && document.querySelectorAll('#clusters li').length === 12")
        found = {}
        await tab.run(AXE.read_text())
        for key in ("", "platform/search") if mobile else ("platform/search", "serving/chat"):
            await tab.run(f"location.hash = '{key}'")
            if key:
                await tab.until(f"told.detail?.row.key === '{key}' && !!document.querySelector('.role tbody tr')")
            wide = await tab.run("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{key or 'the list'} is {wide} px wider than the screen"
            result = await tab.run("axe.run().then(found => found.violations)")
            found |= {
                f"{fault['id']} {node['target']}: {node['failureSummary']}": fault["impact"]
                for fault in result
                for node in fault["nodes"]
            }
        assert {fault: impact for fault, impact in found.items() if impact in ("serious", "critical")} == {}
