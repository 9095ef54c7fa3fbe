"""The kubelet as a program: one at a time per state folder, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from pathlib import Path

from fulcrum.kube import Api
from fulcrum_local.kubelet.config import KubeletConfig
from fulcrum_local.kubelet.kubelet import Kubelet
from fulcrum_local.kubelet.processes import become_subreaper
from fulcrum_local.proxy.proxy import ServiceProxy


async def serve(config: KubeletConfig, kubeconfig: str | None, *, service_proxy: bool) -> None:
    """Run until a signal. Errors: ConfigError; OSError when the folder is in use or the log port taken."""
    config.state_directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    lock = _lock(config.state_directory)
    become_subreaper()
    api = Api(kubeconfig)
    await api.connect()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = [asyncio.create_task(Kubelet(config, api).run())]
    if service_proxy:
        work.append(asyncio.create_task(ServiceProxy(api).run()))
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
    finally:
        for task in (*work, stopping):
            task.cancel()
        await asyncio.gather(*work, stopping, return_exceptions=True)
        await api.close()
        os.close(lock)


def _lock(directory: Path) -> int:
    """Hold the folder for this process; released by the kernel whatever happens to it."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise OSError(f"another kubelet uses {directory}") from None
    return fd
