"""What Fulcrum sets for models on GPUs is what vLLM's own CUDA platform says, wherever that can be asked."""

from __future__ import annotations

import models
import pytest


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_backends_and_blocks_are_those_that_vllm_chooses() -> None:
    """12 models on 8 accelerators: any difference fails, and hardly a cell stays unchecked."""
    table = models.cells()
    assert len(table) == 12 * 8
    answers = models.ask_vllm(table)
    asked = [(cell, answer) for cell, answer in zip(table, answers, strict=True) if not isinstance(answer, str)]
    assert [found for cell, answer in asked if (found := models.difference(cell, answer))] == []
    assert len(table) - len(asked) <= models.MOST_UNCHECKED * len(table)


def test_what_is_refused_says_why_and_what_starts_has_room() -> None:
    table = models.cells(["deepseek-ai/DeepSeek-V3.2", "Qwen/Qwen3-235B-A22B-FP8"])
    for cell in table:
        assert cell.starts == (cell.kv_tokens >= models.LEAST_KV_TOKENS) == (cell.refused is None)
        assert cell.refused is None or cell.model in cell.refused
        assert set(cell.pairs) <= {other.accelerator for other in table if other.starts and other.model == cell.model}
    no_backend = {cell.accelerator for cell in table if "no attention backend" in (cell.refused or "")}
    assert no_backend == {"A10-24GB", "A6000-48GB", "A100-SXM-80GB", "L40-48GB", "L40S-48GB"}
    # Eight prefill ranks of a model with four KV heads: no peer with fewer ranks.
    (l40s,) = (cell for cell in table if cell.accelerator == "L40S-48GB" and "Qwen3" in cell.model)
    assert (l40s.tensor, "H100-SXM-80GB" in l40s.pairs, "L40-48GB" in l40s.pairs) == (8, False, True)
