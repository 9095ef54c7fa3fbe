"""What a config.json says of a model that the tables do not know; whoever wrote it, it costs nobody anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capacity import test_model

from fulcrum.api.attention import AttentionKind
from fulcrum.capacity.config_fields import MOST_BYTES, ModelConfigError, relevant
from fulcrum.capacity.hf_config import parse_model_config
from fulcrum.capacity.model_facts import ModelFacts, facts_of_name, parse_facts
from fulcrum.capacity.model_kinds import kind_of_config

LLAMA = test_model.LLAMA_8B
HYBRID: dict[str, Any] = LLAMA | {
    "model_type": "qwen3_next", "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "full_attention_interval": 4,
}  # fmt: skip
MAMBA: dict[str, Any] = LLAMA | {
    "model_type": "granitemoehybrid", "mamba_n_heads": 128, "mamba_d_state": 128, "mamba_expand": 2,
    "layer_types": ["mamba"] * 30 + ["attention"] * 2,
}  # fmt: skip
QUANTIZED: dict[str, Any] = LLAMA | {
    "quantization_config": {
        "quant_method": "compressed-tensors", "ignore": ["lm_head"] * 2000, "kv_cache_scheme": {"dynamic": False},
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "actorder": None}}},
    }
}  # fmt: skip
SCALED: dict[str, Any] = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
DOCUMENTS = {
    name: value for name, value in vars(test_model).items() if isinstance(value, dict) and "model_type" in value
} | {"HYBRID": HYBRID, "MAMBA": MAMBA, "QUANTIZED": QUANTIZED, "SCALED": SCALED, "TEXT": {"text_config": LLAMA}}
READ = {name: json.loads(json.dumps(document)) for name, document in DOCUMENTS.items()}


def parsed(document: dict[str, Any]) -> ModelFacts:
    return parse_facts(json.dumps(document))


@pytest.mark.parametrize("name", sorted(READ))
def test_what_is_kept_of_a_config_json_reads_as_the_whole(name: str) -> None:
    document = READ[name]
    kept = relevant(document | {"architectures": ["X"], "rope_scaling": {"factor": 8.0}})
    assert len(json.dumps(kept)) < 4096
    assert parse_model_config(kept, name="m") == parse_model_config(document, name="m")
    assert kind_of_config(kept) == kind_of_config(document)


def test_the_documents_are_of_all_kinds() -> None:
    """Else the test above would not notice a field that is read and not kept."""
    assert len(READ) > 12
    facts = [parsed(document) for document in READ.values()]
    dimensions = [each.dimensions for each in facts if each.dimensions is not None]
    assert any(each.mla for each in dimensions)
    assert any(each.moe for each in dimensions)
    assert any(each.state for each in dimensions)
    assert any(each.windowed_layers for each in dimensions)
    assert any(each.kind is not None and each.kind.scaled for each in facts)


def test_the_table_goes_first_and_each_gap_is_filled_by_itself() -> None:
    config = parsed(LLAMA | {"model_type": "gpt_oss"}).named("own/model")
    mistral, own = facts_of_name("mistralai/Mistral-7B-Instruct-v0.3"), facts_of_name("own/model")
    assert own == ModelFacts()
    assert mistral.kind is None, "the test needs a model of which one table knows more than the other"
    found = mistral.or_else(config)
    assert (found.dimensions, found.attention) == (mistral.dimensions, AttentionKind.SINKS)
    assert own.or_else(config) == config
    assert config.dimensions is not None
    assert (config.dimensions.name, config.kv_heads, config.complete) == ("own/model", 8, True)


def test_layers_whose_state_is_not_counted_leave_the_size_unknown() -> None:
    found = parsed(LLAMA | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-"})
    assert found.kind is not None
    assert found.kind.hybrid
    assert found.dimensions is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"text_config": ' * 4000 + "1" + "}" * 4000, "(the document)"),
        ('{"text_config": ' * 500 + "1" + "}" * 500, "hidden_size: is missing"),
        (json.dumps(LLAMA | {"x": "y" * MOST_BYTES}), "65536 are the most: leave out lists"),
        (json.dumps(LLAMA | {"hidden_size": 10**30}), "hidden_size: is larger than 2147483648"),
        (json.dumps(LLAMA | {"hidden_size": -1}), "hidden_size: is -1, must be a positive integer"),
        (json.dumps(LLAMA | {"hidden_size": True}), "hidden_size: is True, must be a positive integer"),
        (json.dumps(LLAMA | {"hidden_size": "y" * 10_000}), "hidden_size: is 'yyy"),
        (json.dumps(LLAMA | {"hidden_size": {"a": 1}}), "hidden_size: is {"),
        (json.dumps(LLAMA | {"vocab_size": 2**31, "hidden_size": 2**31}), "describes more than 1e+14 parameters"),
        (json.dumps(LLAMA | {"sliding_window": 9, "layer_types": ["sliding_attention"] * 99}), "names more layers"),
        (json.dumps(LLAMA | {"quantization_config": {"quant_method": "own"}}), "quant_method: is 'own'"),
    ],
)
def test_a_config_json_that_cannot_be_used_names_the_field(text: str, said: str) -> None:
    with pytest.raises(ModelConfigError) as raised:
        parse_facts(text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 1024


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["weights", "num_bits", "type", "layer_types", "bits"]), inner, max_size=4)
    ),
    max_leaves=6,
)
_FIELDS = sorted({name for document in READ.values() for name in document} | {"config_groups", "index_topk"})


@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=6))
def test_whatever_stands_in_it_there_are_facts_or_a_reason(change: dict[str, Any]) -> None:
    try:
        found = parsed(LLAMA | change)
    except ModelConfigError:
        return
    assert found.kind is not None
    if found.dimensions is not None:
        assert found.dimensions.full_layers >= 0
        assert 0 < found.dimensions.weight_bytes() < 1e15
