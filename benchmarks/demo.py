"""`make demo`: from nothing to a served cluster of real engines whose load moves, and what the flips were worth.

The traffic is scaled to what is measured of the engines first, so that it is a sensible load on a slow and on a fast
machine. It begins at the split that its first phase wants, most workers prefilling. Its second phase wants most of them
to decode. For `OBSERVE_SECONDS` of it the operator only observes (`balance.mode: Observe`), which shows what a static
split serves; then it acts (`Auto`) and flips workers. Exits with 0 only if no request was lost, NIXL moved KV cache, at
least `TARGET` of all requests were inside the SLO, and more of them after the flip than before it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from demo_load import (
    ANSWERS_SECONDS,
    ANSWERS_SPLIT,
    OBSERVE_SECONDS,
    PROMPTS_SECONDS,
    PROMPTS_SPLIT,
    WARM_UP_SECONDS,
    Load,
    Seen,
    attainment,
    load_for,
    measured,
    prefill_seconds,
    send,
)
from local_cluster import REPOSITORY, Cluster, CommandError, local_cluster, wait_until
from rich.console import Console
from rich.table import Table
from this_machine import FP8

from fulcrum.api.durations import seconds
from fulcrum.replay import EndpointError, Progress, Report, Slo, summarise

MANIFEST = REPOSITORY / "examples" / "auto.yaml"
QUESTION = "What is the capital of France? Answer in one sentence."
TARGET = 0.90
"""Least share of all requests inside the SLO."""
BUCKET_SECONDS = 5.0
TELL_SECONDS = 15.0
"""Where the output is no terminal, and so nothing can be drawn over, progress is a line after so long."""
BAR = 30

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo is judged by."""

    report: Report
    before: float | None
    """Attainment of the second phase until its first flip."""
    after: float | None
    """The same from then on."""
    flips: int
    kv_bytes: int

    @property
    def problems(self) -> list[str]:
        """Targets that do not hold."""
        report = self.report
        found = {
            f"{report.lost} requests lost": report.lost,
            f"{report.failed} requests failed": report.failed,
            "NIXL moved no KV cache": not self.kv_bytes,
            "the operator flipped no worker": not self.flips,
            f"{report.slo_attainment:.0%} inside the SLO, target {TARGET:.0%}": report.slo_attainment < TARGET,
            f"inside the SLO after the flip {_percent(self.after)}, before it {_percent(self.before)}": (
                self.before is None or self.after is None or self.after <= self.before
            ),
        }
        return [problem for problem, holds in found.items() if holds]


def main() -> int:
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="fulcrum-demo-"))
    try:
        kv = "FP8" if FP8 else "float32"
        step(f"A small real model, local Kubernetes, the operator, four vLLM workers with {kv} KV and NIXL, a gateway")
        with local_cluster(home, manifest=MANIFEST, name="auto") as cluster:
            shown = show(cluster)
    except (CommandError, EndpointError, OSError, LookupError) as error:
        console.print(f"\n[bold red]demo failed:[/] {error}\nState and logs: {home}")
        return 1
    if shown.problems:
        console.print(f"\n[bold red]demo failed:[/] {'; '.join(shown.problems)}\nState and logs: {home}")
        return 1
    shutil.rmtree(home)
    console.print(
        f"demo ok: {shown.report.slo_attainment:.0%} of {shown.report.requests} requests inside the SLO, 0 lost, "
        f"{shown.flips} flips by the operator ({_percent(shown.before)} before, {_percent(shown.after)} after), "
        f"{shown.kv_bytes / 2**20:.1f} MiB of KV cache moved by NIXL, {time.monotonic() - started:.0f} s"
    )
    return 0


def show(cluster: Cluster) -> Shown:
    """Everything that the demo does with a cluster that is up."""
    with console.status("waiting for all four workers ..."):
        wait_until("all four workers", lambda: cluster.cluster()["status"].get("ready") == "4/4", seconds=480)
    command(cluster, "get", "ic", "-o", "wide")
    command(cluster, "get", "pods", "-L", "fulcrum.dev/role")

    step(f"A question: {QUESTION}")
    console.print(ask(cluster))

    step("The load, scaled to what the four engines do when all of them work")
    with console.status("measuring the engines ..."):
        load = load_for(measured(cluster), promise(cluster))
    console.print(described(load))
    if load.slo != promise(cluster):
        command(cluster, "patch", "ic", cluster.name, "--type", "merge", "-p", json.dumps({"spec": {"slo": {
            "tpot": f"{load.slo.tpot_seconds * 1000:.0f}ms"}}}))  # fmt: skip
        with console.status("waiting for the gateway to know the new promise ..."):
            wait_until("the gateway", lambda: rolled_out(cluster), seconds=120)
    begin_at(cluster, *PROMPTS_SPLIT)

    step(
        f"{PROMPTS_SECONDS + ANSWERS_SECONDS:.0f} s of traffic, after {2 * WARM_UP_SECONDS:.0f} s to warm up; "
        "only the operator changes the ratio"
    )
    flips_before = cluster.flips()
    with console.status("warming up ...") as status:
        told = 0.0

        def tell(now_seconds: float, now: Progress, ratio: str) -> None:
            nonlocal told
            phase = "long prompts" if now_seconds < PROMPTS_SECONDS else "long answers"
            line = f"{now_seconds:4.0f} s  {phase}, {ratio}: {now.sent} of {now.of} sent, {now.lost} lost"
            status.update(line)
            if not console.is_terminal and now_seconds - told >= TELL_SECONDS:
                told = now_seconds
                console.print(line)

        requests, seen = send(cluster, load, lambda: set_balance(cluster, mode="Auto"), tell)
    command(cluster, "get", "ic", "-o", "wide")
    command(cluster, "get", "events", "--field-selector", f"involvedObject.name={cluster.name},reason!=Created",
            "--sort-by", ".lastTimestamp", "-o", "custom-columns=REASON:.reason,MESSAGE:.message")  # fmt: skip
    before, after = around_the_flip(seen, load.slo)
    shown = Shown(
        report=summarise(seen.records, offered=len(requests), slo=load.slo),
        before=before,
        after=after,
        flips=cluster.flips() - flips_before,
        kv_bytes=cluster.kv_bytes_moved(),
    )
    for line in plot(seen, load.slo):
        console.print(line)
    console.print(table(shown))
    for problem, count in shown.report.problems.items():
        console.print(f"{count} x {problem}")
    step("Down")
    return shown


def promise(cluster: Cluster) -> Slo:
    slo = cluster.cluster()["spec"]["slo"]
    return Slo(ttft_seconds=seconds(slo["ttft"]), tpot_seconds=seconds(slo["tpot"]))


def rolled_out(cluster: Cluster) -> bool:
    """Whether the operator has acted on the spec, and every gateway is of the Deployment that it made of it."""
    found = cluster.cluster()
    if found["status"].get("observedGeneration") != found["metadata"]["generation"]:
        return False
    gateway = cluster.read("deployment", f"{cluster.name}-gateway")
    wanted, status = gateway["spec"]["replicas"], gateway["status"]
    return bool(
        status.get("observedGeneration") == gateway["metadata"]["generation"]
        and status.get("replicas") == status.get("updatedReplicas") == status.get("readyReplicas") == wanted
    )


def begin_at(cluster: Cluster, prefill: int, decode: int) -> None:
    """Set the stage: the split of the first phase, which stands until the operator may act."""
    wanted = {"prefill": prefill, "decode": decode}
    set_balance(cluster, mode="Manual", ratio=wanted)
    wait_until(f"{prefill}P:{decode}D", lambda: cluster.roles() == wanted, seconds=60)
    set_balance(cluster, mode="Observe")


def set_balance(cluster: Cluster, *, mode: str, ratio: dict[str, int] | None = None) -> None:
    patch = json.dumps({"spec": {"balance": {"mode": mode, "ratio": ratio}}})
    command(cluster, "patch", "ic", cluster.name, "--type", "merge", "-p", patch)


def described(load: Load) -> Table:
    prompt_tokens = load.prompts.prompt_tokens_mean
    rows = Table(
        title=f"A load that the right split serves well, where an engine prefills {prompt_tokens:.0f} tokens in "
        f"{prefill_seconds(load.speed, prompt_tokens):.2f} s;\npromised: TTFT {load.slo.ttft_seconds:g} s, "
        f"TPOT {load.slo.tpot_seconds * 1000:.0f} ms",
        title_justify="left",
    )
    for name in ("phase", "seconds", "requests/s", "prompt + answer", "right split"):
        rows.add_column(name)
    for name, phase, right in (
        ("long prompts", load.prompts, PROMPTS_SPLIT),
        ("long answers", load.answers, ANSWERS_SPLIT),
    ):
        tokens = f"{phase.prompt_tokens_mean:.0f} + {phase.output_tokens_mean:.0f} tokens"
        ratio = f"{right[0]}P:{right[1]}D"
        rows.add_row(name, f"{phase.seconds:.0f}", f"{phase.requests_per_second:.2f}", tokens, ratio)
    return rows


def ask(cluster: Cluster) -> str:
    """The answer to the question, over the cluster's OpenAI-compatible endpoint."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": cluster.name, "messages": messages, "max_tokens": 48, "temperature": 0}
    request = urllib.request.Request(
        f"{cluster.endpoint()}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["message"]["content"]).strip()


def around_the_flip(seen: Seen, slo: Slo) -> tuple[float | None, float | None]:
    """Attainment of the second phase before and after its first flip."""
    flips = [at for at, _ in seen.ratios if at >= PROMPTS_SECONDS]
    if not flips:
        return None, None
    before = seen.between(PROMPTS_SECONDS, flips[0])
    return attainment(before, slo), attainment(seen.between(flips[0], PROMPTS_SECONDS + ANSWERS_SECONDS), slo)


def plot(seen: Seen, slo: Slo) -> list[str]:
    """Attainment of the requests of each bucket of time, as bars, with each change of the ratio."""
    lines = [f"\ninside the SLO, by {BUCKET_SECONDS:.0f} s"]
    first, end = 0.0, PROMPTS_SECONDS + ANSWERS_SECONDS
    while first < end:
        if first == PROMPTS_SECONDS:
            lines.append(f"{first:4.0f} s [cyan]-- the load moves to long answers; the operator observes[/]")
        if first == PROMPTS_SECONDS + OBSERVE_SECONDS:
            lines.append(f"{first:4.0f} s [cyan]-- the operator may act[/]")
        here = seen.between(first, first + BUCKET_SECONDS)
        share = attainment(here, slo)
        filled = round(BAR * (share or 0.0))
        color = "green" if share is None or share >= TARGET else "yellow" if share >= TARGET / 2 else "red"
        bar = f"[{color}]{'█' * filled}[/][dim]{'·' * (BAR - filled)}[/]"
        lines.append(f"{first:4.0f} s {bar} {_percent(share):>4} of {len(here)}")
        for at, ratio in seen.ratios:
            if first <= at < first + BUCKET_SECONDS:
                what = f"-- the operator flips: {ratio}" if at else f"-- {ratio}"
                lines.append(f"{at:4.0f} s [bold cyan]{what}[/]")
        first += BUCKET_SECONDS
    return lines


def table(shown: Shown) -> Table:
    report = shown.report
    rows = Table(show_header=False)
    for name in ("requests", "ok", "rejected", "failed", "lost"):
        rows.add_row(name, str(getattr(report, name)))
    for name, found in (("TTFT", report.ttft_seconds), ("TPOT", report.tpot_seconds)):
        if found is not None:
            rows.add_row(
                f"{name} p50 / p90 / p99",
                f"{found.p50 * 1000:.0f} / {found.p90 * 1000:.0f} / {found.p99 * 1000:.0f} ms",
            )
    slo = report.slo
    rows.add_row(
        f"inside TTFT {slo.ttft_seconds:g} s and TPOT {slo.tpot_seconds * 1000:.0f} ms", f"{report.slo_attainment:.1%}"
    )
    rows.add_row("  long answers, before the flip", _percent(shown.before))
    rows.add_row("  long answers, after the flip", _percent(shown.after))
    rows.add_row("goodput", f"{report.goodput_requests_per_second:.2f} requests/s")
    rows.add_row("flips by the operator", str(shown.flips))
    rows.add_row("KV cache moved by NIXL", f"{shown.kv_bytes / 2**20:.1f} MiB")
    return rows


def step(text: str) -> None:
    console.print(f"\n[bold]== {text}[/]")


def command(cluster: Cluster, *arguments: str) -> None:
    """Runs kubectl and shows it as a user would type it."""
    console.print(f"[dim]$ kubectl {shlex.join(arguments)}[/]")
    console.print(cluster.kubectl(*arguments).rstrip())


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    sys.exit(main())
