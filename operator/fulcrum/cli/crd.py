"""`fulcrum crd`: the CustomResourceDefinitions and their field references, as the types say."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--kind",
    type=click.Choice(["InferenceCluster", "InferenceScale", "InferenceGateway"]),
    default="InferenceCluster",
    show_default=True,
    help="Kind that is defined.",
)
@click.option("--docs", is_flag=True, help="The field reference in Markdown instead of the CRD.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option(
    "--check",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Compare with this file; exit 1 if it is out of date.",
)
def command(*, kind: str, docs: bool, output: Path | None, check: Path | None) -> None:
    """Print the CustomResourceDefinition of one of Fulcrum's kinds.

    \b
    Examples:
      fulcrum crd | kubectl apply --server-side -f -
      fulcrum crd -o crds/fulcrum.dev_inferenceclusters.yaml
      fulcrum crd --check crds/fulcrum.dev_inferenceclusters.yaml
      fulcrum crd --kind InferenceScale -o crds/fulcrum.dev_inferencescales.yaml
      fulcrum crd --docs -o docs/reference/inferencecluster.md
    """
    from fulcrum.api.crd import DEFINITIONS, crd_yaml
    from fulcrum.api.reference import reference_markdown

    content = (reference_markdown if docs else crd_yaml)(DEFINITIONS[kind])

    if check is not None:
        current = check.read_text(encoding="utf-8") if check.is_file() else ""
        if current != content:
            flag = ("--docs " if docs else "") + ("" if kind == "InferenceCluster" else f"--kind {kind} ")
            raise click.ClickException(f"{check} is out of date; run `fulcrum crd {flag}-o {check}`")
        return
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(content, encoding="utf-8")
        return
    click.echo(content, nl=False)
