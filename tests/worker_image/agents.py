"""Starts real worker agents on loopback addresses, and looks at them; for every test that needs a real worker."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
from tests.machine import deadline_seconds, wait_until

from fulcrum.api.names import (
    ENV_POD_IP,
    ENV_POD_NAME,
    ENV_POD_NAMESPACE,
    ENV_WORKER_CONFIG,
    HEADER_RANK,
    PORT_AGENT,
    PORT_ENGINE,
    PORT_NIXL,
    Role,
)
from fulcrum.api.worker import KvCacheConfig, LoadReport, WorkerConfig
from fulcrum.capacity.cpu import CPUINFO, refuses_fp8_kv

START_SECONDS = 180.0
"""From a start to the first answer with two engines at once, on a quick machine (see `tests.machine`)."""
MODEL = "tiny"
"""What the tests of engines serve: a step takes a few milliseconds on any CPU."""
SERVED_NAME = "chat"
DECIDED_NATS = 0.4
"""By how much a token leads where rounding (FP8 or bf16) cannot choose another."""

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a gateway sends with a prefill leg."""


def free_address() -> str:
    """A loopback address on which the worker's three ports are free."""
    for _ in range(100):
        ip = f"127.77.{random.randint(240, 254)}.{random.randint(2, 254)}"
        if all(_can_bind(ip, port) for port in (PORT_ENGINE, PORT_AGENT, PORT_NIXL)):
            return ip
    raise AssertionError("no loopback address is free")


def _can_bind(ip: str, port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ip, port))
        except OSError:
            return False
    return True


def prepared_model(name: str = MODEL) -> str:
    """Path of a built-in model; prepared once per machine."""
    done = subprocess.run(
        [sys.executable, "-m", "fulcrum.cli.app", "model", name], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def model_of_kind(kind: str, folder: Path) -> str:
    """Path of a tiny model of `kind` (`tiny_kinds`), written into the folder where it is not there yet."""
    model = folder / "model"
    if not model.exists():
        program = Path(__file__).parent / "tiny_kinds.py"
        subprocess.run([sys.executable, str(program), kind, prepared_model(), str(model)], check=True)
    return str(model)


def token_prompt(number: int, *, tokens: int) -> list[int]:
    """Token ids; prompts of different numbers differ in their first half only."""
    half = tokens // 2
    return [*(1000 + 7 * number + 3 * place for place in range(half)), *range(5000, 5000 + half)]


def worker_config(**changes: Any) -> WorkerConfig:
    """A configuration for one small CPU worker."""
    base = WorkerConfig(
        cluster="chat",
        pool="cpu",
        model=MODEL,
        served_name=SERVED_NAME,
        accelerator="cpu",
        max_model_len=2048,
        kv_cache=KvCacheConfig(dtype="fp8", block_size=32, memory_bytes=16 << 20),
        role=Role.MIXED,
        drain_timeout_seconds=deadline_seconds(60.0),
    )
    return msgspec.structs.replace(base, **changes)


def post_json(url: str, body: object, *, seconds: float = 120.0, headers: dict[str, str] | None = None) -> Any:
    """Sends JSON and returns the decoded answer; raises urllib.error.HTTPError for 4xx and 5xx."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
    )
    with urllib.request.urlopen(request, timeout=deadline_seconds(seconds)) as response:
        return json.load(response)


@dataclass(slots=True, kw_only=True)
class Agent:
    """A running agent: its process, its address and its log."""

    ip: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def engine_url(self) -> str:
        return f"http://{self.ip}:{PORT_ENGINE}"

    @property
    def url(self) -> str:
        return f"http://{self.ip}:{PORT_AGENT}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the agent's answer; status 0 when it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=deadline_seconds(30)) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def load(self) -> LoadReport:
        status, body = self.get("/load")
        assert status == 200, body
        return msgspec.json.decode(body, type=LoadReport)

    def engine_metric(self, name: str) -> float:
        """Sum of a metric of vLLM over its labels."""
        with urllib.request.urlopen(f"{self.engine_url}/metrics", timeout=deadline_seconds(30)) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def complete(
        self,
        prompt: str | list[int],
        *,
        max_tokens: int,
        request_id: str | None = None,
        rank: int | None = None,
        **more: Any,
    ) -> Any:
        """One greedy completion by vLLM itself, by one of its ranks where it is named."""
        body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        headers = {"X-Request-Id": request_id} if request_id else {}
        if rank is not None:
            headers[HEADER_RANK] = str(rank)
        return post_json(f"{self.engine_url}/v1/completions", body, headers=headers)

    def wait_ready(self, *, seconds: float = START_SECONDS) -> None:
        def ready_or_ended() -> bool:
            assert self.process.poll() is None, f"the agent ended with {self.process.returncode}:\n{self.tail()}"
            return self.get("/readyz")[0] == 200

        wait_until(ready_or_ended, seconds=seconds, what=lambda: f"ready:\n{self.tail()}")

    def descendants(self) -> list[psutil.Process]:
        """vLLM's processes."""
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def cpu_seconds(self) -> float:
        """CPU time that the agent and vLLM have used."""
        times = [process.cpu_times() for process in (psutil.Process(self.process.pid), *self.descendants())]
        return float(sum(used.user + used.system for used in times))

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_exit(self, *, seconds: float) -> int:
        """Exit code; `seconds` are those of a quick machine."""
        try:
            return self.process.wait(deadline_seconds(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the agent did not end within {deadline_seconds(seconds):g} s:\n{self.tail()}"
            ) from None

    def kill(self) -> None:
        """Ends the agent's whole process group at once, as a kubelet does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _suited(config: WorkerConfig) -> WorkerConfig:
    """The same in float32, with room for as many tokens, where the CPU has no kernels for an FP8 KV cache."""
    if config.kv_cache.dtype != "fp8" or not refuses_fp8_kv(CPUINFO.read_text(errors="replace")):
        return config
    kv_cache = KvCacheConfig(
        dtype="auto", block_size=config.kv_cache.block_size, memory_bytes=4 * (config.kv_cache.memory_bytes or 0)
    )
    return msgspec.structs.replace(config, kv_cache=kv_cache, engine_args=(*config.engine_args, "--dtype", "float32"))


def start_agent(log_folder: Path, config: WorkerConfig, *, name: str = "chat-cpu-0") -> Agent:
    """Starts `python -m fulcrum_worker` in a session of its own, as a Pod's main process."""
    ip = free_address()
    log = log_folder / f"{name}.log"
    environment = {
        **os.environ,
        ENV_WORKER_CONFIG: msgspec.json.encode(_suited(config)).decode(),
        ENV_POD_IP: ip,
        ENV_POD_NAME: name,
        ENV_POD_NAMESPACE: "default",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fulcrum_worker"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Agent(ip=ip, process=process, log=log)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run (a zombie does not)."""
    running = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
        except psutil.NoSuchProcess:
            continue
    return running
