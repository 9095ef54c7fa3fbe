"""`fulcrum kubeconfig`: how other tools reach the local Kubernetes."""

from __future__ import annotations

import click


@click.command(short_help="Print the kubeconfig of the local Kubernetes.")
@click.option("--path", "only_path", is_flag=True, help="Print where the file is instead of what is in it.")
def command(*, only_path: bool) -> None:
    """Print the kubeconfig of the local Kubernetes (an administrator's: keep it to yourself).

    \b
    Examples:
      export KUBECONFIG=$(fulcrum kubeconfig --path)
      fulcrum kubeconfig > ~/.kube/fulcrum.yaml
    """
    from fulcrum_local.home import Home

    home = Home.find()
    if not home.kubeconfig.is_file():
        raise click.ClickException(f"there is no local Kubernetes in {home.root}; start one with: fulcrum up")
    if only_path:
        click.echo(str(home.kubeconfig))
    else:
        click.echo(home.kubeconfig.read_text(encoding="utf-8"), nl=False)
