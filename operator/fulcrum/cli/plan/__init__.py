"""`fulcrum plan`: which GPUs of an inventory form workers, in which role, and what that carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fulcrum.cli.capacity import FORMATS, model_config, read_profile
from fulcrum.cli.kv_links import kv_link_options
from fulcrum.cli.number_range import NumberRange

if TYPE_CHECKING:
    from fulcrum.placement.plan import PlacementPlan

_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)


@click.command(short_help="Find which GPUs form workers, in which role and parallelism.")
@click.option("--model", required=True, metavar="NAME", help="Hub id of a known model.")
@click.option("--config", type=_FILE, help="The config.json of a model that is not known.")
@click.option("--dtype", type=click.Choice(FORMATS), default="auto", show_default=True, help="Weights; auto: as named.")
@click.option("--profile", "profiles", type=_FILE, multiple=True, help="Measured speeds of a worker (repeatable).")
@click.option("--inventory", type=_FILE, help="YAML with nodes, prices and links (docs/concepts/placement.md).")
@click.option("--nodes", type=_FILE, help="Instead: what `kubectl get nodes -o json` prints; - is standard input.")
@click.option("--workload", required=True, metavar="WHAT", help="PROMPT:OUTPUT[:SPREAD] tokens, a trace, or a name.")
@click.option("--slo", required=True, metavar="TTFT,TPOT[,SHARE]", help="The promise, such as 500ms,50ms,0.95.")
@click.option(
    "--goal",
    type=click.Choice(("most-goodput", "least-price", "best-ratio")),
    default="most-goodput",
    show_default=True,
    help="least-price needs --rate; best-ratio is goodput per price.",
)
@click.option("--rate", type=NumberRange(min=0, min_open=True), help="Requests/s that must be carried.")
@click.option("--budget", type=NumberRange(min=0, min_open=True), help="Most price per hour.")
@click.option("--kv-dtype", type=click.Choice(("fp8", "bf16")), default="fp8", show_default=True, help="KV cache.")
@click.option("--host-memory", metavar="SIZE", help="Host memory per worker for KV that left the GPU, such as 64Gi.")
@click.option("--pool", metavar="CLAIM=SIZE", help="KV pool of all workers below it: a volume claim, such as kv=2Ti.")
@kv_link_options
@click.option(
    "--study",
    is_flag=True,
    help="Allow pipeline stages where KV is exchanged, as papers do; vLLM cannot, so such a plan is never emitted.",
)
@click.option("--plot", type=_FILE, help="Write a picture of pools and KV flows (SVG).")
@click.option("--emit", type=_FILE, help="Write the InferenceCluster that realises the plan; - is standard output.")
@click.option("--name", default="planned", show_default=True, help="Name of the emitted InferenceCluster.")
def command(
    *,
    model: str,
    config: Path | None,
    dtype: str,
    profiles: tuple[Path, ...],
    inventory: Path | None,
    nodes: Path | None,
    workload: str,
    slo: str,
    goal: str,
    rate: float | None,
    budget: float | None,
    kv_dtype: str,
    host_memory: str | None,
    pool: str | None,
    host_link: float,
    pool_link: float,
    study: bool,
    plot: Path | None,
    emit: Path | None,
    name: str,
) -> None:
    """Find which GPUs form workers, with which parallelism and role, and what the cluster then carries.

    Speeds are those of the roofline of model and accelerators (or of profiles of them). Placements are ranked by
    estimates; the best few are simulated, and the goodput is the simulated one. With --host-memory the requests of the
    trace first go through the simulator, and what they find in KV caches and tiers is not computed again.

    \b
    Examples:
      fulcrum plan --model facebook/opt-30b --inventory gpus.yaml --workload 1150:210 --slo 2s,100ms,0.9
      kubectl get nodes -o json | fulcrum plan --nodes - --model Qwen/Qwen3-32B --workload trace.csv --slo 1s,50ms
      fulcrum plan ... --goal least-price --rate 20 --emit cluster.yaml --plot plan.svg
    """
    from dataclasses import replace
    from math import inf

    from fulcrum.capacity.accelerators import UnknownAcceleratorError
    from fulcrum.capacity.config_fields import ModelConfigError
    from fulcrum.capacity.known_models import UnknownModelError
    from fulcrum.capacity.precision import Precision
    from fulcrum.cli.plan.inputs import inventory_of, promise_of, workload_of
    from fulcrum.cli.plan.play import judges
    from fulcrum.cli.plan.tiers import tiers_of
    from fulcrum.placement.deploy import inference_cluster
    from fulcrum.placement.errors import PlacementError
    from fulcrum.placement.objective import Goal
    from fulcrum.placement.parallelism import Engine
    from fulcrum.placement.search import Request, search

    if (goal == "least-price") != (rate is not None):
        raise click.UsageError("--goal least-price and --rate belong together")
    if study and emit is not None:
        raise click.UsageError(
            "--emit: a plan of --study may have stages between which vLLM moves no KV; leave one out"
        )
    promise, ttft, tpot = promise_of(slo)
    demand, load = workload_of(workload)
    tiers = tiers_of(host_memory, pool, load=load, host_link=host_link, pool_link=pool_link)

    def document_of(plan: PlacementPlan) -> dict[str, Any]:
        document = inference_cluster(
            plan, name=name, engine=engine, ttft=ttft, tpot=tpot, attainment=promise.attainment
        )
        return document if tiers is None else tiers.add_to(document)

    try:
        what = inventory_of(inventory, nodes)
        engine = Engine(
            model=model_config(model, config),
            weights=None if dtype == "auto" else Precision(dtype),
            kv=Precision(kv_dtype),
            profiles=tuple(read_profile(each) for each in profiles),
            transfers_from_stages=study,
        )
        if emit is not None and engine.weights not in (None, engine.model.weights, Precision.FP8):
            raise click.UsageError(f"--dtype {dtype}: to emit a plan, name a checkpoint with such weights as --model")
        request = Request(
            inventory=what,
            engine=engine,
            **judges(demand, promise, load),
            prompt_tokens=demand.isl_tokens,
            goal=Goal(goal),
            rate=rate,
            most_price=inf if budget is None else budget,
        )
        with _progress() as on_progress:
            plan = search(request, on_progress)
            if tiers is not None:
                hit = tiers.prefix_hit(document_of(plan), rate=plan.goodput)
                demand = replace(demand, prefix_hit=hit)
                plan = search(replace(request, **judges(demand, promise, load)), on_progress)
    except (PlacementError, UnknownModelError, UnknownAcceleratorError, ModelConfigError) as error:
        raise click.ClickException(str(error)) from None
    title = f"{engine.model.name}: {demand.isl_tokens:.0f} + {demand.osl_tokens:.0f} tokens within {ttft} and {tpot}"
    if tiers is not None:
        title += f"; {demand.prefix_hit:.1%} of the prompt tokens found in KV caches and tiers"
    _show(plan, title, to_stderr=str(emit) == "-")
    if plot is not None:
        from fulcrum.cli.plan.picture import svg

        _write(plot, svg(plan, title=title))
    if emit is not None:
        import yaml

        _write(emit, yaml.safe_dump(document_of(plan), sort_keys=False))


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what the search is at."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda what: progress.update(task, description=what)


def _show(plan: PlacementPlan, title: str, *, to_stderr: bool) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, stderr=to_stderr, width=None if sys.stdout.isatty() else 160)
    console.print(title, markup=False, soft_wrap=True)
    table = Table("POOL", "ROLE", "WORKERS", "GPUS", "REQUESTS/S", "UTILISED", "PRICE/H", box=None, pad_edge=False)
    for pool in plan.pools:
        table.add_row(
            pool.name,
            pool.role.value,
            str(pool.workers),
            f"{pool.gpus} x {pool.option.kind.accelerator.name}",
            f"{pool.workers * pool.option.rate(pool.role):.2f}",
            f"{pool.utilisation:.0%}",
            f"{pool.workers * pool.option.price_per_hour:.2f}",
        )
    console.print(table)
    for route in plan.routes:
        console.print(f"KV: {route.source} -> {route.target}: {route.rate:.2f} requests/s", markup=False)
    console.print(
        f"Expected goodput {plan.goodput:.2f} requests/s within the promise, as simulated. "
        f"Bottleneck: {', '.join(plan.bottlenecks)}; links and workers carry {plan.flow_rate:.2f}."
    )
    console.print(
        f"By the estimates at most {plan.gap:.1%} from the bound, which no plan exceeds (it may take parts of workers)."
    )
    console.print(f"{plan.gpus_used} of {plan.gpus} GPUs, price per hour {plan.price_per_hour:.2f}.")


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"Written: {path}", err=True)
