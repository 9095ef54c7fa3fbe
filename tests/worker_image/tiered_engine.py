"""One real engine with a host tier, whose link a test slows down; for tests and `benchmarks/kv_restore.py`."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machine import deadline_seconds
from tests.worker_image.agents import (
    DECIDED_NATS,
    SERVED_NAME,
    START_SECONDS,
    free_address,
    post_json,
    prepared_model,
    worker_config,
)
from tests.worker_image.link_file import Link

from fulcrum.api.names import PORT_ENGINE
from fulcrum.api.worker import KvCacheConfig, KvPoolConfig, OffloadConfig
from fulcrum.capacity.cpu import CPUINFO, refuses_fp8_kv
from fulcrum.cli import tiny_model
from fulcrum_worker.config import PodIdentity
from fulcrum_worker.engine_command import engine_command
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.kv.policy import vllm_version
from fulcrum_worker.models import local_model

BLOCK_TOKENS = 32
ROOM_TOKENS = 2304
"""Tokens that the device's cache holds, and the longest prompt."""
_BF16_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 2
"""SmolLM2-135M: keys and values, layers, KV heads, head size, bytes."""
_LIGHT = {"num_hidden_layers": 12, "hidden_size": 288, "intermediate_size": 768}
"""An eighth of SmolLM2's work for a token: 2,000 tokens take a few seconds in float32 on a core without AVX-512, where
loading their KV still takes far less. SmolLM2 in bfloat16 takes a minute there."""
_STORY = (
    ("schooner", "brig", "cutter", "steamer", "tug", "lugger"),
    ("Bergen", "Lisbon", "Genoa", "Riga", "Cork", "Havana", "Boston"),
    ("barrels of oil", "crates of tea", "bales of wool", "sacks of salt", "casks of wine"),
)
_HERE = Path(__file__).resolve().parents[2]


def computes_light() -> bool:
    """Whether `light` changes something: the CPU has no AVX-512, and so neither quick bfloat16 nor an FP8 KV cache."""
    return refuses_fp8_kv(CPUINFO.read_text(errors="replace"))


def bytes_per_token(dtype: str) -> int:
    """Bytes of one token's KV in SmolLM2."""
    return _BF16_BYTES_PER_TOKEN // (2 if dtype == "fp8" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for a prompt."""

    ttft_seconds: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token."""
    gaps: tuple[float, ...]
    """Seconds between tokens."""
    leads: tuple[float, ...] = ()
    """By how much each token led the next likeliest, in nats; empty unless asked with `logprobs=2`."""

    @property
    def decided_tokens(self) -> tuple[int, ...]:
        """The tokens before the first one that led by so little that rounding could choose another."""
        count = next((step for step, lead in enumerate(self.leads) if lead < DECIDED_NATS), len(self.leads))
        return self.tokens[:count]


@dataclass(slots=True, kw_only=True)
class TieredEngine:
    """vLLM with small KV, so that two prompts drive out what was there."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path
    random: random.Random
    bytes_per_token: int
    """Of KV."""

    @property
    def link_file(self) -> Path:
        return self.folder / "link.json"

    def set(self, **link: Any) -> None:
        """Set the link and the split from the next load on."""
        Link(**link).write(self.link_file)

    def decision(self) -> dict[str, Any]:
        """The last decision of the engine, with what it knew."""
        lines = self.link_file.with_suffix(".log").read_text().splitlines()
        return dict(json.loads(lines[-1]))

    def prompt(self, tokens: int) -> list[int]:
        """A prompt that was not asked before: a few sentences again and again, so that the model is sure of the next.

        Where it is not, as with random tokens, rounding decides what it says.
        """
        words = [f"Report {self.random.randrange(10**9)}."]
        sentences = []
        for _ in range(4):
            ship, place, cargo = (self.random.choice(each) for each in _STORY)
            sentences.append(f"The {ship} sailed from {place} with {self.random.randrange(99)} {cargo}.")
        while len(words) < tokens // 8:
            words += sentences
        made = post_json(f"{self.url}/tokenize", {"model": SERVED_NAME, "prompt": " ".join(words)})["tokens"]
        assert len(made) >= tokens, "the sentences are shorter than expected"
        return [int(token) for token in made[:tokens]]

    def ask(self, prompt: Sequence[int], *, max_tokens: int = 16, seconds: float = 300.0, **more: Any) -> Answer:
        """One greedy streamed completion."""
        body = {
            "model": SERVED_NAME,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "logprobs": 0,
            **more,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        began, times, tokens, logprobs, leads = time.monotonic(), [], [], [], []
        with urllib.request.urlopen(request, timeout=deadline_seconds(seconds)) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                assert "choices" in event, event
                times.append(time.monotonic())
                for choice in event["choices"]:
                    tokens += choice.get("token_ids") or []
                    told = choice.get("logprobs") or {}
                    logprobs += told.get("token_logprobs") or []
                    for likeliest in filter(None, told.get("top_logprobs") or []):
                        first, second = heapq.nlargest(2, (*likeliest.values(), -math.inf))
                        leads.append(first - second)
        gaps = tuple(after - before for before, after in itertools.pairwise(times))
        return Answer(
            ttft_seconds=times[0] - began,
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            gaps=gaps,
            leads=tuple(leads),
        )

    def evict(self) -> None:
        """Drive everything older out of the device's cache."""
        for _ in range(2):
            self.ask(self.prompt(ROOM_TOKENS * 5 // 8), max_tokens=1)

    def forget(self) -> None:
        """Empty the device's cache at once; host memory keeps what it has."""
        request = urllib.request.Request(f"{self.url}/reset_prefix_cache", b"")
        with urllib.request.urlopen(request, timeout=deadline_seconds(60)):
            return

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric of vLLM over the samples with these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=deadline_seconds(60)) as response:
            lines = response.read().decode().splitlines()
        wanted = [f'{label}="{text}"' for label, text in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{name}{{", f"{name} ")) and all(each in line for each in wanted)
        )

    def tail(self) -> str:
        return "\n".join((self.folder / "engine.log").read_text(errors="replace").splitlines()[-40:])


@contextlib.contextmanager
def tiered_engine(
    folder: Path,
    *,
    dtype: str = "bf16",
    policy: str = "partialRecompute",
    host_bytes: int = 256 << 20,
    tier: bool = True,
    pool: Path | None = None,
    pool_bytes: int = 1 << 30,
    files: EngineFiles | None = None,
    light: bool = False,
) -> Iterator[TieredEngine]:
    """Start the engine, wait until it answers, and end it.

    `light`: on a CPU without AVX-512 serve a lighter model in float32, which then also is the type of the KV cache.
    """
    light = light and computes_light()
    model = _light_model(folder / "model") if light else prepared_model("smollm2")
    kv_bytes_per_token = 2 * _LIGHT["num_hidden_layers"] * 3 * 64 * 4 if light else bytes_per_token(dtype)
    kv_bytes = ROOM_TOKENS * kv_bytes_per_token * 9 // 8
    shared = KvPoolConfig(path=str(pool), size_bytes=pool_bytes) if pool is not None else None
    offload = OffloadConfig(host_bytes=host_bytes, policy=policy, pool=shared) if tier else None
    config = worker_config(
        max_model_len=ROOM_TOKENS,
        model=model,
        engine_args=("--dtype", "float32") if light else (),
        kv_cache=KvCacheConfig(
            dtype="auto" if light else dtype, block_size=BLOCK_TOKENS, memory_bytes=kv_bytes, offload=offload
        ),
    )
    ip = free_address()
    command = engine_command(
        config,
        PodIdentity(ip=ip, name="tiered", namespace="default"),
        model=local_model(model),
        environment=os.environ,
        vllm=vllm_version(),
        files=files,
    )
    engine = TieredEngine(
        url=f"http://{ip}:{PORT_ENGINE}",
        process=_start(_with_slow_link(command.argv, folder / "link.json") if tier else command.argv, command, folder),
        folder=folder,
        random=random.Random(1),
        bytes_per_token=kv_bytes_per_token,
    )
    try:
        _wait_up(engine)
        yield engine
    finally:
        if engine.process.poll() is None:
            engine.process.terminate()
        try:
            engine.process.wait(deadline_seconds(30))
        except subprocess.TimeoutExpired:
            engine.process.kill()
            engine.process.wait()


def _light_model(folder: Path) -> str:
    shutil.copytree(prepared_model(), folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    tiny_model.write(folder, vocabulary, **_LIGHT)
    return str(folder)


def _start(argv: Sequence[str], command: Any, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "engine.log").open("wb") as output:
        return subprocess.Popen(
            argv,
            env={**command.environment, "PYTHONPATH": str(_HERE), "VLLM_SERVER_DEV_MODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _with_slow_link(argv: Sequence[str], link_file: Path) -> list[str]:
    Link().write(link_file)
    changed = list(argv)
    at = changed.index("--kv-transfer-config") + 1
    transfer = json.loads(changed[at])
    tier = transfer["kv_connector_extra_config"]["connectors"][1]
    tier["kv_connector_module_path"] = "tests.worker_image.slow_link"
    tier["kv_connector_extra_config"] |= {
        "spec_name": "SlowLinkSpec",
        "spec_module_path": "tests.worker_image.slow_link",
        "link_file": str(link_file),
    }
    for pool in tier["kv_connector_extra_config"].get("secondary_tiers", ()):
        pool["module_path"] = "tests.worker_image.slow_link"
    changed[at] = json.dumps(transfer)
    return changed


def _wait_up(engine: TieredEngine) -> None:
    deadline = time.monotonic() + deadline_seconds(START_SECONDS)
    while True:
        assert engine.process.poll() is None, f"vLLM ended:\n{engine.tail()}"
        assert time.monotonic() < deadline, f"not up in time:\n{engine.tail()}"
        try:
            with urllib.request.urlopen(f"{engine.url}/health", timeout=deadline_seconds(5)):
                return
        except OSError:
            time.sleep(0.3)
