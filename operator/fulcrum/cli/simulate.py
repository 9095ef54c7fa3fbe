"""`fulcrum simulate`: traffic through a cluster that exists only as numbers, under several policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fulcrum.cli.kv_links import GIGA, kv_link_options

if TYPE_CHECKING:
    from fulcrum.api.types import InferenceClusterSpec
    from fulcrum.capacity.speed import WorkerSpeed
    from fulcrum.simulation.comparison import ComparisonInputs, Entry, OnProgress, PolicyTable
    from fulcrum.simulation.result import Summary
    from fulcrum.simulation.workload import Workload


@click.command(short_help="Compare policies on a trace, without a cluster.")
@click.option("--demo", is_flag=True, help="A made-up load on a shipped cluster: --trace swing, three pairs of H100.")
@click.option("--trace", metavar="FILE|NAME", help="Trace file, or a synthetic workload by name.")
@click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with an InferenceCluster.",
)
@click.option(
    "--policy", "policies", default="ours,static,aggregated", show_default=True, help="Names, with commas; or all."
)
@click.option("--profile", "profiles", multiple=True, metavar="[POOL=]FILE", help="Measured speeds of a pool's worker.")
@click.option(
    "--model-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The config.json of a model that is not known by name; else the ConfigMap of spec.model.config in the file.",
)
@click.option("--speed", default=1.0, show_default=True, help="Replay the trace this many times as fast.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests.")
@click.option("--seed", default=1, show_default=True, help="Of a synthetic workload.")
@click.option("--start", default="60s", show_default=True, help="From a Pod's creation to its readiness.")
@click.option("--turn", help="Default: 0s, with --demo 5s. Least time between turns of our planner; quicker.")
@kv_link_options
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Folder to write report.html to.")
@click.pass_obj
def command(
    table: PolicyTable | None,
    *,
    demo: bool,
    trace: str | None,
    cluster_file: Path | None,
    policies: str,
    profiles: tuple[str, ...],
    model_config: Path | None,
    speed: float,
    limit: int | None,
    seed: int,
    start: str,
    turn: str | None,
    host_link: float,
    pool_link: float,
    as_json: bool,
    report: Path | None,
) -> None:
    """Send a trace through the cluster of a file, simulated, once per policy, and compare what becomes of it.

    Speeds come from the roofline of model and accelerator, or from profiles (docs/operations/simulate.md). Decisions
    are made by the code that runs in production.

    \b
    Traces: Azure or BurstGPT (.csv), Mooncake (.jsonl), or a name: stationary, ramp, sine, dynamo-sine, bursts,
    steps, shifts, swing.
    Policies: ours, ours-open (without admission), static (the best split in hindsight), static-P:D (that split),
    aggregated (all workers mixed); all.

    \b
    Examples:
      fulcrum simulate --demo
      fulcrum simulate --trace shifts --cluster cluster.yaml
      fulcrum simulate --trace conv.csv --cluster cluster.yaml --policy ours,static-3:5 --speed 3
      fulcrum simulate --trace mooncake.jsonl --cluster cluster.yaml --profile profile.json --policy all --report out
    """
    from fulcrum.api.durations import seconds
    from fulcrum.cli.cluster_file import read_cluster_file
    from fulcrum.cli.shipped import DEMO_LOAD, DEMO_TURN_SECONDS, SIMULATED, shipped
    from fulcrum.decide.rehearsed import rehearses
    from fulcrum.load.demand import promised
    from fulcrum.rehearsal.simulated import Rehearsals
    from fulcrum.simulation.comparison import Comparison, ComparisonInputs
    from fulcrum.simulation.from_spec import cluster_model
    from fulcrum.simulation.named_policies import POLICIES

    table = table or POLICIES
    if demo:
        trace, turn = trace or DEMO_LOAD, turn or f"{DEMO_TURN_SECONDS:g}s"
        cluster_file = cluster_file or shipped(SIMULATED)
    if trace is None or cluster_file is None:
        raise click.UsageError("give --trace and --cluster, or --demo for an example")
    try:
        read = read_cluster_file(cluster_file)
        spec = read.spec
        model = cluster_model(
            spec,
            profiles=_profiles(profiles, spec),
            start_seconds=seconds(start),
            model=read.model(model_config),
            host_bytes_per_second=host_link * GIGA,
            pool_bytes_per_second=pool_link * GIGA,
        )
        workload = _workload(trace, seed=seed, speed=speed, limit=limit)
        inputs = ComparisonInputs(
            workload=workload,
            cluster=model,
            spec=spec,
            slo=promised(spec),
            least_turn_seconds=seconds(turn or "0s"),
            rehearser=Rehearsals if rehearses(spec) else None,
        )
        names = table.checked([name.strip() for name in policies.split(",") if name.strip()], inputs)
    except (OSError, ValueError, LookupError) as error:
        raise click.UsageError(_text_of(error)) from error
    if not names:
        raise click.UsageError("--policy: name at least one")
    with _bar(table.steps_of(names, inputs) * len(workload)) as on_progress:
        comparison = Comparison(inputs=inputs, table=table, on_progress=on_progress)
        entries = [comparison.run(name) for name in names]
    most = table.most_within(inputs) if table.most_within is not None else None
    if as_json:
        _print_json(entries, inputs, most)
    else:
        _print_table(trace, entries, inputs, most)
    if report is not None:
        from fulcrum.simulation.report import write_report

        path = write_report(report, title=Path(trace).name, inputs=inputs, entries=entries, most_within=most)
        click.echo(f"Report: {path}", err=True)


def _profiles(given: Sequence[str], spec: InferenceClusterSpec) -> dict[str, WorkerSpeed]:
    """Speeds by pool; a profile without a pool's name is for all that have none of their own."""
    from fulcrum.capacity.profile import ProfileError, parse_profile, profile_speed

    speeds: dict[str, WorkerSpeed] = {}
    pools = [pool.name for pool in spec.pools]
    for text in sorted(given, key=lambda each: "=" not in each, reverse=True):
        pool, _, name = text.rpartition("=")
        if pool and pool not in pools:
            raise ValueError(f"--profile {text}: there is no pool {pool}; there are {', '.join(pools)}")
        try:
            speed = profile_speed(parse_profile(Path(name).read_bytes()))
        except ProfileError as error:
            raise ValueError(f"{name}: {error}") from error
        speeds.update(dict.fromkeys([pool] if pool else pools, speed))
    return speeds


def _workload(trace: str, *, seed: int, speed: float, limit: int | None) -> Workload:
    import numpy as np

    from fulcrum.simulation.generate import WORKLOADS
    from fulcrum.simulation.traffic import LONGEST_SECONDS, load_trace
    from fulcrum.simulation.workload import Workload

    if trace in WORKLOADS:
        workload = WORKLOADS[trace](seed)
    elif not Path(trace).exists():
        raise ValueError(
            f"--trace {trace}: there is no such file, and no such workload; there are {', '.join(WORKLOADS)}"
        )
    else:
        workload = Workload.of(load_trace(Path(trace)))
    if limit is not None:
        workload = workload.at(np.arange(min(limit, len(workload))))
    if speed > 0 and workload.duration_seconds / speed > LONGEST_SECONDS:
        raise ValueError(f"--speed {speed:g}: the trace would take longer than ten years")
    return workload.scaled(speed)


@contextmanager
def _bar(total: int) -> Iterator[OnProgress]:
    """A progress bar on stderr where that is a terminal; adds up the requests of all runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:24}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=4) as progress:
        task = progress.add_task("", total=total)
        last: dict[str, int] = {}

        def on_progress(name: str, arrived: int) -> None:
            before = last.get(name, 0)
            progress.update(task, description=name, advance=arrived - before if arrived > before else arrived)
            last[name] = arrived

        yield on_progress


def _print_table(trace: str, entries: Sequence[Entry], inputs: ComparisonInputs, most: int | None) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    from fulcrum.simulation.terminal_plot import plot_lines

    load, slo = inputs.workload, inputs.slo
    # In a pipe nothing is cut off.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    rate = len(load) / load.duration_seconds if load.duration_seconds else 0.0
    console.print(
        f"{Path(trace).name}: {len(load):,} requests in {load.duration_seconds:,.0f} s ({rate:.2f}/s), "
        f"{load.prompt_tokens.mean():,.0f} + {load.output_tokens.mean():,.0f} tokens; "
        f"SLO {slo.ttft_seconds * 1e3:,.0f} / {slo.tpot_seconds * 1e3:,.0f} ms",
        markup=False,
        soft_wrap=True,
    )
    for pool in inputs.cluster.pools:
        source = getattr(pool.speed, "source", None)
        console.print(f"pool {pool.name}: {pool.gpus_per_worker} GPUs a worker, speed by {source}", markup=False)
    table = Table(
        "POLICY", "IN SLO", "GOODPUT", "PER GPU", "GPU-H", "TTFT p50/p90/p99", "TPOT p50/p90/p99", "FLIPS", "STARTED",
        "REJECTED", "FAILED", "WASTED", box=None, pad_edge=False,
    )  # fmt: skip
    for entry in entries:
        table.add_row(*_row(entry.result.summary(slo)))
    console.print(table)
    if most is not None:
        share = most / len(load) if len(load) else 1.0
        console.print(f"No planner could have more than {share:.1%} inside the SLO on so many workers (a fluid bound).")
    for line in plot_lines(inputs, entries):
        console.print(line, markup=False, soft_wrap=True)


def _row(summary: Summary) -> tuple[str, ...]:
    ttft, tpot = (
        "/".join(f"{each * 1e3:,.0f}" for each in (times.p50, times.p90, times.p99)) + " ms"
        for times in (summary.ttft_seconds, summary.tpot_seconds)
    )
    return (
        summary.policy,
        f"{summary.attainment:.1%}",
        f"{summary.goodput:.2f}/s",
        f"{summary.goodput_per_gpu:.3f}/s",
        f"{summary.gpu_hours:.2f}",
        ttft,
        tpot,
        str(summary.flips),
        str(summary.pods_started),
        f"{summary.rejected:,}",
        f"{summary.failed:,}",
        f"{summary.wasted_prefill:.1%}",
    )


def _print_json(entries: Sequence[Entry], inputs: ComparisonInputs, most: int | None) -> None:
    import msgspec

    rows: list[dict[str, Any]] = []
    for entry in entries:
        figures = msgspec.to_builtins(entry.result.summary(inputs.slo))
        rejections = {reason.value: count for reason, count in entry.result.rejections.items()}
        rows.append({"name": entry.name, **figures, "rejections": rejections})
    document: dict[str, Any] = {"requests": len(inputs.workload), "policies": rows}
    if most is not None:
        document["most_within"] = most
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _text_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
