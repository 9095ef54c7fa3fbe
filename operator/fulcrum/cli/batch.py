"""`fulcrum batch`."""

from __future__ import annotations

import click


@click.command(name="batch", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_json", help="Configuration as JSON.  [default: $FULCRUM_BATCH_CONFIG]")
@click.option("--directory", help="Where files and batches are kept; overrides the configuration.")
@click.option(
    "--host", help="Address to listen on.  [default: all of the Pod's; its own, where that is a loopback address]"
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.  [default: 8083]")
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING"]))
def command(
    *, config_json: str | None, directory: str | None, host: str | None, port: int | None, log_level: str
) -> None:
    """Run the batch process of a cluster: it keeps files and has batches answered in idle time.

    \b
    Examples:
      fulcrum batch                  # in a Pod: $FULCRUM_BATCH_CONFIG, $FULCRUM_INTERNAL_TOKEN, $POD_IP
      fulcrum batch --config '{"cluster": "chat", "gatewayHost": "127.0.0.1", "directory": "batches"}'
    """
    import os

    from fulcrum.batch.app import read_batch_settings, run_batches
    from fulcrum.batch.store import StoreError
    from fulcrum.gateway.config import ConfigError
    from fulcrum.gateway.process import run_process, start_logging

    start_logging(log_level)
    try:
        settings = read_batch_settings(os.environ, config_json=config_json, directory=directory, host=host, port=port)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    try:
        run_process(run_batches(settings))
    except StoreError as error:
        raise click.ClickException(str(error)) from error
