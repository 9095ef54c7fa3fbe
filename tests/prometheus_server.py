"""A real Prometheus server for tests: found on PATH or in the cache, else unpacked from the Debian package."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from _loopback.launch import free_ports
from tests.machine import deadline_seconds

_START_SECONDS = 120.0


def prometheus_binary() -> Path:
    """Path of `prometheus`. Where it cannot be had the test is skipped, on CI it fails: there it must be had."""
    found = shutil.which("prometheus")
    if found:
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fulcrum" / "prometheus"
    binary = cache / "usr" / "bin" / "prometheus"
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (cache.parent / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not binary.exists():
            try:
                _unpack_debian_package(cache)
            except (OSError, subprocess.SubprocessError) as error:
                what = getattr(error, "stderr", None) or error
                why = f"no prometheus: not on PATH, not in {cache}, and `apt-get download prometheus` failed: {what}"
                if os.environ.get("CI"):
                    pytest.fail(why)
                pytest.skip(why)
    return binary


def _unpack_debian_package(target: Path) -> None:
    """Fetch the package with the machine's own sources and unpack it, which needs no rights. Raises on failure."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _run(["apt-get", "-o", "Acquire::Retries=5", "download", "prometheus"], folder)
        (package,) = Path(folder).glob("prometheus_*.deb")
        _run(["dpkg", "-x", str(package), "unpacked"], folder)
        shutil.rmtree(target, ignore_errors=True)
        (Path(folder) / "unpacked").rename(target)


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=deadline_seconds(240))


class PrometheusServer:
    """Scrapes `targets` (`host:port`), or what `jobs` (scrape configurations) find; stopped and started again, it keeps
    its data and its address."""

    def __init__(
        self,
        folder: Path,
        *,
        scrape_interval: str = "500ms",
        jobs: Sequence[dict[str, Any]] = (),
        same_jobs: int = 1,
        features: Sequence[str] = (),
    ) -> None:
        self._binary = prometheus_binary()
        self._folder = folder
        self._scrape_interval = scrape_interval
        self._jobs = list(jobs)
        self._same_jobs = same_jobs
        self._features = features
        self._process: asyncio.subprocess.Process | None = None
        (self._port,) = free_ports(1)

    @property
    def url(self) -> str:
        """What `metrics.prometheus.url` would be."""
        return f"http://127.0.0.1:{self._port}"

    def scrape(self, *targets: str) -> None:
        """Scrape these from the next start on (a running server notices within a second)."""
        (self._folder / "targets.json").write_text(json.dumps([{"targets": targets}]))

    async def start(self) -> None:
        """Start it and wait until it answers."""
        targets = self._folder / "targets.json"
        if not targets.exists():
            self.scrape()
        config = {
            "global": {"scrape_interval": self._scrape_interval, "scrape_timeout": self._scrape_interval},
            "scrape_configs": self._jobs
            or [
                {"job_name": f"job-{number}", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
                for number in range(self._same_jobs)
            ],
        }
        (self._folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(self._binary), f"--config.file={self._folder}/prometheus.yml",
                f"--storage.tsdb.path={self._folder}/data", f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn", *(f"--enable-feature={name}" for name in self._features), stdout=log, stderr=log,
            )  # fmt: skip
        try:
            async with asyncio.timeout(deadline_seconds(_START_SECONDS)), aiohttp.ClientSession() as session:
                while not await self._ready(session):
                    assert self._process.returncode is None, (self._folder / "log").read_text()
                    await asyncio.sleep(0.05)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop it; nothing happens when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), deadline_seconds(20))
        except TimeoutError:
            process.kill()
            await process.wait()

    def freeze(self) -> None:
        """Keep it from answering, its port open, until `stop` or `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End of `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/-/ready", timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


@contextlib.asynccontextmanager
async def prometheus_server(
    folder: Path,
    *targets: str,
    scrape_interval: str = "500ms",
    jobs: Sequence[dict[str, Any]] = (),
    same_jobs: int = 1,
    features: Sequence[str] = (),
) -> AsyncIterator[PrometheusServer]:
    """A server that scrapes `targets` with each of `same_jobs`, or what `jobs` find; it is stopped at the end."""
    server = PrometheusServer(
        folder, scrape_interval=scrape_interval, jobs=jobs, same_jobs=same_jobs, features=features
    )
    server.scrape(*targets)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
