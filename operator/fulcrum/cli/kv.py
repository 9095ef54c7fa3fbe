"""`fulcrum kv`: what bringing back an offloaded prefix costs, and what partial recomputation gains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fulcrum.cli.capacity import model_config
from fulcrum.cli.number_range import NumberRange

if TYPE_CHECKING:
    from fulcrum.kv.sheet import NamedLink, RestoreSheet

_GIGA: Final = 1e9


@click.command(short_help="Show what loading or recomputing an offloaded prefix costs.")
@click.option("--model", required=True, metavar="NAME", help="Hub id, or a folder with a config.json.")
@click.option("--accelerator", required=True, metavar="NAME", help="As in a pool: H100-SXM-80GB, L40S-48GB, ...")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="The config.json of an unknown model.")
@click.option("--tp", "tensor", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor parallelism.")
@click.option(
    "--dtype",
    type=click.Choice(("auto", "bf16", "fp8", "fp4")),
    default="auto",
    show_default=True,
    help="Weights; auto is as published.",
)
@click.option("--kv-dtype", type=click.Choice(("fp8", "bf16")), default="fp8", show_default=True, help="KV cache.")
@click.option("--prefix", type=click.IntRange(min=16), default=32768, show_default=True, help="Offloaded tokens.")
@click.option("--new", type=click.IntRange(min=1), default=512, show_default=True, help="Tokens after the prefix.")
@click.option(
    "--link",
    "rates",
    multiple=True,
    type=NumberRange(min=0, min_open=True),
    metavar="GB/S",
    help="A link of your own, for the whole engine; can be repeated. Default: a table of usual links.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def command(
    *,
    model: str,
    accelerator: str,
    config: Path | None,
    tensor: int,
    dtype: str,
    kv_dtype: str,
    prefix: int,
    new: int,
    rates: tuple[float, ...],
    as_json: bool,
) -> None:
    """Show, for each link, the time to the first token when a prefix is loaded, recomputed, or both at once.

    FRONT computes the front of the prefix while the rest of it is loaded; LAYERS computes each layer as its KV comes.
    A gain is the share of time saved against the better of loading everything and recomputing everything.

    \b
    Examples:
      fulcrum kv --model meta-llama/Llama-3.1-8B-Instruct --accelerator H100
      fulcrum kv --model meta-llama/Llama-3.3-70B-Instruct --accelerator H100 --tp 4 --dtype fp8 --prefix 8192
      fulcrum kv --model Qwen/Qwen3-32B --accelerator L40S --tp 4 --link 3 --link 12.5 --json | jq .lines
    """
    from fulcrum.capacity.accelerators import UnknownAcceleratorError
    from fulcrum.capacity.accelerators import accelerator as accelerator_of
    from fulcrum.capacity.config_fields import ModelConfigError
    from fulcrum.capacity.engine import EngineShape, EngineShapeError
    from fulcrum.capacity.known_models import UnknownModelError
    from fulcrum.capacity.precision import Precision
    from fulcrum.kv.sheet import LINKS, restore_sheet

    try:
        known = model_config(model, config)
        shape = EngineShape(
            model=known,
            accelerator=accelerator_of(accelerator),
            tensor=tensor,
            weights=known.weights if dtype == "auto" else Precision(dtype),
            kv=Precision(kv_dtype),
        )
        links = tuple(_own_link(rate) for rate in rates) or LINKS
        shown = restore_sheet(shape, prefix_tokens=prefix, new_tokens=new, links=links)
    except (UnknownModelError, UnknownAcceleratorError, EngineShapeError, ModelConfigError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    else:
        _show(shown)


def _own_link(rate: float) -> NamedLink:
    from fulcrum.kv.sheet import NamedLink

    return NamedLink(name=f"{rate:g} GB/s", bytes_per_second=rate * _GIGA)


def _show(shown: RestoreSheet) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    ratio = shown.activation_bytes_per_token / shown.kv_bytes_per_token
    console.print(
        f"{shown.model} on {shown.tensor} x {shown.accelerator}, weights {shown.weights}, KV {shown.kv}: "
        f"{shown.kv_bytes_per_token / 1024:.0f} KiB per token",
        soft_wrap=True,
    )
    console.print(
        f"{shown.prefix_tokens:,} of {shown.prompt_tokens:,} prompt tokens are offloaded. "
        f"Below {shown.break_even_bytes_per_second / _GIGA:.2f} GB/s recomputing them is quicker than loading them.",
        soft_wrap=True,
    )
    console.print()
    table = Table("LINK", "GB/S", "LOAD", "RECOMPUTE", "FRONT", "COMPUTED", "GAIN", "LAYERS", "GAIN", box=None)
    for line in shown.lines:
        table.add_row(
            line.link,
            f"{line.bytes_per_second / _GIGA:.1f}",
            f"{line.load_seconds:.3f} s",
            f"{line.recompute_seconds:.3f} s",
            f"{line.front_seconds:.3f} s",
            f"{line.front_recompute_tokens:,}",
            f"{line.front_gain:.0%}",
            f"{line.layers_seconds:.3f} s",
            f"{line.layers_gain:.0%}",
        )
    console.print(table)
    console.print()
    console.print(
        f"Activations, which KVPR loads instead of the KV that it recomputes, take {ratio:.1f} times the bytes of this "
        f"model's KV: {'loading KV is cheaper.' if ratio >= 1 else 'loading activations is cheaper.'}",
        soft_wrap=True,
    )
