"""`make demo`: from nothing to a served cluster of real engines whose load moves, and what the flips were worth.

Promises, lengths and traffic are made from what the engines measure once they stand still, so that they are sensible
ones on a slow and on a fast machine. The traffic begins at the split that its first phase wants, most workers
prefilling. Its second phase wants most of them to decode. For `OBSERVE_SECONDS` of it the operator only observes
(`balance.mode: Observe`), which shows what a static split serves; then it acts (`Auto`) and flips workers.

Exits with 0 only if no request was lost, NIXL moved KV cache, at least `TARGET` of the requests were inside the SLO
(those aside that came while the operator could only watch), and more of them after the flip than before it. On a
machine that is too slow or too busy for promises of latency, which its engines' speed says before any traffic, it
shows the rest and exits with 0 unless something was lost or broken.

    python benchmarks/demo.py [--cpu 100m]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import demo_light
from demo_engines import SAME, Measured, cores_each, measured, usable_cores, with_cpu
from demo_load import PROMPTS_SPLIT, WARM_UP_SECONDS, Load, load_for, operator_seconds_of, too_slow
from demo_page import Shown, described, plot, table
from demo_replay import send, shares, warm_up
from demo_screen import Telling, command, console, step
from demo_setup import QUESTION, READY_SECONDS, ask, begin_at, promise, set_balance, wait_for
from local_cluster import REPOSITORY, Cluster, CommandError, local_cluster
from this_machine import FP8

from fulcrum.replay import EndpointError, Progress, summarise

MANIFEST = REPOSITORY / "examples" / "auto.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", help="CPU limit of each worker, such as 350m; default: what the machine has for four")
    cpu = parser.parse_args().cpu or cores_each(usable_cores())
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="fulcrum-demo-"))
    try:
        kv = "FP8" if FP8 else "float32"
        step(f"A small real model, local Kubernetes, the operator, four vLLM workers with {kv} KV and NIXL, a gateway")
        console.print(f"{usable_cores():g} cores: {cpu} for each worker")
        manifest, options = with_cpu(MANIFEST, home, cpu), ("--timeout", f"{READY_SECONDS:.0f}")
        with local_cluster(home, manifest=manifest, name="auto", options=options) as cluster:
            shown = show(cluster)
    except (CommandError, EndpointError, OSError, LookupError) as error:
        console.print(f"\n[bold red]demo failed:[/] {error}\nState and logs: {home}")
        return 1
    line = shown.last_line(time.monotonic() - started)
    if shown.problems:
        console.print(f"\n[bold red]demo failed:[/] {'; '.join(shown.problems)}\n{line}\nState and logs: {home}")
        return 1
    shutil.rmtree(home)
    console.print(f"demo ok: {line}")
    return 0


def show(cluster: Cluster) -> Shown:
    """Everything that the demo does with a cluster that is up."""
    wait_for(cluster, "all four workers, and the gateway to have tried their pairs")
    command(cluster, "get", "ic", "-o", "wide")
    command(cluster, "get", "pods", "-L", "fulcrum.dev/role")

    step("How fast the engines are when all four work, until two rounds agree")
    found = measured(cluster, console.print)
    problem = unfit(found)
    if problem is not None:
        console.print(f"[yellow]no promises of latency on this machine:[/] {problem}; the rest follows")
        demo_light.promise_nothing(cluster)
    else:
        load = load_for(found.speed, operator_seconds=operator_seconds_of(cluster.cluster()["spec"]))
        console.print(described(load))
        promise(cluster, load.slo)

    step(f"A question: {QUESTION}")
    console.print(ask(cluster), markup=False)
    shown = demo_light.show(cluster, found.speed) if problem is not None else replayed(cluster, load)
    for problem_of_requests, count in shown.report.problems.items():
        console.print(f"{count} x {problem_of_requests}", markup=False)
    console.print(table(shown))
    step("Down")
    return shown


def unfit(found: Measured) -> str | None:
    """Return why promises of latency cannot be kept here, with the limit; None when they can."""
    if not found.steady:
        return (
            f"another program takes the CPU: two rounds of measurements differ by {found.ratio:.2f} x "
            f"after {found.rounds} rounds, the limit is {SAME:g} x"
        )
    return too_slow(found.speed)


def replayed(cluster: Cluster, load: Load) -> Shown:
    """The load, with a static split first and then the operator."""
    begin_at(cluster, *PROMPTS_SPLIT)
    step(
        f"{load.seconds:.0f} s of traffic, after {2 * WARM_UP_SECONDS:.0f} s to warm up; "
        "only the operator changes the ratio"
    )
    flips_before = cluster.flips()
    with Telling("warming up ...") as telling:
        warm_up(cluster, load)

        def tell(now_seconds: float, now: Progress, ratio: str) -> None:
            phase = "long prompts" if now_seconds < load.prompts.seconds else "long answers"
            telling.tell(f"{now_seconds:4.0f} s  {phase}, {ratio}: {now.sent} of {now.of} sent, {now.lost} lost")

        act = load.act_seconds, lambda: set_balance(cluster, mode="Auto")
        seen = send(cluster, load.requests, tell, act)
    command(cluster, "get", "ic", "-o", "wide")
    command(cluster, "get", "events", "--field-selector", f"involvedObject.name={cluster.name},reason!=Created",
            "--sort-by", ".lastTimestamp", "-o", "custom-columns=REASON:.reason,MESSAGE:.message")  # fmt: skip
    for line in plot(seen, load):
        console.print(line)
    return Shown(
        report=summarise(seen.records, offered=len(load.requests), slo=load.slo),
        flips=cluster.flips() - flips_before,
        kv_bytes=cluster.kv_bytes_moved(),
        load=load,
        shares=shares(seen, load),
    )


if __name__ == "__main__":
    sys.exit(main())
