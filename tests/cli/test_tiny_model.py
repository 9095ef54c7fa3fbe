"""`fulcrum model tiny`: the same bytes each time, and answers from which a test can tell right from wrong."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fulcrum.cli.model import command

WEIGHTS_SHA256 = "ed042ff13591920da6e0de63634ebc72670a44aa4274e594f77b9eaf441b8805"
"""Of model.safetensors, on every machine."""
STEPS = 24
WORDS = ("river", "stone", "light", "paper", "window", "garden", "music", "winter", "train", "silver", "bread")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "fulcrum" / "models"


def prepare(models: Path) -> dict[str, str]:
    """Prepare the model anew, and return the SHA-256 of each file."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers and torch
        patch.setenv("XDG_CACHE_HOME", str(models.parents[1]))
        patch.setenv("HF_HUB_OFFLINE", "1")
        done = CliRunner().invoke(command, ["tiny", "--force"])
    assert done.stdout == f"{models / 'tiny'}\n", done.output
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (models / "tiny").iterdir()}


@pytest.fixture(scope="module")
def first(models: Path) -> dict[str, str]:
    return prepare(models)


def test_it_is_the_same_each_time(models: Path, first: dict[str, str]) -> None:
    assert prepare(models) == first
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(first)
    assert first["model.safetensors"] == WEIGHTS_SHA256


def test_it_is_small_and_workers_of_other_users_can_read_it(models: Path, first: dict[str, str]) -> None:
    files = [models / "tiny" / name for name in first]
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in files)
    assert sum(path.stat().st_size for path in files) < 12_000_000
    left = {path.name for path in models.iterdir()}
    assert left == {"tiny", ".tiny.lock"}


class Engine:
    """The model in float32, greedily."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        self._torch = torch
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def answer(self, prompt: str) -> tuple[list[int], list[float]]:
        """The tokens that follow, and by how many nats each led."""
        ids, past, tokens, leads = self.tokenizer(prompt, return_tensors="pt").input_ids, None, [], []
        with self._torch.no_grad():
            for _ in range(STEPS):
                out = self._model(ids, past_key_values=past, use_cache=True)
                past = out.past_key_values
                top = self._torch.log_softmax(out.logits[0, -1], -1).topk(2)
                tokens.append(int(top.indices[0]))
                leads.append(float(top.values[0] - top.values[1]))
                ids = top.indices[:1][None]
        return tokens, leads


@pytest.fixture(scope="module")
def engine(models: Path, first: dict[str, str]) -> Engine:
    return Engine(models / "tiny")


def test_answers_are_varied_words_that_depend_on_the_prompt(engine: Engine) -> None:
    prompts = (
        "What is the capital of France?",
        "What is the capital of Japan?",
        "Count: 1, 2, 3,",
        "a b c d e f " * 20,
    )
    answers, leads = zip(*map(engine.answer, prompts), strict=True)
    assert len({tuple(answer) for answer in answers}) == len(prompts)
    for answer in answers:
        assert len(set(answer)) >= STEPS * 3 // 4, "no word again and again"
        assert all(word.isalpha() for word in engine.tokenizer.decode(answer).split())
    every = sorted(lead for each in leads for lead in each)
    assert every[0] > 0.001, "no ties"
    assert every[len(every) // 2] > 1.0, "most steps are decided by more than rounding"


def test_a_word_at_the_beginning_of_a_long_prompt_changes_the_answer(engine: Engine) -> None:
    """KV that is lost or mixed up shows."""
    words = list(WORDS * 40)
    changed = [*words[:10], "horse", *words[11:]]
    assert engine.answer(" ".join(words))[0] != engine.answer(" ".join(changed))[0]
