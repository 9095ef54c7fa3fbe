"""Log probabilities of the gateway tests' engines have the form that vLLM's own code gives them, event for event."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from tests import vllm_source
from tests.gateway.models import alternatives, complete, generate, logprobs_of, own_text

SERVING = "entrypoints/openai/completion/serving.py"
PROMPT = "Say: "
BEFORE = list(PROMPT.encode())
IDS = [token for output in generate({"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}) for token in output.ids]


def vllms(event: list[int], before: list[int], most: int, offset: int) -> dict[str, Any]:
    """What `_create_completion_logprobs` makes of `event`; its class, and the decoding of a token, are replaced."""
    definition = vllm_source.definition(SERVING, "_create_completion_logprobs")
    assert isinstance(definition, ast.FunctionDef)
    definition.returns = None
    for argument in definition.args.args:
        argument.annotation = None
    names: dict[str, Any] = {"CompletionLogProbs": lambda **fields: fields}
    tree = ast.parse("from __future__ import annotations")
    tree.body.append(definition)
    exec(compile(ast.fix_missing_locations(tree), SERVING, "exec"), names)
    steps = [
        {
            token: SimpleNamespace(logprob=value, decoded_token=own_text([*before, *event[:number]], token))
            for token, value in alternatives([*before, *event[:number]], most).items()
        }
        for number in range(len(event))
    ]
    engine = SimpleNamespace(
        return_tokens_as_token_ids=False,
        _get_decoded_token=lambda step, *_, **__: step.decoded_token,
    )
    made: dict[str, Any] = names["_create_completion_logprobs"](
        engine, event, steps, most, None, initial_text_offset=offset
    )
    return made


@pytest.mark.parametrize("most", [0, 1, 4])
@pytest.mark.parametrize("per_event", [1, 3, len(IDS)])
def test_the_engines_of_the_gateways_tests_tell_log_probabilities_as_vllm_does(most: int, per_event: int) -> None:
    offset = 0
    for start in range(0, len(IDS), per_event):
        event, before = IDS[start : start + per_event], BEFORE + IDS[:start]
        made = vllms(event, before, most, offset)
        assert logprobs_of(before, event, most, offset=offset) == made
        # As `completion_stream_generator` goes on.
        offset = made["text_offset"][-1] + len(made["tokens"][-1])
    assert offset == len(complete(bytes(IDS)))
    assert offset < len(IDS), "no character is more than one token"


def test_the_stream_counts_offsets_by_the_tokens_texts() -> None:
    code = vllm_source.code(SERVING, "completion_stream_generator")
    assert "next_text_offsets[i] = logprobs.text_offset[-1] + len(logprobs.tokens[-1])" in code
    assert "initial_text_offset=next_text_offsets[i]" in code
