"""Two pools with unlike ports in a local Kubernetes: probes, reports, legs and handshakes use those of each pool."""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.charts.release import Release, local_release
from tests.machine import deadline_seconds

from fulcrum.api.names import PORT_GATEWAY_INSIDE
from fulcrum.api.ports import USUAL_PORTS, Ports, ports_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PREFILL = Ports(engine=9000, agent=9001, nixl=5700)
DECODE = Ports(engine=9100, agent=9101, nixl=8000)
"""Its handshakes are where engines usually listen: a leg that goes to a usual port gets no answer there."""
COMMAND = [sys.executable, str(Path(__file__).with_name("loopback_worker.py"))]


def pool(role: str, ports: Ports) -> dict[str, Any]:
    return {
        "name": role,
        "accelerator": "cpu",
        "workers": {"min": 1, "max": 1},
        "roles": [role],
        "ports": {"engine": ports.engine, "agent": ports.agent, "nixl": ports.nixl},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "template": {"spec": {"containers": [{"name": "worker", "command": COMMAND}]}},
    }


CLUSTER: dict[str, Any] = {
    "model": {"name": "m", "maxModelLen": 4096},
    "slo": {"ttft": "30s", "tpot": "10s"},
    "pools": [pool("prefill", PREFILL), pool("decode", DECODE)],
    "balance": {"mode": "Manual", "ratio": {"prefill": 1, "decode": 1}},
    "gateway": {"replicas": 1},
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with local_release(tmp_path_factory.mktemp("ports"), CLUSTER) as release:
        release.helm_operator("install")
        release.helm_cluster("install")
        release.wait_available()
        yield release


def workers(release: Release) -> dict[str, Any]:
    """Worker Pods by pool."""
    pods = release.read("pods", "-l", "app.kubernetes.io/component=worker")["items"]
    return {pod["metadata"]["labels"]["fulcrum.dev/pool"]: pod for pod in pods}


def pulls(pod: dict[str, Any], ports: Ports) -> int:
    """How many prompts of clients a worker has pulled from a peer."""
    url = f"http://{pod['status']['podIP']}:{ports.engine}/metrics"
    with urllib.request.urlopen(url, timeout=deadline_seconds(30)) as page:
        lines = page.read().decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("loopback_pulls ")))


def ask(release: Release, *, stream: bool) -> str:
    question = [{"role": "user", "content": "Where do you listen?"}]
    body = {"model": "chat", "messages": question, "max_tokens": 5, "stream": stream}
    request = urllib.request.Request(
        f"http://{release.address()}:8080/v1/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=deadline_seconds(60)) as reply:
        return str(reply.read().decode())


def test_workers_are_ready_by_probes_of_their_pools_ports_and_listen_nowhere_else(release: Release) -> None:
    for name, ports in (("prefill", PREFILL), ("decode", DECODE)):
        pod = workers(release)[name]
        assert ports_of(pod["metadata"]["annotations"]) == ports
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert {each["type"]: each["status"] for each in pod["status"]["conditions"]}["Ready"] == "True"
        for port in (USUAL_PORTS.engine, USUAL_PORTS.agent, USUAL_PORTS.nixl):
            if port not in (ports.engine, ports.agent, ports.nixl):
                with socket.socket() as probe:
                    assert probe.connect_ex((pod["status"]["podIP"], port)) != 0, (name, port)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_prefilled_on_one_set_of_ports_and_decoded_on_the_other(release: Release, *, stream: bool) -> None:
    decode = workers(release)["decode"]
    before = pulls(decode, DECODE)
    answer = ask(release, stream=stream)
    assert answer.endswith("data: [DONE]\n\n") if stream else json.loads(answer)["choices"]
    assert pulls(decode, DECODE) == before + 1
    assert pulls(workers(release)["prefill"], PREFILL) == 0


def test_reports_of_agents_are_read_there(release: Release) -> None:
    shown = release.run("fulcrum", "top", "chat", "--once").splitlines()
    rows = [line.split() for line in shown if line.startswith(("chat-prefill-0", "chat-decode-0"))]
    assert [row[:5] for row in rows] == [
        ["chat-decode-0", "decode", "0", "0", "0%"],
        ["chat-prefill-0", "prefill", "0", "0", "0%"],
    ]
    (gateway,) = release.read("pods", "-l", "app.kubernetes.io/component=gateway")["items"]
    url = f"http://{gateway['status']['podIP']}:{PORT_GATEWAY_INSIDE}/metrics"

    def answered() -> bool:
        with urllib.request.urlopen(url, timeout=deadline_seconds(30)) as page:
            lines = page.read().decode().splitlines()
        counts = [line for line in lines if line.startswith("fulcrum_gateway_load_reports_total{")]
        return any('outcome="answered"' in line and not line.endswith(" 0.0") for line in counts)

    release.until("the gateway reads reports", answered)
