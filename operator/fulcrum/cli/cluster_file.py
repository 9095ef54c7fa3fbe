"""A file with one InferenceCluster, read without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fulcrum.api.types import InferenceClusterSpec


def spec_of(path: Path) -> InferenceClusterSpec:
    """The one InferenceCluster of a file, checked as the API server would. Raises ValueError."""
    from importlib.util import find_spec

    import yaml

    from fulcrum.api.crd import root_schema
    from fulcrum.api.names import KIND
    from fulcrum.api.objects import load_inference_cluster
    from fulcrum.local.objects.schema import StructuralSchema

    try:
        documents = [each for each in yaml.safe_load_all(path.read_bytes()) if isinstance(each, dict)]
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    found = [each for each in documents if each.get("kind") == KIND]
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
