"""The batch process from its start to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import msgspec
from aiohttp import web

from fulcrum.api import names
from fulcrum.api.batch import BatchConfig
from fulcrum.api.internal_token import ENV_GATEWAY
from fulcrum.batch.scheduler import Scheduler
from fulcrum.batch.sender import Sender
from fulcrum.batch.server import Api
from fulcrum.batch.store import Store
from fulcrum.gateway.config import ConfigError, listen_address, required_config
from fulcrum.gateway.process import report_death
from fulcrum.gateway.unhandled import log_unhandled

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Everything that one batch process needs."""

    config: BatchConfig
    host: str
    port: int = names.PORT_BATCH
    token: str | None = field(default=None, repr=False)
    """That gateways know the process by, and it them."""


def read_batch_settings(
    environment: Mapping[str, str],
    *,
    config_json: str | None = None,
    directory: str | None = None,
    host: str | None = None,
    port: int | None = None,
) -> BatchSettings:
    """Settings from the environment; arguments that are not None win. Raises ConfigError."""
    config = required_config(BatchConfig, names.ENV_BATCH_CONFIG, environment, config_json)
    if directory is not None:
        config = msgspec.structs.replace(config, directory=directory)
    address = host or listen_address(environment.get(names.ENV_POD_IP))
    token = environment.get(ENV_GATEWAY) or None
    if token is None and not ip_address(address).is_loopback:
        raise ConfigError(f"Set {ENV_GATEWAY}: without it, anyone who can connect to {address} reads all files.")
    return BatchSettings(config=config, host=address, port=names.PORT_BATCH if port is None else port, token=token)


async def run_batches(settings: BatchSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises StoreError, and OSError where the port is taken."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_unhandled)
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    config = settings.config
    store = Store(Path(config.directory))
    try:
        async with Sender(config, settings.token) as sender:
            scheduler = Scheduler(store, sender, config.limits)
            await scheduler.recount()
            api = Api(config, store, scheduler, token=settings.token)
            runner = web.AppRunner(api.application(), access_log=None, shutdown_timeout=5.0)
            await runner.setup()
            site = web.TCPSite(runner, settings.host, settings.port)
            await site.start()
            logger.info(
                "batch_process_started host=%s port=%d cluster=%s files=%d batches=%d",
                settings.host, settings.port, config.cluster, len(store.files), len(store.batches),
            )  # fmt: skip
            running = asyncio.create_task(scheduler.run())
            running.add_done_callback(report_death)
            waiting = asyncio.create_task(signalled.wait())
            # Without the scheduler it would take batches that never run: it ends, and is started again.
            await asyncio.wait((waiting, running), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await runner.cleanup()
    finally:
        store.close()
    logger.info("batch_process_stopped")
