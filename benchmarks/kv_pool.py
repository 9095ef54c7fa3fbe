"""Two real engines with one KV pool: the time to the first token of a prompt that one of them has computed.

    python benchmarks/kv_pool.py [--dtypes bf16 fp8] [--tokens 2000] [--prompts 3]

For each KV dtype: cold; from the same engine's host memory; from the pool in the other engine. The tokens of answers
are compared: with the cold ones (bf16), and with those of a prefix on the device (FP8, whose cold answer may differ).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worker_image.agents import wait_until
from tests.worker_image.tiered_engine import Answer, TieredEngine, tiered_engine

ANSWER_TOKENS = 64


def measure(dtype: str, tokens: int, prompts: int) -> None:
    """Print one line for each way."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / name for name in ("a", "b", "pool")]
        for each in folders:
            each.mkdir()
        with (
            tiered_engine(folders[0], dtype=dtype, pool=folders[2]) as first,
            tiered_engine(folders[1], dtype=dtype, pool=folders[2]) as second,
        ):
            for engine in (first, second):
                for warm in (100, 400, 1200, 2000):
                    engine.ask(engine.prompt(warm), max_tokens=2, cache_salt=engine.folder.name)  # not from the pool
            rows = [_one(first, second, tokens) for _ in range(prompts)]
    cold = median(row["cold"].ttft_seconds for row in rows)
    expected = "cold" if dtype == "bf16" else "device"
    for way in ("cold", "device", "host", "pool"):
        seconds = median(row[way].ttft_seconds for row in rows)
        same = sum(row[way].tokens == row[expected].tokens for row in rows)
        print(
            f"{dtype} {tokens} tokens, {way:6}: {seconds * 1e3:6.0f} ms, {seconds / cold:.2f} of cold; "
            f"tokens as {expected}: {same} of {prompts}",
            flush=True,
        )


def _one(first: TieredEngine, second: TieredEngine, tokens: int) -> dict[str, Answer]:
    prompt = first.prompt(tokens)
    answers = {"cold": first.ask(prompt, max_tokens=ANSWER_TOKENS)}
    answers["device"] = first.ask(prompt, max_tokens=ANSWER_TOKENS)
    wait_until(lambda: _is_stored(first), seconds=60, what="the pool has it")
    first.forget()
    answers["host"] = first.ask(prompt, max_tokens=ANSWER_TOKENS)
    answers["pool"] = second.ask(prompt, max_tokens=ANSWER_TOKENS)
    return answers


def _is_stored(engine: TieredEngine) -> bool:
    stored = engine.metric("vllm:kv_offload_store_bytes_total")
    return 0 < stored <= engine.metric("vllm:kv_offload_tiering_write_bytes_total")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp8"], choices=["bf16", "fp8"])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=3)
    asked = parser.parse_args()
    for dtype in asked.dtypes:
        measure(dtype, asked.tokens, asked.prompts)


if __name__ == "__main__":
    main()
