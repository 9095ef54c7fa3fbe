"""What an engine has done since its start, from totals of vLLM's own histograms and counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fulcrum.api.worker import WorkCounters

# These are observed together when a request ends, so that they always speak of the same requests.
_PREFILL: Final = "vllm:request_prefill_time_seconds"
_PROMPT: Final = "vllm:request_prompt_tokens"
_COMPUTED: Final = "vllm:request_prefill_kv_computed_tokens"
_BETWEEN_TOKENS: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
"""The newer name first. One observation for each request and step: with speculative decoding, of several tokens."""
_FIRSTS: Final = "vllm:time_to_first_token_seconds_count"
GENERATED: Final = "vllm:generation_tokens_total"
_TOTALS: Final = tuple(
    f"{name}_{part}" for name in (_PREFILL, _PROMPT, _COMPUTED, *_BETWEEN_TOKENS) for part in ("sum", "count")
)
DECODE_TOKENS: Final = (GENERATED, _FIRSTS)
"""What `decode_tokens` reads."""
WORK: Final = (*_TOTALS, *DECODE_TOKENS)
"""What `work_counters` reads."""


def work_counters(totals: Mapping[str, float], *, computed_tokens: int | None) -> WorkCounters | None:
    """All of it or nothing: a part alone would make rates of unlike things."""
    between = next((name for name in _BETWEEN_TOKENS if f"{name}_count" in totals), _BETWEEN_TOKENS[0])
    decoded = decode_tokens(totals)
    try:
        prompt_tokens = totals[f"{_PROMPT}_sum"]
        return WorkCounters(
            prompts=round(totals[f"{_PREFILL}_count"]),
            prompt_tokens=round(prompt_tokens),
            cached_tokens=round(max(prompt_tokens - totals[f"{_COMPUTED}_sum"], 0.0)),
            prefill_seconds=totals[f"{_PREFILL}_sum"],
            decode_tokens=round(totals[f"{between}_count"] if decoded is None else decoded),
            decode_seconds=totals[f"{between}_sum"],
            computed_tokens=computed_tokens,
        )
    except KeyError:
        return None


def decode_tokens(totals: Mapping[str, float]) -> float | None:
    """Generated tokens after the first of their request, by vLLM's counters of those names; None where it has none."""
    generated, first = (totals.get(name) for name in DECODE_TOKENS)
    return None if generated is None or first is None else max(generated - first, 0.0)
