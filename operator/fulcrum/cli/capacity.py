"""`fulcrum capacity`: what a worker can do, by the capacity model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fulcrum.api.parallelism import EXPERT_BACKENDS
from fulcrum.cli.number_range import NumberRange

if TYPE_CHECKING:
    from fulcrum.capacity.model import ModelConfig
    from fulcrum.capacity.precision import Precision
    from fulcrum.capacity.profile import Profile
    from fulcrum.capacity.sheet import Sheet

BACKENDS: Final = tuple(each.name for each in EXPERT_BACKENDS)
FORMATS: Final = ("auto", "bf16", "fp8", "fp4", "int4")


@click.command(short_help="Show how fast a worker should be and what fits into it.")
@click.option("--model", metavar="NAME", help="Hub id, or a folder with a config.json.")
@click.option("--accelerator", metavar="NAME", help="As in a pool: H100-SXM-80GB, L40S-48GB, ...")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="The config.json of an unknown model.")
@click.option("--tp", "tensor", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallelism.")
@click.option("--pp", "pipeline", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--dp", "data", type=click.IntRange(min=1), default=1, show_default=True, help="Data parallel ranks.")
@click.option("--ep", "experts", is_flag=True, help="Expert parallelism; always with more than one rank.")
@click.option(
    "--expert-backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="How tokens travel to the experts of other ranks.",
)
@click.option(
    "--imbalance",
    type=NumberRange(min=1.0),
    default=1.0,
    show_default=True,
    help="Tokens of the busiest GPU over the mean, beyond chance; 1: even, or balanced by EPLB.",
)
@click.option(
    "--dtype", type=click.Choice(FORMATS), default="auto", show_default=True, help="Weights; auto is as published."
)
@click.option(
    "--kv-dtype",
    type=click.Choice(("auto", "fp8", "bf16")),
    default="auto",
    show_default=True,
    help="KV cache; auto is as in a cluster.",
)
@click.option("--kv-memory", metavar="SIZE", help="KV cache per GPU, such as 20Gi, instead of what is left.")
@click.option("--profile", type=click.Path(path_type=Path, dir_okay=False), help="Measured speeds of such a worker.")
@click.option("--isl", type=click.IntRange(min=1), default=1024, show_default=True, help="Prompt tokens.")
@click.option("--osl", type=click.IntRange(min=1), default=256, show_default=True, help="Output tokens.")
@click.option("--tpot", default="50ms", show_default=True, metavar="DURATION", help="Target that bounds the batch.")
@click.option("--eager", is_flag=True, help="An engine without CUDA graphs (--enforce-eager).")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option(
    "--export",
    is_flag=False,
    flag_value="",
    metavar="[CLUSTER]",
    help="Instead: write the profile of what the workers of a running cluster have measured.",
)
@click.option("--pool", metavar="NAME", help="With --export: the pool, where there are several.")
@click.option("-n", "--namespace", help="With --export: namespace of the cluster.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="With --export; default: $KUBECONFIG, else that of `fulcrum up`, else kubectl's.",
)
def command(
    *,
    model: str | None,
    accelerator: str | None,
    export: str | None,
    pool: str | None,
    namespace: str | None,
    kubeconfig: str | None,
    **estimated: Any,
) -> None:
    """Show what one worker should do: memory, prefill and decode times, largest batch, KV transfer.

    These are estimates from the model's dimensions and the accelerator's data sheet (docs/concepts/capacity.md says how
    far they are from measurements), or with --profile what such a worker was measured to do. A running cluster uses
    what its workers measure: --export writes it as a profile, for spec.pools[].profile, and for --profile of this
    command, `fulcrum plan` and `fulcrum simulate`.

    \b
    Examples:
      fulcrum capacity --model meta-llama/Llama-3.1-70B-Instruct --accelerator H100-SXM-80GB --tp 4
      fulcrum capacity --model Qwen/Qwen3-32B --accelerator L40S --tp 4 --dtype fp8 --isl 3000 --osl 150 --tpot 30ms
      fulcrum capacity --model deepseek-ai/DeepSeek-R1 --accelerator H200 --dp 16 --expert-backend deepep_low_latency
      fulcrum capacity --model own --config ./config.json --accelerator H200 --json | jq .coefficients
      fulcrum capacity --export chat -n serving --pool h100 > profile.json
    """
    if export is not None:
        if model is not None or accelerator is not None:
            raise click.UsageError("--export reads a running cluster: leave --model and --accelerator out")
        from fulcrum.cli.export import print_export

        print_export(name=export or None, namespace=namespace, pool=pool, kubeconfig=kubeconfig)
        return
    if pool is not None or namespace is not None or kubeconfig is not None:
        raise click.UsageError("--pool, --namespace and --kubeconfig are for --export")
    if model is None or accelerator is None:
        raise click.UsageError("give --model and --accelerator, or --export for a running cluster")
    _estimate(model=model, accelerator=accelerator, **estimated)


def _estimate(
    *,
    model: str,
    accelerator: str,
    config: Path | None,
    tensor: int,
    pipeline: int,
    data: int,
    experts: bool,
    expert_backend: str,
    imbalance: float,
    dtype: str,
    kv_dtype: str,
    kv_memory: str | None,
    profile: Path | None,
    isl: int,
    osl: int,
    tpot: str,
    eager: bool,
    as_json: bool,
) -> None:
    from fulcrum.api.durations import seconds
    from fulcrum.api.errors import InvalidValueError
    from fulcrum.api.quantities import number_of_bytes
    from fulcrum.capacity.accelerators import UnknownAcceleratorError
    from fulcrum.capacity.accelerators import accelerator as accelerator_of
    from fulcrum.capacity.config_fields import ModelConfigError
    from fulcrum.capacity.engine import EngineShape, EngineShapeError
    from fulcrum.capacity.known_models import UnknownModelError
    from fulcrum.capacity.precision import Precision
    from fulcrum.capacity.roofline import EAGER, GRAPHS
    from fulcrum.capacity.sheet import sheet

    try:
        known = model_config(model, config)
        if known.moe is not None:
            known = replace(known, moe=replace(known.moe, imbalance=imbalance))
        kv, why = _kv_cache(kv_dtype, model, accelerator, config)
        shape = EngineShape(
            model=known,
            accelerator=accelerator_of(accelerator),
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            experts=experts or data > 1,
            expert_backend=expert_backend,
            weights=known.weights if dtype == "auto" else Precision(dtype),
            kv=kv,
        )
        shape.require_startable()
        shown = sheet(
            shape,
            isl_tokens=isl,
            osl_tokens=osl,
            tpot_seconds=seconds(tpot),
            kv_memory_bytes=None if kv_memory is None else number_of_bytes(kv_memory),
            efficiency=EAGER if eager else GRAPHS,
            profile=None if profile is None else read_profile(profile),
        )
    except (
        UnknownModelError,
        UnknownAcceleratorError,
        EngineShapeError,
        ModelConfigError,
        InvalidValueError,
    ) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    else:
        _show(shown, why)


def _kv_cache(dtype: str, model: str, accelerator: str, config: Path | None) -> tuple[Precision, str]:
    """Return the size of KV, and what `auto` came to with its reason; empty where it was said."""
    import msgspec

    from fulcrum.api.types import InferenceClusterSpec
    from fulcrum.capacity.kv_dtype import resolved_kv_dtype
    from fulcrum.capacity.model_kinds import kind_of_config
    from fulcrum.capacity.precision import Precision

    if dtype != "auto":
        return Precision(dtype), ""
    pool = {"name": "p", "accelerator": accelerator, "workers": {"max": 1}}
    spec = msgspec.convert({"model": {"name": model}, "pools": [pool]}, InferenceClusterSpec)
    path = config or Path(model) / "config.json"
    found = resolved_kv_dtype(spec, kind_of_config(_read_json(path), model) if path.is_file() else None)
    precision = Precision.FP8 if found.dtype.value == Precision.FP8 else Precision.BF16
    return precision, f"engine.kvCache.dtype auto is {found.dtype.value} here: {found.why}"


def model_config(name: str, config: Path | None) -> ModelConfig:
    """Return the model of `--config`, of a folder, or of the table."""
    from fulcrum.capacity.hf_config import parse_model_config
    from fulcrum.capacity.known_models import known_model

    folder = Path(name)
    if config is None and (folder / "config.json").is_file():
        config = folder / "config.json"
    if config is None:
        return known_model(name)
    return parse_model_config(_read_json(config), name=name)


def read_profile(path: Path) -> Profile:
    """Return a measured worker."""
    from fulcrum.capacity.profile import ProfileError, parse_profile

    try:
        return parse_profile(path.read_bytes())
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
    except ProfileError as error:
        raise click.ClickException(f"{path}: {error}") from None


def _read_json(path: Path) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from None


def _show(shown: Sheet, kv_why: str) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    # In a pipe nothing is cut off.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    ranks = f", dp {shown.data}" * (shown.data > 1) + ", ep" * shown.experts
    gpus = f"{shown.gpus} x {shown.accelerator} (tp {shown.tensor}, pp {shown.pipeline}{ranks})"
    console.print(f"{shown.model} on {gpus}, weights {shown.weights}, KV {shown.kv}", markup=False, soft_wrap=True)
    if shown.data > 1:
        console.print(
            f"Times, batch and rates are those of one of the {shown.data} ranks; the others have as much to do."
        )
    if kv_why:
        console.print(f"{kv_why}.", markup=False, soft_wrap=True)
    console.print()
    if shown.accelerator == "cpu":
        console.print("On a CPU these are orders of magnitude: workers measure themselves when they start.")
    facts = Table("MEMORY", "", box=None, pad_edge=False)
    facts.add_row(
        "parameters", f"{shown.parameters / 1e9:.2f} B, of which {shown.active_parameters / 1e9:.2f} B active"
    )
    facts.add_row("weights", f"{_gib(shown.weight_bytes)}, {_gib(shown.weight_bytes_per_gpu)} per GPU")
    facts.add_row(
        "KV per token",
        f"{shown.kv_bytes_per_token / 1024:.1f} KiB, {shown.kv_bytes_per_token_and_gpu / 1024:.1f} per GPU",
    )
    facts.add_row("KV tokens that fit", f"{shown.kv_capacity_tokens:,}")
    facts.add_row("a step takes", f"{shown.max_num_batched_tokens:,} tokens, {shown.max_num_seqs:,} requests")
    console.print(facts)
    console.print()
    prefill = Table("PREFILL TOKENS", "TIME", "TOKENS/S", box=None, pad_edge=False)
    for row in shown.prefill:
        prefill.add_row(f"{row.tokens:,}", _ms(row.seconds), f"{row.tokens / row.seconds:,.0f}")
    console.print(prefill)
    console.print()
    decode = Table(
        "DECODE BATCH", *(f"{each:,} CONTEXT" for each in shown.decode[0].context_tokens), box=None, pad_edge=False
    )
    for line in shown.decode:
        cells = (_ms(each) if each is not None else "does not fit" for each in line.seconds)
        decode.add_row(f"{line.batch}", *cells)
    console.print(decode)
    console.print()
    transfer = Table("KV TRANSFER", f"{shown.isl_tokens:,} TOKENS", box=None, pad_edge=False)
    for link in shown.transfer:
        transfer.add_row(link.link, _ms(link.seconds))
    console.print(transfer)
    console.print()
    goal = f"TPOT {_ms(shown.tpot_seconds)}, {shown.isl_tokens:,} + {shown.osl_tokens:,} tokens"
    if shown.max_batch == 0:
        console.print(f"No batch stays within {goal}.")
        return
    rate = f"{shown.decode_tokens_per_second:,.0f} tokens/s, {shown.decode_requests_per_second:.2f} requests/s"
    console.print(f"Within {goal}: batch {shown.max_batch} (bound by {shown.bound_by}), decode {rate}", soft_wrap=True)
    console.print(
        f"Prefill alone: {shown.prefill_requests_per_second:.2f} requests/s; one prefill worker feeds "
        f"{shown.prefill_requests_per_second / shown.decode_requests_per_second:.2f} decode workers.",
        soft_wrap=True,
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
