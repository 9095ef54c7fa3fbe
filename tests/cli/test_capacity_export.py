"""`fulcrum capacity --export`: what running workers have measured, as a profile that reads the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.controller.cluster import BIN, Cluster, ReportingAgent
from tests.machine import deadline_seconds

from fulcrum.api.names import Role
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.worker import DecodePoint, LoadReport, SpeedCoefficients
from fulcrum.capacity.profile import parse_profile, profile_speed
from fulcrum.capacity.speed import SpeedSource, WorkerSpeed
from fulcrum.cli.app import main
from fulcrum.cli.export import Exported, ExportError, export_profile
from fulcrum.cli.top.source import NoClusterError
from fulcrum.controller.kube import POD
from fulcrum.rollout import worker_revision

integration = pytest.mark.integration
SPEED = SpeedCoefficients(
    prefill_a=0.004,
    prefill_b=2e-5,
    prefill_c=1e-9,
    decode_a=0.007,
    decode_b=1e-5,
    decode_c=3e-8,
    decode_curve=(
        DecodePoint(batch=8, seconds=0.0071, seconds_per_token=3e-8),
        DecodePoint(batch=64, seconds=0.0083, seconds_per_token=2.5e-8),
    ),
)
LOAD = LoadReport(
    role=Role.MIXED,
    role_epoch=0,
    ready=True,
    draining=False,
    kv_capacity_tokens=123_456,
    speed=SPEED,
    max_batch=64,
    max_batched_tokens=2048,
)


async def add_worker(cluster: Cluster, ordinal: int, *, ready: bool = True, spec_hash: str | None = None) -> str:
    """Make a worker as the operator does, as far as the command looks; returns its address."""
    spec = load_inference_cluster(await cluster.get()).spec
    name = f"c-p-{ordinal}"
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": {
                "fulcrum.dev/cluster": "c",
                "fulcrum.dev/pool": "p",
                "app.kubernetes.io/component": "worker",
            },
            "annotations": {
                "fulcrum.dev/spec-hash": spec_hash or worker_revision(cluster="c", spec=spec, pool=spec.pools[0])
            },
        },
        "spec": {"containers": [{"name": "worker", "image": "none"}]},
    }
    assert await cluster.kube.create(POD, document) is not None
    await cluster.set_pod_status(name, ready=ready)
    address: str = (await cluster.pods())[name]["status"]["podIP"]
    return address


async def export(cluster: Cluster, *, name: str | None = "c", pool: str | None = None) -> Exported:
    return await export_profile(cluster.api, name=name, namespace=cluster.namespace, pool=pool)


@integration
async def test_what_is_exported_is_read_back_as_the_same_speed(cluster: Cluster, tmp_path: Path) -> None:
    """Of three workers the middle one counts. Every reader takes the file: the operator's, and each command's."""
    await cluster.apply()
    slow = msgspec.structs.replace(LOAD, speed=msgspec.structs.replace(SPEED, prefill_b=1.0, decode_curve=()))
    async with AsyncExitStack() as stack:
        for ordinal, load in enumerate((LOAD, slow, LOAD)):
            await stack.enter_async_context(ReportingAgent(load).serve(await add_worker(cluster, ordinal)))
        found = await export(cluster)
        command = [BIN / "fulcrum", "capacity", "--export", "c", "-n", cluster.namespace, "--pool", "p"]
        # With the operator's rights: in its Pod the command works wherever the operator does.
        environment = {**os.environ, "KUBECONFIG": str(cluster.server.operator_kubeconfig)}
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=deadline_seconds(120),
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{found.document}\n"
    assert f"{cluster.namespace}/c, pool p: measured by 3 workers" in done.stderr
    expected = WorkerSpeed(
        coefficients=SPEED,
        kv_capacity_tokens=123_456,
        max_batch=64,
        max_batched_tokens=2048,
        source=SpeedSource.PROFILE,
    )
    read = parse_profile(found.document)
    assert profile_speed(read) == expected
    assert (read.model, read.accelerator, read.tensor, read.pipeline) == ("m", "cpu", 1, 1)
    path = tmp_path / "profile.json"
    path.write_text(done.stdout)
    shown = CliRunner().invoke(
        main, ["capacity", "--model", "smollm2", "--accelerator", "cpu", "--profile", str(path), "--json"]
    )
    assert shown.exit_code == 0, shown.output
    sheet = msgspec.json.decode(shown.stdout)
    assert (sheet["speedSource"], sheet["kvCapacityTokens"]) == ("profile", 123_456)
    assert msgspec.convert(sheet["coefficients"], SpeedCoefficients) == SPEED


@integration
async def test_what_is_missing_is_said_with_what_to_do(cluster: Cluster) -> None:
    with pytest.raises(NoClusterError, match="there is no InferenceCluster c in namespace"):
        await export(cluster)
    await cluster.apply()
    with pytest.raises(ExportError, match="there is no pool q; there are p"):
        await export(cluster, pool="q")
    with pytest.raises(ExportError, match="no worker of pool p is ready"):
        await export(cluster)
    await add_worker(cluster, 0, ready=False)
    with pytest.raises(ExportError, match="no worker of pool p is ready"):
        await export(cluster)
    await add_worker(cluster, 1, spec_hash="old")
    with pytest.raises(ExportError, match="made from an older spec"):
        await export(cluster)
    address = await add_worker(cluster, 2)
    with pytest.raises(ExportError, match=f"kubectl .* capacity --export c -n {cluster.namespace} --pool p"):
        await export(cluster)
    async with ReportingAgent(msgspec.structs.replace(LOAD, speed=None)).serve(address):
        with pytest.raises(ExportError, match=r"knows its speed yet \(1 answered\)"):
            await export(cluster)
    nonsense = msgspec.structs.replace(SPEED, prefill_a=-1.0, decode_curve=())
    async with ReportingAgent(msgspec.structs.replace(LOAD, speed=nonsense)).serve(address):
        with pytest.raises(ExportError, match="makes no profile: coefficients must not be negative"):
            await export(cluster)
    pools = [{"name": name, "accelerator": "cpu", "workers": {"max": 1}} for name in ("p", "q")]
    await cluster.apply(pools=pools)
    with pytest.raises(ExportError, match="several pools; say which one with --pool: p, q"):
        await export(cluster)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--export", "c", "--model", "m"), "leave --model and --accelerator out"),
        (("--model", "m"), "give --model and --accelerator, or --export"),
        (("--model", "m", "--accelerator", "cpu", "--pool", "p"), "are for --export"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["capacity", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", "").split())


def test_without_an_api_server_it_says_so(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(msgspec.json.encode(config).decode())
    result = CliRunner().invoke(main, ["capacity", "--export", "--kubeconfig", str(path)])
    assert result.exit_code == 1
    assert "the API server does not answer" in result.output
