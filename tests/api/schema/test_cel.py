"""Expressions mean what they mean in Kubernetes, its function libraries included."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.schema import cel
from fulcrum.api.schema.cel_optional import without_optional_syntax
from fulcrum.api.schema.cel_values import to_cel


@pytest.mark.parametrize(
    "expression",
    [
        "1 < 1.5 && 2.0 >= 2",
        "[0.5, 0.4].sum() <= 1.0 && [3, 1].min() == 1 && [3, 1].max() == 3",
        "[1, 2].isSorted() && !['b', 'a'].isSorted() && ['a', 'b'].indexOf('b') == 1 && 'abc'.indexOf('c') == 2",
        "['a', 'b'].lastIndexOf('c') == -1",
        "'A b'.lowerAscii() == 'a b' && 'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b'",
        "'hello'.substring(1, 3) == 'el' && ' x '.trim() == 'x' && 'aXa'.replace('X', '-') == 'a-a'",
        "'abc123'.find('[0-9]+') == '123' && 'a1b2'.findAll('[0-9]') == ['1', '2'] && 'abc'.matches('^a.*c$')",
        "quantity('1Gi').isGreaterThan(quantity('1Mi')) && quantity('1024Ki') == quantity('1Mi')",
        "quantity('500m').compareTo(quantity('0.5')) == 0 && quantity('1k').asInteger() == 1000 && isQuantity('1E3')",
        "!isQuantity('abc') && quantity('1').add(quantity('2')).asInteger() == 3 && quantity('-1').sign() == -1",
        "duration('500ms') < duration('2s') && duration('1h').getMinutes() == 60",
        "timestamp('2026-01-01T00:00:00Z') < timestamp('2027-01-01T00:00:00Z')",
        "url('https://example.com:80/a?b=c').getHostname() == 'example.com' && !isURL('a b') && isURL('/path')",
        "ip('127.0.0.1').family() == 4 && isIP('::1') && !isIP('1.2.3') && ip('127.0.0.1').isLoopback()",
        "!format.dns1123Label().validate('abc').hasValue() && format.dns1123Label().validate('A').hasValue()",
        "'%s-%d'.format(['a', 1]) == 'a-1' && math.greatest(1, 2) == 2 && sets.contains([1, 2], [1])",
        "{'a': {'b': 1}}.?a.b.orValue(0) == 1 && {'a': 1}.?z.b.orValue(0) == 0 && [1][?3].orValue(7) == 7",
        "type(1) == int && string(1) == '1' && int('3') == 3 && 'a' in ['a'] && 'k' in {'k': 1}",
        "[{'n': 'a'}, {'n': 'b'}].all(x, [{'n': 'a'}, {'n': 'b'}].exists_one(y, y.n == x.n))",
        "{'present': true}.?absent.hasValue() || true",
    ],
)
def test_it_holds(expression: str) -> None:
    assert cel.compiled(expression).evaluate({}) is True


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("self.x", "no such key: x"),
        ("1 / 0", "division by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("1 + 'a'", "no such overload"),
        ("[1][3]", "index out of bounds: 3"),
        ("nothing(1)", "undeclared reference to 'nothing'"),
        ("[].min()", "min called on empty list"),
        ("quantity('x')", "quantities must match the regular expression"),
        ("ip('x').family() == 4", "IP Address 'x' parse error"),
    ],
)
def test_an_error_has_the_text_of_cel_go(expression: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(cel.CelEvaluationError) as raised:
        cel.compiled(expression).evaluate({"self": {}})
    assert str(raised.value).startswith(text)


def test_an_expression_that_does_not_parse_is_refused() -> None:
    with pytest.raises(cel.CelSyntaxError):
        cel.CelProgram("self. >")


@pytest.mark.parametrize(
    ("source", "rewritten"),
    [
        ("self.a['?'] + '.?b'", "self.a['?'] + '.?b'"),
        ("a.?b.c.size()", 'a.optSelect("b").optSelect("c").size()'),
        ("a[?b.?c].d", 'a.optSelect(b.optSelect("c")).optSelect("d")'),
        ("x ? y : z", "x ? y : z"),
    ],
)
def test_optional_selects_become_calls(source: str, rewritten: str) -> None:
    assert without_optional_syntax(source) == rewritten


@pytest.mark.parametrize(
    ("value", "schema", "expression"),
    [
        (
            {"namespace": 1, "a-b": 2},
            {"properties": {"namespace": {}, "a-b": {}}},
            "v.__namespace__ + v.a__dash__b == 3",
        ),
        ({"a-b": 2}, {"additionalProperties": {}}, "v['a-b'] == 2"),
        (1, {"type": "number"}, "v + 0.5 == 1.5"),
        ("90s", {"type": "string", "format": "duration"}, "v == duration('1m30s')"),
        ("2026-01-01T00:00:00Z", {"type": "string", "format": "date-time"}, "v < timestamp('2026-01-02T00:00:00Z')"),
    ],
)
def test_values_are_typed_by_their_schema(value: Any, schema: dict[str, Any], expression: str) -> None:
    assert cel.compiled(expression).evaluate({"v": to_cel(value, schema)}) is True
