"""What `engine.startTimeout` comes to where it is absent."""

from __future__ import annotations

import msgspec
import pytest

from fulcrum.api.durations import seconds
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.api.worker import LONGEST_START_FACTOR
from fulcrum.capacity.model_facts import MOST_PARAMETERS, facts_of_config
from fulcrum.capacity.start_timeout import start_timeout
from fulcrum.rollout import worker_config

LLAMA_405B = "meta-llama/Llama-3.1-405B-Instruct"
QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


def spec_of(model: str, start: str | None = None) -> InferenceClusterSpec:
    document = {
        "model": {"name": model},
        "pools": [
            {"name": "p", "accelerator": "H100-SXM-80GB", "parallelism": {"tensor": 8}, "workers": {"min": 1, "max": 2}}
        ],
        "engine": {} if start is None else {"startTimeout": start},
    }
    return msgspec.convert(document, InferenceClusterSpec)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "30m"),
        ("meta-llama/Llama-3.3-70B-Instruct", "30m"),  # 141 GB in 47 minutes, of two hours
        (f"{LLAMA_405B}-FP8", "42m"),  # 410 GB
        (LLAMA_405B, "76m"),  # 812 GB
        ("own/Llama-3.1-405B-Instruct-AWQ", "30m"),  # 222 GB
        ("deepseek-ai/DeepSeek-V3", "64m"),  # 673 GB without the layer for drafts
        ("own/model", "30m"),  # of unknown size
        ("/models/llama", "30m"),
    ],
)
def test_it_follows_from_the_bytes_of_the_weights(model: str, found: str) -> None:
    spec = spec_of(model)
    assert start_timeout(spec, None) == found
    (pool,) = spec.pools
    config = worker_config(cluster="c", spec=spec, pool=pool, role=pool.roles[0])
    assert config.start_timeout_seconds == seconds(found)
    assert LONGEST_START_FACTOR * seconds(found) == config.longest_start_seconds


@pytest.mark.parametrize("said", ["1s", "30m", "24h"])
def test_what_the_spec_says_stands(said: str) -> None:
    assert start_timeout(spec_of(LLAMA_405B, said), None) == said


def test_a_config_json_gives_the_size_and_the_result_stays_in_bounds() -> None:
    spec = spec_of("own/model")
    assert start_timeout(spec, facts_of_config(QWEN)) == "30m"
    large = {
        **QWEN,
        "hidden_size": 2**20,
        "num_attention_heads": 2**13,
        "intermediate_size": 2**20,
        "vocab_size": 2**20,
    }
    facts = facts_of_config(large)
    assert facts.dimensions is not None
    assert MOST_PARAMETERS / 10 < facts.dimensions.parameters < MOST_PARAMETERS
    assert seconds(start_timeout(spec, facts)) == seconds("24h")
