"""`fulcrum front`."""

from __future__ import annotations

import click

from fulcrum.cli.number_range import NumberRange


@click.command(name="front", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_json", help="Configuration as JSON.  [default: $FULCRUM_FRONT_CONFIG]")
@click.option(
    "--host", help="Address to listen on.  [default: all of the Pod's; its own, where that is a loopback address]"
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8080]")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port of /metrics and probes, for the cluster.  [default: 8082]",
)
@click.option("--max-connections", default=16_384, show_default=True, type=click.IntRange(1), help="Open clients.")
@click.option(
    "--lame-duck-seconds",
    default=3.0,
    show_default=True,
    type=NumberRange(0),
    help="How long SIGTERM still lets connections in.",
)
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"]))
def command(
    *,
    config_json: str | None,
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    max_connections: int,
    lame_duck_seconds: float,
    log_level: str,
) -> None:
    """Run a front of an InferenceGateway: many models behind one address, each passed on to its cluster's gateway.

    \b
    Examples:
      fulcrum front                  # in a Pod: $FULCRUM_FRONT_CONFIG, $POD_IP, $POD_NAMESPACE
      fulcrum front --port 8080 --config '{"name": "front", "routes": {
        "models": [{"name": "chat", "backends": [{"cluster": "default/a"}]}],
        "clusters": [{"name": "default/a", "host": "10.0.0.9", "port": 8080, "servedName": "chat"}]}}'
    """
    import os

    from fulcrum.gateway.config import ConfigError
    from fulcrum.gateway.front.app import run_front
    from fulcrum.gateway.front.settings import read_front_settings
    from fulcrum.gateway.process import run_process, start_logging

    start_logging(log_level)
    try:
        settings = read_front_settings(
            os.environ,
            config_json=config_json,
            host=host,
            port=port,
            inside_port=metrics_port,
            max_connections=max_connections,
            lame_duck_seconds=lame_duck_seconds,
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    run_process(run_front(settings))
