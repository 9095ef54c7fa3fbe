"""Files with an InferenceCluster: whatever shape a document has, what is wrong is named, and nothing else is raised."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.test_simulate_command import CLUSTER

from fulcrum.cli.cluster_file import read_cluster_file

OWN = yaml.safe_load(
    CLUSTER.replace("name: meta-llama/Llama-3.1-70B-Instruct", "name: own, config: {configMap: own, key: c}")
)
HELD = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"c": "{}"}}
SHAPES: tuple[Any, ...] = ([1], None, 5, "text", {})
DEPTH = 3
NAME = "metadata.name must be text: write metadata: {name: NAME}"
Place = tuple[Any, ...]


def places(document: Any, before: Place = ()) -> Iterator[Place]:
    yield before
    if len(before) < DEPTH and isinstance(document, (dict, list)):
        for key, inner in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(inner, (*before, key))


def with_shape(document: Any, place: Place, shape: Any) -> Any:
    if not place:
        return shape
    inner = changed = copy.deepcopy(document)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = shape
    return changed


def messages(path: Path, kind: str) -> dict[tuple[Place, str], str]:
    """What is said of each shape in each place of one of the two documents, where anything is."""
    found = {}
    for place in places(OWN if kind == "InferenceCluster" else HELD):
        for shape in SHAPES:
            documents = [with_shape(each, place, shape) if each["kind"] == kind else each for each in (OWN, HELD)]
            path.write_text(yaml.safe_dump_all(documents))
            try:
                read_cluster_file(path).model()
            except ValueError as error:
                found[place, repr(shape)] = str(error).removeprefix(f"{path}: ")
    return found


def test_wrong_shapes_of_the_cluster_are_named(tmp_path: Path) -> None:
    said = messages(tmp_path / "c.yaml", "InferenceCluster")
    assert said[(), "[1]"].startswith("a document is a list: write each object as a mapping with apiVersion and kind")
    assert said[("kind",), "[1]"].endswith("must hold one InferenceCluster, and holds 0")
    for shape in ("[1]", "None", "5", "'text'", "{}"):
        assert said[("metadata",), shape] == f"InferenceCluster: {NAME}"
        assert "spec" in said[("spec",), shape]
        assert "spec.pools" in said[("spec", "pools"), shape]


def test_wrong_shapes_of_a_config_map_are_named(tmp_path: Path) -> None:
    said = messages(tmp_path / "c.yaml", "ConfigMap")
    for shape in ("[1]", "None", "5"):
        assert said[("metadata",), shape] == said[("metadata", "name"), shape] == f"ConfigMap: {NAME}"
        assert said[("data", "c"), shape].startswith("ConfigMap own: data.c must be text: write c: |")
    for shape in ("[1]", "5", "'text'"):
        assert said[("data",), shape].startswith("ConfigMap own: data must be a mapping: write")
    assert "hidden_size: is missing" in said[("apiVersion",), "None"], "the one that is named is read"


@pytest.mark.parametrize("text", ["", "---\n", "null\n---\n", "# nothing\n"])
def test_empty_documents_count_for_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{text}---\n{CLUSTER}\n---\n")
    assert read_cluster_file(path).spec.pools[0].name == "h100"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: [", b"a: &a [*b]", b"a: !!python/none x", b"a: 2001-99-99"])
def test_what_is_no_yaml_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not YAML"):
        read_cluster_file(path)
