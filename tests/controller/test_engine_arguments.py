"""Every worker of every sample is started with arguments that the installed vLLM's own parser takes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.machine import deadline_seconds

from fulcrum.api.names import ENV_GROUP_INDEX, ENV_GROUP_LEADER, ENV_WORKER_CONFIG, Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.worker import WorkerConfig
from fulcrum.controller.children import Manifest, Owner, worker_pod
from fulcrum.controller.children.worker_group import worker_group
from fulcrum_worker.config import PodIdentity
from fulcrum_worker.engine_command import engine_command

_ROOT = Path(__file__).parents[2]
_CLUSTERS: dict[str, Any] = {
    f"{path.stem}/{document['metadata']['name']}": document
    for folder in ("manifests/samples", "examples")
    for path in sorted((_ROOT / folder).glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if document["kind"] == "InferenceCluster"
}
_PARSE = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
said = []
for arguments in json.load(sys.stdin):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            validate_parsed_serve_args(parser.parse_args(arguments))
        said.append("")
    except (SystemExit, Exception) as error:
        said.append(errors.getvalue()[-500:] + repr(error))
print(json.dumps(said))
"""
"""Reads lists of arguments, and writes what vLLM says of each: nothing where it takes them."""
_PLANTED = ["--model", "m", "--all2all-backend", "pplx_and_more"]


def pods_of(document: dict[str, Any], pool_number: int) -> list[Manifest]:
    """The Pods of one worker: its own, or the leader and a follower of its group."""
    cluster = load_inference_cluster(document)
    pool = cluster.spec.pools[pool_number]
    owner = Owner(name=cluster.metadata.name, namespace="n", uid="u")
    pod = worker_pod(owner, cluster.spec, pool, ordinal=0, role=Role(pool.roles[0].value), image="i")
    if pool.nodes == 1:
        return [pod]
    template = worker_group(pod, pool)["spec"]["leaderWorkerTemplate"]
    return [template["leaderTemplate"], template["workerTemplate"]]


def commands(document: dict[str, Any]) -> list[list[str]]:
    """What each kind of Pod of the cluster starts vLLM with."""
    found = []
    for number in range(len(document["spec"]["pools"])):
        for index, pod in enumerate(pods_of(document, number)):
            container = next(each for each in pod["spec"]["containers"] if each["name"] == "worker")
            told = {each["name"]: each["value"] for each in container["env"] if "value" in each}
            config = msgspec.json.decode(told[ENV_WORKER_CONFIG], type=WorkerConfig)
            place = {ENV_GROUP_INDEX: str(index), ENV_GROUP_LEADER: "leader"} if config.nodes > 1 else {}
            identity = PodIdentity(ip="10.0.0.1", name="w", namespace="n")
            made = engine_command(config, identity, model=None, environment={**told, **place})
            # The interpreter and the module that it runs.
            found.append(list(made.argv[3:]))
    return found


@cache
def answers() -> dict[str, list[str]]:
    """What vLLM says of the arguments, by cluster, and of planted wrong ones; a parser takes it seconds to make."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here")
    asked = {name: commands(document) for name, document in _CLUSTERS.items()} | {"planted": [_PLANTED]}
    done = subprocess.run(
        [sys.executable, "-c", _PARSE],
        input=json.dumps([each for of_cluster in asked.values() for each in of_cluster]),
        env=os.environ | {"VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=deadline_seconds(280),
        check=True,
    )
    said = iter(json.loads(done.stdout.splitlines()[-1]))
    return {name: [next(said) for _ in of_cluster] for name, of_cluster in asked.items()}


@pytest.mark.parametrize("name", _CLUSTERS)
def test_vllm_takes_the_arguments_of_every_worker(name: str) -> None:
    assert [said for said in answers()[name] if said] == []


def test_an_argument_that_vllm_does_not_take_is_found() -> None:
    (said,) = answers()["planted"]
    assert "invalid choice: 'pplx_and_more'" in said
