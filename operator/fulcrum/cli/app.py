"""The `fulcrum` command: a table of subcommands, each imported only when it runs."""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from fulcrum import __version__

_COMMANDS: Final = {
    # name: (module, one line for `fulcrum --help`)
    "up": ("fulcrum.cli.up", "Start a local Kubernetes with the operator and apply a file."),
    "down": ("fulcrum.cli.down", "Stop everything that `fulcrum up` started."),
    "status": ("fulcrum.cli.status", "Show clusters, workers and what runs."),
    "top": ("fulcrum.cli.top", "Watch a cluster: workers, ratio, load, decisions."),
    "dashboard": ("fulcrum.cli.dashboard", "Serve a page that shows all clusters live."),
    "explain": ("fulcrum.cli.explain", "Say why the last decision was made, and what would change it."),
    "logs": ("fulcrum.cli.logs", "Print the log of a Pod."),
    "kubeconfig": ("fulcrum.cli.kubeconfig", "Print the kubeconfig of the local Kubernetes."),
    "replay": ("fulcrum.cli.replay", "Replay a trace against an OpenAI-compatible endpoint."),
    "model": ("fulcrum.cli.model", "Prepare a model for local use."),
    "capacity": ("fulcrum.cli.capacity", "Show how fast a worker should be and what fits into it."),
    "record": ("fulcrum.cli.record", "Write a cluster's last minutes of requests as a trace."),
    "kv": ("fulcrum.cli.kv", "Show what loading or recomputing an offloaded prefix costs."),
    "kv-check": ("fulcrum.cli.kv_check", "Compare an engine's answers with those of one with another KV cache."),
    "simulate": ("fulcrum.cli.simulate", "Compare policies on a trace, without a cluster."),
    "plan": ("fulcrum.cli.plan", "Find which GPUs form workers, in which role and parallelism."),
    "operator": ("fulcrum.cli.operator", "Run the operator against a Kubernetes API server."),
    "gateway": ("fulcrum.cli.gateway", "Run a gateway."),
    "front": ("fulcrum.cli.front", "Run a front: many models behind one address."),
    "batch": ("fulcrum.cli.batch", "Run the batch process of a cluster: files and batches."),
    "apiserver": ("fulcrum.cli.apiserver", "Run the embedded Kubernetes API server alone."),
    "kubelet": ("fulcrum.cli.kubelet", "Run Pods as processes of this machine."),
    "crd": ("fulcrum.cli.crd", "Print the CustomResourceDefinitions."),
}


class _LazyGroup(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name != "fulcrum_local":
                raise
            raise click.ClickException(
                f"`fulcrum {ctx.invoked_subcommand}` needs the local Kubernetes, which is not installed: "
                "pip install 'fulcrum-operator[local]'"
            ) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fulcrum")
def main() -> None:
    """Disaggregated LLM inference on Kubernetes, or on this machine.

    \b
    Examples:
      fulcrum up -f examples/quickstart.yaml    # local Kubernetes, real vLLM workers
      fulcrum status
      fulcrum replay --trace synthetic --url http://127.0.0.1:8080
      fulcrum down
    """


if __name__ == "__main__":
    main()
