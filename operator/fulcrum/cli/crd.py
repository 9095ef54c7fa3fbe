"""`fulcrum crd`: the CustomResourceDefinition and its field reference, as the types say."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--docs", is_flag=True, help="The field reference in Markdown instead of the CRD.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option(
    "--check",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Compare with this file; exit 1 if it is out of date.",
)
def command(*, docs: bool, output: Path | None, check: Path | None) -> None:
    """Print the CustomResourceDefinition of InferenceCluster.

    \b
    Examples:
      fulcrum crd | kubectl apply --server-side -f -
      fulcrum crd -o crds/fulcrum.dev_inferenceclusters.yaml
      fulcrum crd --check crds/fulcrum.dev_inferenceclusters.yaml
      fulcrum crd --docs -o docs/reference/inferencecluster.md
    """
    if docs:
        from fulcrum.api.reference import reference_markdown

        content = reference_markdown()
    else:
        from fulcrum.api.crd import crd_yaml

        content = crd_yaml()

    if check is not None:
        current = check.read_text(encoding="utf-8") if check.is_file() else ""
        if current != content:
            flag = "--docs " if docs else ""
            raise click.ClickException(f"{check} is out of date; run `fulcrum crd {flag}-o {check}`")
        return
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(content, encoding="utf-8")
        return
    click.echo(content, nl=False)
