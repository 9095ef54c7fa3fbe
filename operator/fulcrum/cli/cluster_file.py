"""A file with one InferenceCluster and the ConfigMaps that it names, read without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fulcrum.api.types import InferenceClusterSpec
    from fulcrum.capacity.model_facts import ModelFacts


class ClusterFileError(ValueError):
    """A file that cannot be used; says which field is wrong, and what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """What a file says: the spec is checked, ConfigMaps are checked once they are used."""

    path: Path
    spec: InferenceClusterSpec
    config_maps: Mapping[str, Any]
    """The `data` of each, by name."""

    def model(self, config: Path | None = None) -> ModelFacts:
        """What is known of the model: as the operator knows it, by the ConfigMap that `spec.model.config` names where
        the file has it, or by the file `config` instead. Raises ValueError, OSError.
        """
        from fulcrum.capacity.model_facts import facts_of_name, parse_facts

        name = self.spec.model.name
        known = facts_of_name(name)
        if known.complete:
            return known
        text = self._config_text() if config is None else config.read_bytes()
        return known if text is None else known.or_else(parse_facts(text).named(name))

    def _config_text(self) -> str | None:
        named = self.spec.model.config
        held = None if named is None else self.config_maps.get(named.config_map)
        if named is None or held is None:
            return None
        where = f"{self.path}: ConfigMap {named.config_map}: data"
        if not isinstance(held, dict):
            raise ClusterFileError(f"{where} must be a mapping: write the config.json below it as {named.key}: |")
        if named.key not in held:
            return None
        text = held[named.key]
        if not isinstance(text, str):
            raise ClusterFileError(
                f"{where}.{named.key} must be text: write {named.key}: | and the config.json below it"
            )
        return text


def read_cluster_file(path: Path) -> ClusterFile:
    """Read the file once; its InferenceCluster is checked as the API server would. Raises ValueError, OSError."""
    from fulcrum.api.names import KIND

    documents = _documents(path)
    found = [each for each in documents if each.get("kind") == KIND]
    if len(found) != 1:
        raise ClusterFileError(f"{path} must hold one {KIND}, and holds {len(found)}")
    config_maps: dict[str, Any] = {}
    for document in documents:
        if document.get("kind") == "ConfigMap":
            config_maps.setdefault(_name(path, document), document.get("data"))
    return ClusterFile(path=path, spec=_spec(path, found[0]), config_maps=config_maps)


def _spec(path: Path, document: dict[str, Any]) -> InferenceClusterSpec:
    from importlib.util import find_spec

    from fulcrum.api.crd import root_schema
    from fulcrum.api.objects import load_inference_cluster
    from fulcrum.api.schema.structural import StructuralSchema

    _name(path, document)
    rules = find_spec("cel") is not None
    if not rules:
        click.echo(
            "Not checked: the rules across fields of the file; `pip install 'fulcrum-operator[local]'`.", err=True
        )
    schema = StructuralSchema(root_schema(), rules=rules)
    problems = [f"unknown field {name}" for name in schema.unknown_fields(document)]
    problems += [str(each) for each in schema.validate(schema.default(document))]
    if problems:
        raise ClusterFileError(f"{path}: " + "; ".join(problems))
    return load_inference_cluster(document).spec


def _name(path: Path, document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        raise ClusterFileError(
            f"{path}: {document['kind']}: metadata.name must be text: write metadata: {{name: NAME}}"
        )
    return name


def _documents(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        documents = [each for each in yaml.safe_load_all(path.read_bytes()) if each is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ClusterFileError(f"{path} is not YAML: {error}") from error
    for document in documents:
        if not isinstance(document, dict):
            shape = type(document).__name__
            raise ClusterFileError(
                f"{path}: a document is a {shape}: write each object as a mapping with apiVersion and kind"
            )
    try:
        return [_as_json(document) for document in documents]
    except (TypeError, ValueError, RecursionError) as error:
        raise ClusterFileError(f"{path} cannot be written as JSON: {error}") from error


def _as_json(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as it would reach the API server: a date is text."""
    import json

    converted: dict[str, Any] = json.loads(json.dumps(document, default=str))
    return converted
