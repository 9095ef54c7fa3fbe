"""The small controllers (scheduler, Deployments, endpoints ...) as a process of their own.

Run as `python -m fulcrum_local.controlling KUBECONFIG`.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from fulcrum_local.controllers.runner import run_controllers
from fulcrum_local.log_format import log_to_stderr


async def control(kubeconfig: str) -> None:
    """Run every controller until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_controllers(kubeconfig, stop)


if __name__ == "__main__":
    log_to_stderr()
    uvloop.run(control(sys.argv[1]))
