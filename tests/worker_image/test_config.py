"""What the agent refuses, and that it names the field."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import deadline_seconds

from fulcrum.api.names import ENV_POD_IP, ENV_POD_NAME, ENV_WORKER_CONFIG, Role
from fulcrum.api.worker import EXIT_BAD_CONFIG
from fulcrum_worker.config import BadConfigError, check_locked_memory, check_machine, read_config
from fulcrum_worker.memory import may_lock_memory

GOOD: dict[str, Any] = {
    "cluster": "chat",
    "pool": "cpu",
    "model": "smollm2",
    "servedName": "chat",
    "accelerator": "cpu",
}


def environment(document: object, ip: str = "127.77.250.1") -> dict[str, str]:
    return {ENV_WORKER_CONFIG: json.dumps(document), ENV_POD_IP: ip, ENV_POD_NAME: "chat-cpu-0"}


def test_a_minimal_document() -> None:
    config, pod = read_config(environment(GOOD))
    assert (config.kv_cache.dtype, config.kv_cache.block_size, config.role) == ("fp8", None, Role.MIXED)
    assert (pod.ip, pod.name, pod.namespace, pod.url_host) == ("127.77.250.1", "chat-cpu-0", "default", "127.77.250.1")
    assert read_config(environment(GOOD, ip="fd00::1"))[1].url_host == "[fd00::1]"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cluster": None}, "$.cluster"),
        ({"kvCache": {"blockSize": "16"}}, "$.kvCache.blockSize"),
        ({"role": "prefil"}, "$.role"),
        ({"model": ""}, "model: must not be empty"),
        ({"servedName": ""}, "servedName: must not be empty"),
        ({"maxModelLen": 0}, "maxModelLen: must be positive"),
        ({"tensorParallel": 0}, "tensorParallel: must be at least 1"),
        ({"pipelineParallel": -1}, "pipelineParallel: must be at least 1"),
        ({"dataParallel": 0}, "dataParallel: must be at least 1"),
        ({"dataParallel": 2, "kvCache": {"offload": {"hostBytes": 1}}}, "kvCache.offload: ranks of data parallel"),
        ({"kvCache": {"dtype": "int3"}}, "kvCache.dtype: 'int3' is not one of fp8, bf16, auto"),
        ({"kvCache": {"blockSize": 0}}, "kvCache.blockSize: must be at least 1"),
        ({"kvCache": {"memoryBytes": 0}}, "kvCache.memoryBytes: must be positive"),
        ({"transfer": {"connector": "rsync"}}, "transfer.connector: 'rsync' is not one of nixl"),
        ({"transfer": {"backends": []}}, "transfer.backends: must name"),
        ({"transfer": {"loadFailurePolicy": "hope"}}, "transfer.loadFailurePolicy: 'hope'"),
        ({"task": "Embed"}, "$.task"),
        ({"task": "Pooling"}, "task: workers of a pooling model neither exchange nor keep KV"),
        ({"sleepMode": True, "exchangesKv": False}, "sleepMode: vLLM's sleep mode (spec.balance.idleDepth: Engines)"),
        ({"sleepMode": True, "accelerator": "H100-SXM-80GB"}, "needs GPUs, and engines that exchange no KV"),
        ({"role": "draining"}, "role: a worker cannot be created as draining"),
        ({"roleEpoch": -1}, "roleEpoch: must not be negative"),
        ({"startTimeoutSeconds": 0}, "startTimeoutSeconds: must be positive"),
        ({"drainTimeoutSeconds": -1}, "drainTimeoutSeconds: must not be negative"),
        ({"engineArgs": ["--max-num-seqs", "8", "--port=1"]}, "engineArgs[2]: '--port' is refused"),
        ({"engineArgs": ["--kv-transfer-config", "{}"]}, "engineArgs[0]: '--kv-transfer-config' is refused"),
    ],
)
def test_refused_with_the_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(BadConfigError) as refused:
        read_config(environment({**GOOD, **change}))
    assert named in str(refused.value)
    assert str(refused.value).startswith(ENV_WORKER_CONFIG)


@pytest.mark.parametrize("missing", ["cluster", "pool", "model", "servedName", "accelerator"])
def test_required_fields(missing: str) -> None:
    document = {key: value for key, value in GOOD.items() if key != missing}
    with pytest.raises(BadConfigError, match=missing):
        read_config(environment(document))


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, f"{ENV_WORKER_CONFIG}: is not set"),
        ({ENV_WORKER_CONFIG: "{", ENV_POD_IP: "10.0.0.1"}, f"{ENV_WORKER_CONFIG}: is not JSON"),
        (environment(GOOD, ip=""), f"{ENV_POD_IP}: '' is not an IP address"),
        (environment(GOOD, ip="worker.svc"), f"{ENV_POD_IP}: 'worker.svc' is not an IP address"),
    ],
)
def test_refused_environment(variables: dict[str, str], named: str) -> None:
    with pytest.raises(BadConfigError) as refused:
        read_config(variables)
    assert named in str(refused.value)


AVX2 = "flags\t\t: fma avx avx2 bmi2\n"
AVX512 = "flags\t\t: fma avx avx2 avx512f avx512dq avx512bw avx512vl\n"


def test_fp8_on_a_cpu_that_cannot() -> None:
    config, _ = read_config(environment(GOOD))
    with pytest.raises(BadConfigError) as refused:
        check_machine(config, AVX2)
    assert "spec.engine.kvCache.dtype" in str(refused.value)
    assert "set it to auto" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "cpuinfo"),
    [
        ({}, AVX512),
        ({}, ""),
        ({"kvCache": {"dtype": "bf16"}}, AVX2),
        ({"kvCache": {"dtype": "auto"}}, AVX2),
        ({"accelerator": "H100-SXM-80GB"}, AVX2),
    ],
)
def test_machines_that_can(change: dict[str, Any], cpuinfo: str) -> None:
    config, _ = read_config(environment({**GOOD, **change}))
    check_machine(config, cpuinfo)


def test_rdma_needs_memory_that_may_be_locked() -> None:
    config, _ = read_config(environment({**GOOD, "rdma": True}))
    with pytest.raises(BadConfigError, match="LimitMEMLOCK=infinity") as refused:
        check_locked_memory(config, unlimited=False)
    assert "spec.pools[].rdma.runAsRoot" in str(refused.value)
    check_locked_memory(config, unlimited=True)
    check_locked_memory(read_config(environment(GOOD))[0], unlimited=False)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("CapInh:\t0\nCapEff:\t0000000000004000\n", True),
        ("CapEff:\t00000000a80425fb\n", False),
        ("CapEff:\tunreadable\n", False),
        ("", False),
        (None, False),
    ],
)
def test_who_may_lock_memory(
    status: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel asks for CAP_IPC_LOCK in the effective set, which a capability that is added to a user is not in."""
    limits = {resource.RLIMIT_MEMLOCK: (65536, 65536)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    file = tmp_path / "status"
    if status is not None:
        file.write_text(status)
    assert may_lock_memory(file) is expected
    limits[resource.RLIMIT_MEMLOCK] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert may_lock_memory(file)


@pytest.mark.parametrize(
    ("document", "ip", "named"),
    [
        ({**GOOD, "kvCache": {"blockSize": "16"}}, "127.77.250.1", "kvCache.blockSize"),
        ({**GOOD, "kvCache": {"dtype": "bf16"}}, "192.0.2.1", "POD_IP: cannot listen on 192.0.2.1:8001"),
    ],
)
def test_exit_code_and_last_line(document: dict[str, Any], ip: str, named: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fulcrum_worker"],
        env={**os.environ, **environment(document, ip=ip)},
        check=False,
        capture_output=True,
        text=True,
        timeout=deadline_seconds(60),
    )
    assert done.returncode == EXIT_BAD_CONFIG
    assert named in done.stderr.splitlines()[-1]
