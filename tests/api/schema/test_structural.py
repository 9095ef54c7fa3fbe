"""A structural schema accepts, refuses, defaults and prunes as an API server does, with the same words."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.schema.field_error import number
from fulcrum.api.schema.structural import StructuralSchema

POOL = {
    "type": "object",
    "required": ["name", "workers"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]+$"},
        "workers": {
            "type": "object",
            "properties": {
                "min": {"type": "integer", "default": 0, "minimum": 0},
                "max": {"type": "integer", "exclusiveMaximum": True, "maximum": 9},
            },
            "x-kubernetes-validations": [
                {"rule": "!has(self.max) || self.min <= self.max", "message": "min must not exceed max"}
            ],
        },
        "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["model"],
    "properties": {
        "model": {"type": "string"},
        "mode": {"type": "string", "enum": ["Auto", "Manual", "Observe"], "default": "Manual"},
        "attainment": {"type": "number", "minimum": 0, "maximum": 1, "exclusiveMinimum": True, "default": 0.95},
        "port": {"x-kubernetes-int-or-string": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        "note": {"type": "string", "nullable": True},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 3},
        "start": {"type": "string", "format": "date-time"},
        "pools": {
            "type": "array",
            "minItems": 1,
            "items": POOL,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "ratio": {
            "type": "object",
            "properties": {"prefill": {"type": "integer"}, "decode": {"type": "integer"}},
            "anyOf": [{"required": ["prefill"]}, {"required": ["decode"]}],
        },
        "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    },
    "x-kubernetes-validations": [
        {"rule": "self.model == oldSelf.model", "message": "the model cannot be changed"},
        {"rule": "!has(self.ratio) || self.mode == 'Manual'", "fieldPath": ".ratio", "reason": "FieldValueForbidden",
         "messageExpression": "'only with Manual, not ' + self.mode"},
    ],
}  # fmt: skip
SCHEMA = StructuralSchema({"type": "object", "required": ["spec"], "properties": {"spec": SPEC}})

ONE_OF = '"spec.one" must validate one and only one schema (oneOf).'


def an_object(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "K", "metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"model": "m"}, []),
        ({}, ["spec.model: Required value"]),
        ({"model": None}, ["spec.model: Required value"]),
        ({"model": 3}, ['spec.model: Invalid value: "integer": spec.model in body must be of type string: "integer"']),
        (
            {"model": "m", "mode": "auto"},
            ['spec.mode: Unsupported value: "auto": supported values: "Auto", "Manual", "Observe"'],
        ),
        (
            {"model": "m", "attainment": 1.5},
            ["spec.attainment: Invalid value: 1.5: spec.attainment in body should be less than or equal to 1"],
        ),
        (
            {"model": "m", "attainment": 0},
            ["spec.attainment: Invalid value: 0: spec.attainment in body should be greater than 0"],
        ),
        ({"model": "m", "port": 1}, []),
        ({"model": "m", "port": "http"}, []),
        (
            {"model": "m", "port": True},
            ['spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"'],
        ),
        ({"model": "m", "note": None}, []),
        (
            {"model": "m", "labels": {"a": "1", "b": "2", "c": "3"}},
            ["spec.labels: Too many: 3: must have at most 2 items"],
        ),
        (
            {"model": "m", "labels": {"a": 1}},
            ['spec.labels.a: Invalid value: "integer": spec.labels.a in body must be of type string: "integer"'],
        ),
        ({"model": "m", "tags": ["a", "b", "a"]}, ['spec.tags[2]: Duplicate value: "a"']),
        ({"model": "m", "tags": list("abcd")}, ["spec.tags: Too many: 4: must have at most 3 items"]),
        (
            {"model": "m", "start": "yesterday"},
            ['spec.start: Invalid value: "yesterday": spec.start in body must be of type date-time: "yesterday"'],
        ),
        ({"model": "m", "start": "2026-11-21T03:00:00Z"}, []),
        (
            {"model": "m", "pools": []},
            ["spec.pools: Invalid value: 0: spec.pools in body should have at least 1 items"],
        ),
        (
            {"model": "m", "pools": [{"name": "a", "workers": {"min": 3, "max": 2}}]},
            ["spec.pools[0].workers: Invalid value: min must not exceed max"],
        ),
        (
            {"model": "m", "pools": [{"name": "a", "workers": {}}, {"name": "a", "workers": {}}]},
            ['spec.pools[1]: Duplicate value: {"name":"a"}'],
        ),
        (
            {"model": "m", "pools": [{"name": "A", "workers": {"max": 9}}]},
            [
                "spec.pools[0].name: Invalid value: \"A\": spec.pools[0].name in body should match '^[a-z]+$'",
                "spec.pools[0].workers.max: Invalid value: 9: spec.pools[0].workers.max in body should be less than 9",
            ],
        ),
        (
            {"model": "m", "pools": [{"name": "abcdef", "workers": {}}]},
            ["spec.pools[0].name: Too long: may not be more than 5 bytes"],
        ),
        (
            {"model": "m", "ratio": {"prefill": 1}, "mode": "Auto"},
            ["spec.ratio: Forbidden: only with Manual, not Auto"],
        ),
        (
            {"model": "m", "one": {"a": "1", "b": "2"}},
            [f'spec.one: Invalid value: "": {ONE_OF} Found 2 valid alternatives'],
        ),
        (
            {"model": "m", "one": {}},
            [
                f'spec.one: Invalid value: "": {ONE_OF} Found none valid',
                "spec.one.a: Required value",
            ],
        ),
    ],
)
def test_validation_says_what_an_api_server_says(spec: dict[str, Any], expected: list[str]) -> None:
    obj = SCHEMA.default(SCHEMA.prune(an_object(**spec)))
    found = [str(error) for error in SCHEMA.validate(obj)]
    unchecked = [line for line in found if line.startswith("<nil>")]
    assert [line for line in found if line not in unchecked] == expected
    blocking = any(word in line for line in expected for word in ("Required", "of type s", "Too ", "of type int"))
    assert bool(unchecked) == blocking


def test_transition_rules_run_on_updates_only() -> None:
    old = SCHEMA.default(an_object(model="a"))
    new = SCHEMA.default(an_object(model="b"))
    assert SCHEMA.validate(new) == []
    assert [str(error) for error in SCHEMA.validate(new, old)] == ["spec: Invalid value: the model cannot be changed"]


def test_values_that_an_update_leaves_alone_are_not_complained_about() -> None:
    old = SCHEMA.default(an_object(model="a", attainment=7, tags=["x"]))
    new = SCHEMA.default(an_object(model="a", attainment=7, tags=["y"]))
    assert SCHEMA.validate(new)
    assert SCHEMA.validate(new, old) == []


def test_defaults_reach_into_lists_and_replace_null() -> None:
    obj = an_object(model="m", mode=None, note=None, pools=[{"name": "a", "workers": {"max": 1}}])
    spec = SCHEMA.default(obj)["spec"]
    assert spec["mode"] == "Manual"
    assert spec["attainment"] == 0.95
    assert spec["note"] is None
    assert spec["pools"][0]["workers"] == {"max": 1, "min": 0}
    assert obj["spec"]["mode"] is None


def test_unknown_fields_are_named_and_pruned() -> None:
    pool = {"name": "a", "workers": {"best": 1}, "template": {"anything": {"goes": 1}}, "colour": "red"}
    obj = {**an_object(model="m", pools=[pool], labels={"any": "x"}), "extra": 1}
    assert sorted(SCHEMA.unknown_fields(obj)) == ["extra", "spec.pools[0].colour", "spec.pools[0].workers.best"]
    pruned = SCHEMA.prune(obj)
    assert SCHEMA.unknown_fields(pruned) == []
    assert pruned["metadata"] == obj["metadata"]
    assert pruned["spec"]["pools"][0]["template"] == {"anything": {"goes": 1}}


def test_an_embedded_resource_has_its_type_and_metadata() -> None:
    schema = StructuralSchema(
        {"type": "object", "properties": {"raw": {"type": "object", "x-kubernetes-embedded-resource": True,
                                                  "properties": {"spec": {"type": "object"}}}}}
    )  # fmt: skip
    obj = {"raw": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "more": 1}}
    assert schema.prune(obj) == {"raw": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}}
    assert [str(error) for error in schema.validate({"raw": {"kind": "Pod"}})] == ["raw.apiVersion: Required value"]


@pytest.mark.parametrize(
    ("rule", "value", "message"),
    [
        ({"rule": "self.a > 1"}, {"a": 0}, "spec: Invalid value: failed rule: self.a > 1"),
        (
            {"rule": "self.b > 1", "message": "b counts"},
            {"a": 0},
            'spec: Invalid value: "object": no such key: b evaluating rule: b counts',
        ),
        (
            {"rule": "self.a / 0 == 1"},
            {"a": 1},
            'spec: Invalid value: "object": division by zero evaluating rule: self.a / 0 == 1',
        ),
        (
            {"rule": "self.a + 'x' == ''"},
            {"a": 1},
            "spec: Invalid value: \"object\": 'no such overload': call arguments did not match a supported operator, "
            "function or macro signature for rule: self.a + 'x' == ''",
        ),
        (
            {"rule": "false", "messageExpression": "self.nope", "message": "plain"},
            {},
            "spec: Invalid value: plain",
        ),
        (
            {"rule": "false", "reason": "FieldValueRequired", "fieldPath": ".b", "message": "b too"},
            {},
            "spec.b: Required value: b too",
        ),
    ],
)
def test_a_broken_rule_says_why(rule: dict[str, Any], value: dict[str, Any], message: str) -> None:
    spec = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "x-kubernetes-validations": [rule],
    }
    schema = StructuralSchema({"type": "object", "properties": {"spec": spec}})
    assert [str(error) for error in schema.validate({"spec": value})] == [message]


def test_optional_old_self_is_absent_on_create() -> None:
    rule = {"rule": "!oldSelf.hasValue() || oldSelf.value().a <= self.a", "optionalOldSelf": True, "message": "grow"}
    schema = StructuralSchema(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [rule]}
    )
    assert schema.validate({"a": 1}) == []
    assert schema.validate({"a": 2}, {"a": 1}) == []
    assert [str(error) for error in schema.validate({"a": 1}, {"a": 2})] == ["<nil>: Invalid value: grow"]


def test_a_rule_that_does_not_compile_is_found() -> None:
    schema = StructuralSchema({"type": "object", "x-kubernetes-validations": [{"rule": "self. >"}]})
    assert [problem.path for problem in schema.rule_problems()] == ["openAPIV3Schema.x-kubernetes-validations[0].rule"]


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (1.0, "1"), (1.5, "1.5"), (1e6, "1e+06"), (0.00001, "1e-05"), (100000.0, "100000")]
)
def test_numbers_print_as_in_go(value: float, text: str) -> None:
    assert number(value) == text
