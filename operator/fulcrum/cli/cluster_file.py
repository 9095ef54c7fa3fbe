"""A file with one InferenceCluster, read without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fulcrum.api.types import InferenceClusterSpec
    from fulcrum.capacity.model_facts import ModelFacts


def spec_of(path: Path) -> InferenceClusterSpec:
    """The one InferenceCluster of a file, checked as the API server would. Raises ValueError."""
    from importlib.util import find_spec

    from fulcrum.api.crd import root_schema
    from fulcrum.api.names import KIND
    from fulcrum.api.objects import load_inference_cluster
    from fulcrum.api.schema.structural import StructuralSchema

    found = [each for each in _documents(path) if each.get("kind") == KIND]
    if len(found) != 1:
        raise ValueError(f"{path} must hold one {KIND}, and holds {len(found)}")
    rules = find_spec("cel") is not None
    if not rules:
        click.echo(
            "Not checked: the rules across fields of the file; `pip install 'fulcrum-operator[local]'`.", err=True
        )
    schema = StructuralSchema(root_schema(), rules=rules)
    problems = [f"unknown field {name}" for name in schema.unknown_fields(found[0])]
    problems += [str(each) for each in schema.validate(schema.default(found[0]))]
    if problems:
        raise ValueError(f"{path}: " + "; ".join(problems))
    return load_inference_cluster(found[0]).spec


def model_of(path: Path, spec: InferenceClusterSpec, *, config: Path | None = None) -> ModelFacts:
    """What is known of the model of a file's InferenceCluster: as the operator knows it, by the ConfigMap that
    `spec.model.config` names where the file has it, or by the file `config` instead. Raises ValueError, OSError.
    """
    from fulcrum.capacity.model_facts import facts_of_name, parse_facts

    name, named = spec.model.name, spec.model.config
    known = facts_of_name(name)
    if known.complete:
        return known
    text: Any = None
    if config is not None:
        text = config.read_bytes()
    elif named is not None:
        held = [each for each in _documents(path) if each.get("kind") == "ConfigMap"]
        found = [each for each in held if (each.get("metadata") or {}).get("name") == named.config_map]
        text = (found[0].get("data") or {}).get(named.key) if found else None
    return known.or_else(parse_facts(text).named(name)) if isinstance(text, str | bytes) else known


def _documents(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        return [each for each in yaml.safe_load_all(path.read_bytes()) if isinstance(each, dict)]
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
