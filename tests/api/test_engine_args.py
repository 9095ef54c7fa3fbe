"""The deny-list of engine arguments, against vLLM's own parser and against the API server's rules."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine import deadline_seconds

from fulcrum.api import engine_args
from fulcrum.api.crd import root_schema
from fulcrum.api.engine_args import check_engine_args
from fulcrum.api.schema.structural import StructuralSchema

_REFUSED = [name for refusal in engine_args._REFUSALS for name in refusal.names]
_NOT_IN_THIS_VLLM = {"fd", "watchdog-config"}
"""One that was taken back, and one that 0.33 brings (`vllm_facts`)."""

_LIST_OPTIONS = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
print(json.dumps([option for action in parser._actions for option in action.option_strings]))
"""


@cache
def _options_of_vllm() -> list[str]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here")
    done = subprocess.run(
        [sys.executable, "-c", _LIST_OPTIONS],
        env=os.environ | {"VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=deadline_seconds(280),
        check=True,
    )
    options: list[str] = json.loads(done.stdout.splitlines()[-1])
    return options


@cache
def _items_schema() -> StructuralSchema:
    args = root_schema()["properties"]["spec"]["properties"]["engine"]["properties"]["args"]
    return StructuralSchema({"type": "object", "properties": {"args": args}})


def _messages_of_api_server(item: str) -> set[str]:
    return {error.message for error in _items_schema().validate({"args": [item]})}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("--host=0.0.0.0", "Pod's address"),
        ("--port", "Pod's address"),
        ("--uds=/tmp/x", "Pod's address"),
        ("--model=other", "spec.model.name"),
        ("--served_model_name", "spec.model.servedName"),
        ("--served-model", "spec.model.servedName"),
        ("--max-model-len=1", "spec.model.maxModelLen"),
        ("--api-key", "only the gateway"),
        ("--tensor-parallel-size=2", "parallelism.tensor"),
        ("--tensor_par=2", "parallelism.tensor"),
        ("-tp", "long form"),
        ("-tp=2", "long form"),
        ("-O3", "long form"),
        ("--", "long form"),
        ("---host", "long form"),
        ("--Host", "long form"),
        ("--host 0.0.0.0", "long form"),
        ("--kv-transfer-config.kv_role=kv_both", "spec.engine.transfer"),
        ("--kv_transfer.kv_connector_module_path=x", "..._module_path"),
        ("--kv-transfer-config.kv_role", "long form"),
        ("--hf-overrides.x", "long form"),
        ("--kv-cache-dtype=fp8", "kvCache.dtype"),
        ("--block-size=32", "kvCache.blockSize"),
        ("--trust-remote-code", "runs code"),
        ("--trust_remote", "runs code"),
        ("--middleware=os.system", "loads code"),
        ("--tool-parser-plugin=/x.py", "loads code"),
        ("--reasoning-parser-plug=/x.py", "loads code"),
        ("--structured-outputs-config.reasoning_parser_plugin=/x.py", "..._parser_plugin"),
        ('{"reasoning_parser_plugin": "/x.py"}', "..._parser_plugin"),
        (r'{"reasoning\u005fparser_plugin": "/x.py"}', "write the characters"),
        ("--allowed-local-media-path=/", "worker's files"),
        ("--ssl-keyfile=/k", "TLS"),
        ("--config=/c.yaml", "unchecked"),
        ("--scheduler-cls=x.Y", "loads code"),
        ("--chat-template=/t.jinja", "chat_template.jinja"),
    ],
)
def test_refused_by_agent_and_api_server_alike(item: str, words: str) -> None:
    (problem,) = check_engine_args([item])
    assert words in problem.message
    assert any(problem.message in message for message in _messages_of_api_server(item))


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--seed", "-1"],
        ["--seed=5"],
        ["--max-num-seqs", "64", "--no-enable-prefix-caching"],
        ["--reasoning-parser=qwen3"],
        ["--reasoning_parser", "qwen3"],
        ["--chat-template-content-format=openai"],
        ["--kv-cache-dtype-skip-layers=1"],
        ["--config-format", "hf"],
        ['--speculative-config={"model": "x", "num_speculative_tokens": 3}'],
        ["--compilation-config.level=3"],
        ["--hf-overrides", '{"architectures": ["LlamaForCausalLM"]}'],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
    ],
)
def test_passed_on(args: list[str]) -> None:
    assert check_engine_args(args) == []
    assert _items_schema().validate({"args": args}) == []


def test_says_where_and_what() -> None:
    (problem,) = check_engine_args(["--seed", "1", "--host=0.0.0.0"])
    assert (problem.index, problem.argument) == (2, "--host")


@given(st.sampled_from(_REFUSED), st.data())
def test_no_spelling_of_a_refused_argument_slips_through(name: str, data: st.DataObject) -> None:
    """Abbreviations, underscores, values and JSON fields: whatever vLLM's parser could take for it."""
    written = name[: data.draw(st.integers(min_value=1, max_value=len(name)))]
    if written in engine_args._ALLOWED_THOUGH_ABBREVIATION:
        return
    written = "".join(data.draw(st.sampled_from("-_")) if letter == "-" else letter for letter in written)
    item = f"--{written}{data.draw(st.sampled_from(['', '=', '=x', '.a=1', '.a.b=1']))}"
    assert check_engine_args([item]) != []
    assert _messages_of_api_server(item)


@given(
    st.one_of(
        st.text(min_size=1, max_size=30),
        st.from_regex(r"\A--[a-z_-]{1,12}([.=][a-z]{0,3})?\Z"),
        st.builds(lambda name, cut: f"--{name[:cut]}", st.sampled_from(_REFUSED), st.integers(1, 20)),
    ).filter(lambda item: "\n" not in item)
)
def test_agent_and_api_server_agree(item: str) -> None:
    problems = check_engine_args([item])
    messages = _messages_of_api_server(item)
    assert bool(problems) == bool(messages)
    assert all(any(problem.message in message for message in messages) for problem in problems)


def test_every_refused_argument_is_one_of_vllm() -> None:
    known = {option.removeprefix("--") for option in _options_of_vllm()}
    assert set(_REFUSED) - known == _NOT_IN_THIS_VLLM


def test_no_other_argument_of_vllm_is_refused_by_accident() -> None:
    refused = {f"--{name}" for name in _REFUSED}
    long_options = [option for option in _options_of_vllm() if option.startswith("--")]
    hit = {option for option in long_options if check_engine_args([option]) and option not in refused}
    assert hit == set()


def test_rules_stay_inside_the_cost_budget_of_an_api_server() -> None:
    """The estimate of cel-go for the costliest kind of rule here, rounded up.

    Limits: 10 million per rule, 100 million per CRD (k8s.io/apiextensions-apiserver). Strings count four bytes per
    character, 0.1 per byte, and a regular expression 0.25 per character.
    """
    args = root_schema()["properties"]["spec"]["properties"]["engine"]["properties"]["args"]
    traversal = math.ceil((4 * engine_args.MAX_LENGTH + 1) * 0.1)
    total = 0
    for rule in args["items"]["x-kubernetes-validations"]:
        expression = rule["rule"]
        patterns = re.findall(r"(?:matches|find)\('([^']*)'\)", expression)
        once = sum(traversal * math.ceil(len(pattern) * 0.25) for pattern in patterns) + 6 * traversal
        tries = expression.count("'--") + 1
        cost = (once + 10) * tries * args["maxItems"]
        assert cost < 10_000_000, expression
        total += cost
    assert total < 50_000_000
