"""`make demo`: from nothing to a served, replayed and flipped cluster of real engines, with the figures at the end.

Prints what it does and a table; exits with 0 only if no request was lost and NIXL moved KV cache.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from local_cluster import BIN, Cluster, CommandError, local_cluster, wait_until
from rich.console import Console
from rich.table import Table
from this_machine import FP8

REPLAY_SECONDS = 60
REQUESTS_PER_SECOND = 1.0
SLO_TTFT, SLO_TPOT = "2s", "200ms"
QUESTION = "What is the capital of France? Answer in one sentence."

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="fulcrum-demo-"))
    try:
        kv = "FP8" if FP8 else "float32"
        step(
            f"A small real model, local Kubernetes, the operator, four vLLM workers with {kv} KV and NIXL, two gateways"
        )
        with local_cluster(home) as cluster:
            report = show(cluster)
    except (CommandError, OSError, KeyError) as error:
        console.print(f"\n[bold red]demo failed:[/] {error}\nState and logs: {home}")
        return 1
    problems = [
        *([f"{report['lost']} requests lost"] if report["lost"] else []),
        *([f"{report['failed']} requests failed"] if report["failed"] else []),
        *(["NIXL moved no KV cache"] if not report["kv_bytes"] else []),
        *(["no worker changed its role"] if not report["flips"] else []),
    ]
    if problems:
        console.print(f"\n[bold red]demo failed:[/] {', '.join(problems)}\nState and logs: {home}")
        return 1
    shutil.rmtree(home)
    console.print(
        f"demo ok: {report['ok']} of {report['requests']} requests answered, 0 lost, {report['flips']} flips, "
        f"{report['kv_bytes'] / 2**20:.1f} MiB of KV cache moved by NIXL, {time.monotonic() - started:.0f} s"
    )
    return 0


def show(cluster: Cluster) -> dict[str, Any]:
    """Everything that the demo does with a cluster that is up; the figures of the last table."""
    wait_until("all four workers", lambda: cluster.cluster()["status"].get("ready") == "4/4", seconds=180)
    command(cluster, "get", "ic", "-o", "wide")
    command(cluster, "get", "pods", "-L", "fulcrum.dev/role")

    step(f"A question: {QUESTION}")
    console.print(ask(cluster))

    step(f"{REPLAY_SECONDS} s of traffic: first long prompts, then long answers; the ratio follows in the middle of it")
    flips_before = cluster.flips()
    replay = subprocess.Popen(
        [BIN / "fulcrum", "replay", "--trace", "synthetic", "--url", cluster.endpoint(), "--json",
         "--duration", f"{REPLAY_SECONDS}s", "--rate", str(REQUESTS_PER_SECOND),
         "--slo-ttft", SLO_TTFT, "--slo-tpot", SLO_TPOT],
        stdout=subprocess.PIPE, text=True, env=cluster.env,
    )  # fmt: skip
    for prefill, decode in ((3, 1), (1, 3)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            replay.wait(REPLAY_SECONDS / 3)
        patch = json.dumps({"spec": {"balance": {"ratio": {"prefill": prefill, "decode": decode}}}})
        command(cluster, "patch", "ic", cluster.name, "--type", "merge", "-p", patch)
    output, _ = replay.communicate()
    if not output:
        raise CommandError(f"fulcrum replay ended with exit code {replay.returncode} and no report")
    wait_until("1P:3D", lambda: cluster.roles() == {"prefill": 1, "decode": 3}, seconds=30)
    command(cluster, "get", "ic", "-o", "wide")
    report: dict[str, Any] = json.loads(output)
    report |= {"flips": cluster.flips() - flips_before, "kv_bytes": cluster.kv_bytes_moved()}
    console.print(table(report))
    for problem, count in report["problems"].items():
        console.print(f"{count} x {problem}")
    step("Down")
    return report


def ask(cluster: Cluster) -> str:
    """The answer to the question, over the cluster's OpenAI-compatible endpoint."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": cluster.name, "messages": messages, "max_tokens": 48, "temperature": 0}
    request = urllib.request.Request(
        f"{cluster.endpoint()}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["message"]["content"]).strip()


def table(report: dict[str, Any]) -> Table:
    rows = Table(show_header=False)
    for name in ("requests", "ok", "rejected", "failed", "lost"):
        rows.add_row(name, str(report[name]))
    for name in ("ttft", "tpot"):
        percentiles = report[f"{name}_seconds"] or {}
        rows.add_row(
            f"{name.upper()} p50 / p90 / p99",
            " / ".join(f"{percentiles[p] * 1000:.0f}" for p in ("p50", "p90", "p99") if p in percentiles) + " ms",
        )
    rows.add_row(f"inside TTFT {SLO_TTFT} and TPOT {SLO_TPOT}", f"{report['slo_attainment']:.1%}")
    rows.add_row("goodput", f"{report['goodput_requests_per_second']:.2f} requests/s")
    rows.add_row("flips while serving", str(report["flips"]))
    rows.add_row("KV cache moved by NIXL", f"{report['kv_bytes'] / 2**20:.1f} MiB")
    return rows


def step(text: str) -> None:
    console.print(f"\n[bold]== {text}[/]")


def command(cluster: Cluster, *arguments: str) -> None:
    """Runs kubectl and shows it as a user would type it."""
    console.print(f"[dim]$ kubectl {shlex.join(arguments)}[/]")
    console.print(cluster.kubectl(*arguments).rstrip())


if __name__ == "__main__":
    sys.exit(main())
