"""`fulcrum gateway`."""

from __future__ import annotations

import click

from fulcrum.cli.number_range import NumberRange


@click.command(name="gateway", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_json", help="Configuration as JSON.  [default: $FULCRUM_GATEWAY_CONFIG]")
@click.option(
    "--host", help="Address to listen on.  [default: all of the Pod's; its own, where that is a loopback address]"
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8080]")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port of /metrics, /kv-pairs and /loads, for the cluster.  [default: 8082; a free one with --static-worker]",
)
@click.option("--namespace", help="Namespace of the worker Pods.  [default: $POD_NAMESPACE]")
@click.option("--served-name", help="Model name that clients send; overrides the configuration.")
@click.option(
    "--static-worker",
    "static_workers",
    multiple=True,
    metavar="ROLE=URL",
    help="A worker, instead of watching Pods; repeat it.",
)
@click.option("--max-connections", default=16_384, show_default=True, type=click.IntRange(1), help="Open clients.")
@click.option(
    "--lame-duck-seconds",
    default=3.0,
    show_default=True,
    type=NumberRange(0),
    help="How long SIGTERM still lets connections in.",
)
@click.option("--access-log/--no-access-log", default=False, help="One log line per request, not only per failure.")
@click.option("--prewarm/--no-prewarm", default=True, help="Try worker pairs before the first request.")
@click.option("--openapi", is_flag=True, help="Print the OpenAPI document of the HTTP API and exit.")
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"]))
def command(
    *,
    config_json: str | None,
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    namespace: str | None,
    served_name: str | None,
    static_workers: tuple[str, ...],
    max_connections: int,
    lame_duck_seconds: float,
    access_log: bool,
    prewarm: bool,
    openapi: bool,
    log_level: str,
) -> None:
    """Run a gateway: OpenAI-compatible HTTP in, prefill and decode legs to vLLM workers out.

    \b
    Examples:
      fulcrum gateway                # in a Pod: $FULCRUM_GATEWAY_CONFIG, $POD_IP, $POD_NAMESPACE
      fulcrum gateway --port 8080 --served-name chat \\
        --static-worker prefill=http://127.0.0.1:8000 --static-worker decode=http://127.0.0.1:8001
    """
    if openapi:
        import json

        from fulcrum.gateway.api_formats.openapi import document

        click.echo(json.dumps(document(), indent=1))
        return

    import os

    from fulcrum.gateway.app import run
    from fulcrum.gateway.config import ConfigError, read_settings
    from fulcrum.gateway.process import run_process, start_logging

    start_logging(log_level)
    try:
        settings = read_settings(
            os.environ,
            config_json=config_json,
            host=host,
            port=port,
            inside_port=metrics_port,
            namespace=namespace,
            static_workers=static_workers,
            served_name=served_name,
            max_connections=max_connections,
            lame_duck_seconds=lame_duck_seconds,
            access_log=access_log,
            prewarm=prewarm,
        )
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    run_process(run(settings))
