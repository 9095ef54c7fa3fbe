"""Every code block in the docs is one that works: YAML that would be accepted, commands that exist with their flags."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.controller.test_published_schemas import problems
from tests.docs.blocks import ROOT, Block, blocks, commands, here_documents, shell_texts
from tests.machine import deadline_seconds

from fulcrum.api.crd import root_schema
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.cli.app import main
from fulcrum_local.apiserver.model_types import model_of

BIN = Path(sys.executable).parent
LANGUAGES = {"bash", "console", "yaml", "json", "python", "text"}
PLAIN = {
    ".",
    "cat",
    "cd",
    "curl",
    "echo",
    "export",
    "grep",
    "head",
    "jq",
    "base64",
    "kill",
    "git",
    "promtool",
    "python",
}
"""Programs that are not ours, with arguments that are not checked."""
POOL = {"name": "p", "accelerator": "cpu", "workers": {"max": 2}}
OTHER_PROGRAMS_YAML = {"scrape_configs", "nodes", "stringData"}
"""First keys of configurations that are not of Kubernetes objects or of ours; they only have to be YAML."""


def named(block: Block) -> str:
    return block.name


@cache
def schema() -> StructuralSchema:
    return StructuralSchema(root_schema())


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_are_many_and_each_has_a_language() -> None:
    assert len(blocks()) > 35
    assert {block.name: block.language for block in blocks() if block.language not in LANGUAGES} == {}


def wrong_with(document: dict[str, Any]) -> list[str]:
    """What an API server would say of an object, or of a part of an InferenceCluster's spec."""
    if "kind" not in document:
        return _wrong_with_part(document)
    if document["kind"] == "InferenceCluster":
        defaulted = schema().default(document)
        return [*schema().unknown_fields(document), *map(str, schema().validate(defaulted))]
    group, _, version = document["apiVersion"].rpartition("/")
    model = model_of(group, version, document["kind"])
    return [] if model is None else problems(document, model, document["kind"])


def _wrong_with_part(part: dict[str, Any]) -> list[str]:
    if OTHER_PROGRAMS_YAML & set(part):
        return []
    part = part.get("spec", part)
    spec_fields = set(root_schema()["properties"]["spec"]["properties"])
    spec: dict[str, Any] = {"model": {"name": "m"}, "pools": [POOL]}
    spec = {**spec, **part} if set(part) <= spec_fields else {**spec, "pools": [part]}
    spec["pools"] = [{**POOL, **pool} for pool in spec["pools"]]
    return wrong_with(
        {"apiVersion": "fulcrum.dev/v1alpha1", "kind": "InferenceCluster", "metadata": {"name": "c"}, "spec": spec}
    )


def yaml_texts() -> list[Any]:
    found = [pytest.param(block.text, id=block.name) for block in blocks("yaml")]
    for block in blocks("bash", "console"):
        texts = here_documents(shell_texts(block))
        found += [pytest.param(text, id=block.name) for text in texts if "kind:" in text]
    return found


@pytest.mark.parametrize("text", yaml_texts())
def test_yaml_is_what_an_api_server_accepts(text: str) -> None:
    documents = [document for document in yaml.safe_load_all(text) if document is not None]
    assert documents
    for document in documents:
        assert wrong_with(document) == []


@pytest.mark.parametrize("block", blocks("json", "python"), ids=named)
def test_json_and_python_can_be_read(block: Block) -> None:
    if block.language == "json":
        json.loads(block.text)
        return
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def of_fulcrum(words: list[str]) -> None:
    """Raise what `fulcrum` would say of names and counts of its arguments; their values are examples."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"fulcrum has no command {words[0]}"
        command, words = found, words[1:]
    command.make_parser(click.Context(command)).parse_args(list(words))


def of_cobra(words: list[str]) -> None:
    """Ask kubectl or helm for the help of exactly this call, which parses its command and flags first."""
    before = words[: words.index("--")] if "--" in words else words
    done = subprocess.run(
        [BIN / before[0], *before[1:], "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=deadline_seconds(60),
    )
    assert done.returncode == 0, done.stderr
    assert "unknown command" not in done.stderr, done.stderr


def of_make(words: list[str]) -> None:
    targets = {word for word in words if "=" not in word}
    assert targets <= make_targets()


def files_of(words: list[str]) -> list[Path]:
    """Files of the repository that a command names."""
    return [
        ROOT / word
        for word in words
        if re.match(r"(charts|manifests|examples|benchmarks|crds|requirements)(/|$)", word)
    ]


@pytest.mark.parametrize("block", blocks("bash", "console"), ids=named)
def test_commands_exist_and_know_their_flags(block: Block) -> None:
    found = commands(shell_texts(block))
    assert found
    for program, *arguments in found:
        assert [path for path in files_of(arguments) if not path.exists()] == []
        if program == "fulcrum":
            of_fulcrum(arguments)
        elif program in ("kubectl", "helm"):
            if (BIN / program).exists():
                of_cobra([program, *arguments])
        elif program == "make":
            of_make(arguments)
        else:
            assert program in PLAIN, program


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["top", "--always"], "No such option"),
        (["tops"], "no command tops"),
    ],
)
def test_a_wrong_call_of_fulcrum_is_found(command: list[str], message: str) -> None:
    with pytest.raises((click.UsageError, AssertionError), match=message):
        of_fulcrum(command)


def test_a_wrong_flag_of_kubectl_and_a_wrong_field_are_found() -> None:
    if (BIN / "kubectl").exists():
        with pytest.raises(AssertionError, match="unknown flag"):
            of_cobra(["kubectl", "get", "ic", "--bogus"])
    assert wrong_with({"slo": {"ttfb": "1s"}})
    assert wrong_with({"gpu": {"resource": 3}})
