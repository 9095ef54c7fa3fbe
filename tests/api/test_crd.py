"""The generated CustomResourceDefinition: current, structural, bounded, described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from fulcrum.api.crd import (
    DEFINITIONS,
    INFERENCE_GATEWAY,
    INFERENCE_SCALE,
    Definition,
    custom_resource_definition,
    root_schema,
)
from fulcrum.api.reasons import Reason
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.cli.crd import command

_ROOT = Path(__file__).parents[2]
_SCALE = "scale:"
_FRONT = "front:"


def _walk(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _walk(f"{path}.{name}", field)
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from _walk(f"{path}[]", schema[keyword])


_FIELDS = {
    **dict(_walk("", root_schema())),
    **dict(_walk(_SCALE, root_schema(INFERENCE_SCALE))),
    **dict(_walk(_FRONT, root_schema(INFERENCE_GATEWAY))),
}
"""Fields of InferenceCluster, and those of the other kinds behind a word of their own."""
_SPEC_FIELDS = {path: field for path, field in _FIELDS.items() if path.rpartition(":")[2].startswith(".spec")}


@pytest.mark.parametrize("of", DEFINITIONS.values(), ids=DEFINITIONS)
@pytest.mark.parametrize("what", ["crd", "docs"])
def test_generated_files_are_current(of: Definition, what: str) -> None:
    file = _ROOT / ("crds/fulcrum.dev_" + of.plural + ".yaml" if what == "crd" else f"docs/reference/{of.singular}.md")
    flags = ["--docs"] if what == "docs" else []
    result = CliRunner().invoke(command, ["--kind", of.kind, *flags, "--check", str(file)])
    assert result.exit_code == 0, result.output


def test_a_file_that_is_out_of_date_is_said_to_be(tmp_path: Path) -> None:
    for file in (tmp_path / "absent.yaml", tmp_path / "old.yaml"):
        if file.stem == "old":
            file.write_text("old")
        result = CliRunner().invoke(command, ["--check", str(file)])
        assert result.exit_code == 1
        assert f"fulcrum crd -o {file}" in result.output


def test_printed_and_written_alike(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "crd.yaml"
    assert CliRunner().invoke(command, ["-o", str(file)]).exit_code == 0
    assert CliRunner().invoke(command, []).output == file.read_text()
    assert yaml.safe_load(file.read_text()) == custom_resource_definition()


def test_names_and_columns() -> None:
    spec = custom_resource_definition()["spec"]
    (version,) = spec["versions"]
    columns = version["additionalPrinterColumns"]
    assert spec["names"]["shortNames"] == ["ic"]
    assert version["subresources"] == {"status": {}}
    assert [column["name"].upper() for column in columns if not column.get("priority")] == [
        *("MODEL", "READY", "RATIO", "ATTAINMENT", "TTFT", "TPOT", "REJECTED", "AGE"),
    ]
    assert [column["name"].upper() for column in columns if column.get("priority")] == ["FORECAST", "LAST-DECISION"]


def test_a_scale_is_read_and_written_where_its_fields_are() -> None:
    (version,) = custom_resource_definition(INFERENCE_SCALE)["spec"]["versions"]
    for path, kind in zip(version["subresources"]["scale"].values(), ("integer", "integer", "string"), strict=True):
        assert _FIELDS[_SCALE + path]["type"] == kind
    # An HPA that finds no number does nothing, and says nothing of use.
    assert _FIELDS[_SCALE + ".spec.replicas"]["default"] == 1
    assert "replicas" not in _FIELDS[_SCALE + ".spec"]["required"]


@pytest.mark.parametrize("column", custom_resource_definition()["spec"]["versions"][0]["additionalPrinterColumns"])
def test_columns_show_fields_that_exist(column: dict[str, Any]) -> None:
    path = column["jsonPath"]
    if path == ".metadata.creationTimestamp":
        return
    assert _FIELDS[path]["type"] == column["type"]


@pytest.mark.parametrize("of", DEFINITIONS.values(), ids=DEFINITIONS)
def test_rules_compile(of: Definition) -> None:
    assert StructuralSchema(root_schema(of)).rule_problems() == []


def test_every_rule_has_a_message_for_people() -> None:
    rules = [rule for field in _FIELDS.values() for rule in field.get("x-kubernetes-validations", ())]
    assert len(rules) > 40
    for rule in rules:
        assert len(rule["message"]) > 10
        assert "\n" not in rule["message"] + rule["rule"]


@pytest.mark.parametrize("path", [path for path in _FIELDS if not path.endswith("[]")])
def test_kubectl_explain_tells_everything(path: str) -> None:
    if not path.endswith(".metadata"):
        assert _FIELDS[path].get("description")


@pytest.mark.parametrize("path", _SPEC_FIELDS)
def test_bounded_so_that_the_cost_of_rules_can_be_estimated(path: str) -> None:
    field = _FIELDS[path]
    if field.get("x-kubernetes-int-or-string"):
        assert {"minimum", "maximum", "maxLength", "pattern"} <= set(field)
        return
    assert field["type"] in {"object", "array", "string", "integer", "number", "boolean"}
    if field["type"] == "string":
        assert "maxLength" in field or "enum" in field
    if field["type"] == "array":
        assert "maxItems" in field
    if field["type"] in {"integer", "number"}:
        assert "minimum" in field
        assert "maximum" in field
    if "additionalProperties" in field:
        assert "maxProperties" in field


@pytest.mark.parametrize("path", _FIELDS)
def test_structural(path: str) -> None:
    """What apiextensions.k8s.io/v1 asks of a schema beyond being JSON Schema."""
    field = _FIELDS[path]
    assert set(field.get("required", ())) <= set(field.get("properties", ()))
    for key in field.get("x-kubernetes-list-map-keys", ()):
        assert key in field["items"]["required"]
    if "default" in field:
        parent, _, name = path.rpartition(".")
        assert name not in _FIELDS[parent].get("required", ())


@pytest.mark.parametrize("path", [path for path, field in _FIELDS.items() if "default" in field])
def test_a_default_is_valid_as_it_is_written(path: str) -> None:
    """The API server checks defaults, rules included, before it fills in the defaults inside them."""
    holder = StructuralSchema({"type": "object", "properties": {"x": _FIELDS[path]}})
    document = {"x": _FIELDS[path]["default"]}
    assert [str(error) for error in holder.validate(document)] == []
    assert holder.default(document) == document


def test_a_new_reason_needs_no_new_crd() -> None:
    """An operator that is newer than the CRD must be able to write its status."""
    reason = _FIELDS[".status.conditions[].reason"]
    assert "enum" not in reason
    schema = StructuralSchema({"type": "object", "properties": {"reason": reason}})
    assert all(schema.validate({"reason": each.value}) == [] for each in Reason)
