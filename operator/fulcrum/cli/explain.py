"""`fulcrum explain`: what the last decision about an InferenceCluster rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fulcrum.api.types import Candidate, Decision, Explanation, InferenceCluster, RehearsalStatus


@click.command("explain", short_help="Say why the last decision was made, and what would change it.")
@click.argument("cluster", required=False, metavar="[ic/]NAME")
@click.option("-n", "--namespace", help="Namespace of the cluster; default: where the only cluster is.")
@click.option("--json", "as_json", is_flag=True, help="For machines: status.lastDecision.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Kubeconfig; default: $KUBECONFIG, else that of `fulcrum up`, else kubectl's.",
)
def command(*, cluster: str | None, namespace: str | None, as_json: bool, kubeconfig: str | None) -> None:
    """Explain the last decision about an InferenceCluster: the load and its bounds, the layouts that were compared with
    what they would serve inside the SLO, which one was chosen and why, and what would change it. Then what stands now.

    It reads the status of the InferenceCluster, where the operator writes it with each decision. NAME may be left out
    when there is one cluster.

    \b
    Examples:
      fulcrum explain
      fulcrum explain ic/chat -n serving
      fulcrum explain chat --json | jq .explanation.load
    """
    import asyncio

    import msgspec

    from fulcrum.cli.top.source import NoClusterError
    from fulcrum.kube import ApiFailure, ConfigError

    name = cluster.rpartition("/")[2] if cluster else None
    try:
        found = asyncio.run(_read(name, namespace, kubeconfig))
    except (NoClusterError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    except ApiFailure as error:
        raise click.ClickException(f"the API server does not answer: {error}") from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found.status.last_decision), indent=2).decode())
    else:
        click.echo("\n".join(lines(found)))


async def _read(name: str | None, namespace: str | None, kubeconfig: str | None) -> InferenceCluster:
    from fulcrum.api.names import API_VERSION, PLURAL
    from fulcrum.api.objects import load_inference_cluster
    from fulcrum.cli.connect import api_of
    from fulcrum.cli.top.source import find_cluster

    api = api_of(kubeconfig)
    try:
        space, known = await find_cluster(api, namespace, name)
        return load_inference_cluster(await api.get(f"/apis/{API_VERSION}/namespaces/{space}/{PLURAL}/{known}"))
    finally:
        await api.close()


def lines(cluster: InferenceCluster) -> list[str]:
    """Return the explanation, line by line."""
    status, name = cluster.status, f"ic/{cluster.metadata.name} in {cluster.metadata.namespace}"
    text = [f"{name}: mode {cluster.spec.balance.mode}, {status.ratio or 'no worker serves'}", ""]
    decision = status.last_decision
    if decision is None:
        text += ["No decision has changed anything yet.", ""]
    else:
        text += [*_decision(decision), ""]
        if decision.explanation is not None:
            text += _explanation(decision.explanation)
        else:
            text += ["The load was not the reason: nothing was compared.", ""]
    return [*text, *_now(cluster)]


def _decision(decision: Decision) -> list[str]:
    return [f"{decision.time}  {decision.action}: {decision.from_} -> {decision.to} ({decision.reason})"]


def _explanation(why: Explanation) -> list[str]:
    load = why.load
    tokens = f"{load.input_tokens:,.0f} + {load.output_tokens:,.0f} tokens"
    text = [f"load       {load.rate:g} requests/s of {tokens}, between {load.lower_rate:g} and {load.upper_rate:g}"]
    if load.forecast_rate is not None:
        text.append(f"forecast   up to {load.forecast_rate:g} requests/s within the horizon")
    if why.attainment is not None:
        text.append(f"measured   {why.attainment:.1%} of the admitted requests inside the SLO")
    if why.candidates:
        width = max(len("LAYOUT"), *(len(each.layout) for each in why.candidates))
        text += ["", f"{'LAYOUT':{width}}  INSIDE  LOWEST  VERDICT"]
        text += [_row(each, width) for each in why.candidates]
    if why.changes:
        text += ["", "would change it", *(f"  {change}" for change in why.changes)]
    return [*text, ""]


def _row(candidate: Candidate, width: int) -> str:
    lowest = "-" if candidate.lowest is None else f"{candidate.lowest:.1%}"
    return f"{candidate.layout:{width}}  {candidate.attainment:>6.1%}  {lowest:>6}  {candidate.verdict}"


def _rehearsal(played: RehearsalStatus) -> list[str]:
    ahead = f"{played.gain:+g} requests" + ("" if played.error is None else f", error {played.error:g}")
    best = f"{played.best} {played.best_attainment:.1%} ({ahead})"
    if played.best == played.stood:
        best = "no other layout serves more"
        # Older operators wrote the ratio alone, which is the same where only pools differ.
        if played.error is not None or played.gain != 0:
            best = f"another layout of the same ratio {played.best_attainment:.1%} ({ahead})"
    text = [
        f"rehearsed  {played.time}, {played.requests} requests: {played.stood} {played.stood_attainment:.1%} inside, "
        f"{best}; {played.chosen} was chosen"
    ]
    if played.off is not None:
        more = "more" if played.off > 0 else "less"
        text.append(
            f"           {played.stood} served {abs(played.off):.1%} {more} of the last ones than a play of them says"
        )
    if played.foretold_attainment is not None and played.served_attainment is not None:
        text.append(
            f"           the last forecast said {played.foretold_attainment:.1%} inside, and "
            f"{played.served_attainment:.1%} came"
        )
    return text


def _now(cluster: InferenceCluster) -> list[str]:
    """Return what stands now: figures and conditions, of which rejections are one."""
    status = cluster.status
    inside = "unknown" if status.attainment is None else f"{status.attainment:.1%}"
    away = "unknown" if status.rejected_ratio is None else f"{status.rejected_ratio:.1%}"
    text = [f"now        {inside} inside the SLO of {cluster.spec.slo.attainment:.0%}, {away} turned away"]
    if (played := status.rehearsal) is not None:
        text += _rehearsal(played)
    text += [f"           {each.type} {each.status}, {each.reason}: {each.message}" for each in status.conditions]
    return text
