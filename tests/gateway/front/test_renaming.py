"""The name of a model in a request's body is replaced, and nothing else of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.gateway.errors import RequestError
from fulcrum.gateway.front.renaming import with_model

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.just('"model"') | st.just("\\"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", "\\", '"']), inner),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(["messages", "prompt", "model\\", "Model", "x"]), VALUES)


@given(fields=BODIES, model=st.none() | st.text(), at=st.integers(0, 9), indent=st.none() | st.just(1))
def test_only_the_model_of_the_object_itself_changes(
    fields: dict[str, Any], model: str | None, at: int, indent: int | None
) -> None:
    items = list(fields.items())
    asked = dict([*items[:at], ("model", model), *items[at:]])
    for ensure_ascii in (False, True):
        body = json.dumps(asked, indent=indent, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass")
        try:
            made = with_model(body, b'"renamed"')
        except RequestError:
            assert b"\\u" in body.lower() or b"\xed" in body, "half of a surrogate pair"
            continue
        assert json.loads(made) == {**asked, "model": "renamed"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"mod\\u0065l":"chat","x":{"model":"chat"}}',
        b'{"x":{"model":"chat"},"m\\u006fdel":"chat"}',
        b'{"x":[{"model":1},"\\"model\\":"],"model":"chat"}',
        b'{"x":"model"}',
        b"{}",
    ],
    ids=["escaped key first", "escaped key last", "one inside", "only a value", "empty"],
)
def test_a_key_that_is_not_clear_is_read(body: bytes) -> None:
    asked = json.loads(body)
    assert json.loads(with_model(body, b'"renamed"')) == {**asked, "model": "renamed"}


def test_all_other_bytes_stay_as_they_are() -> None:
    body = bytearray(b'{ "temperature" : 1.0e0,\t"model" :\n "ch\\"at" , "seed": 1E2}\r\n')
    assert with_model(body, b'"new"') == b'{ "temperature" : 1.0e0,\t"model" :\n "new" , "seed": 1E2}\r\n'
