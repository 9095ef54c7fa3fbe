"""What was answered survives: a restart, a SIGKILL in the middle of writes, and a lost client."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.api.server.cluster import (
    Http,
    Json,
    ServerProcess,
    WatchStream,
    client_of,
    config_map,
    kubelet_context,
    pod,
    wait_for,
)
from tests.machine import deadline_seconds

PATH = "/api/v1/namespaces/default/configmaps"
pytestmark = pytest.mark.integration


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """The servers of a test, first to last; stopped at its end."""
    started: list[ServerProcess] = []
    yield started
    for server in started:
        server.stop()


def _start(servers: list[ServerProcess], folder: Path, *options: str) -> ServerProcess:
    servers.append(ServerProcess(folder, *options))
    return servers[-1]


def _create(client: Http, name: str, **entries: str) -> Json:
    response = client.post(PATH, json=config_map(name, None, **entries))
    assert response.status_code == 201, response.text
    created: Json = response.json()
    return created


def test_a_restart_resumes_with_state_port_and_credentials(tmp_path: Path, servers: list[ServerProcess]) -> None:
    first = _start(servers, tmp_path)
    with client_of(first.kubeconfig) as client:
        created = _create(client, "one", a="1")
        service = {"metadata": {"name": "one"}, "spec": {"ports": [{"port": 80}]}}
        address = client.post("/api/v1/namespaces/default/services", json=service).json()["spec"]["clusterIP"]
        account = "/api/v1/namespaces/default/serviceaccounts/default/token"
        token = client.post(account, json={}).json()["status"]["token"]
    config = first.kubeconfig.read_text()
    assert first.stop() == 0
    second = _start(servers, tmp_path)
    assert second.kubeconfig.read_text() == config
    with client_of(second.kubeconfig) as client:
        assert client.get(f"{PATH}/one").json() == created
        later = _create(client, "two")
        assert int(later["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
        service["metadata"] = {"name": "two"}
        second_address = client.post("/api/v1/namespaces/default/services", json=service).json()["spec"]["clusterIP"]
        assert second_address != address
        review = {"spec": {"token": token}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        assert client.post(path, json=review).json()["status"]["authenticated"]


def test_a_watch_resumes_over_a_restart_when_it_missed_nothing(tmp_path: Path, servers: list[ServerProcess]) -> None:
    first = _start(servers, tmp_path)
    with client_of(first.kubeconfig) as client:
        seen = _create(client, "one")["metadata"]["resourceVersion"]
        client.post("/api/v1/namespaces/default/secrets", json={"metadata": {"name": "other"}})
    first.stop(signal.SIGKILL)
    second = _start(servers, tmp_path)
    with client_of(second.kubeconfig) as client:
        with WatchStream(client, PATH, resourceVersion=seen) as watch:
            _create(client, "two")
            assert watch.next_names(1) == [("ADDED", "two")]
        # Who missed something is told to list again.
        with WatchStream(client, PATH, resourceVersion=int(seen) - 1) as watch:
            assert watch.next()["object"]["code"] == 410


def test_what_was_answered_survives_sigkill(tmp_path: Path, servers: list[ServerProcess]) -> None:
    first = _start(servers, tmp_path)
    answered: dict[str, str] = {}
    enough = threading.Event()

    def write() -> None:
        with client_of(first.kubeconfig) as client:
            for number in range(100_000):
                try:
                    response = client.post(PATH, json=config_map(f"map-{number}"))
                except requests.RequestException:
                    return
                if response.status_code == 201:
                    answered[f"map-{number}"] = response.json()["metadata"]["resourceVersion"]
                if len(answered) >= 100:
                    enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(deadline_seconds(120))
    first.stop(signal.SIGKILL)
    writer.join(deadline_seconds(60))
    second = _start(servers, tmp_path)
    with client_of(second.kubeconfig) as client:
        listed = client.get(PATH).json()
        found = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed["items"]}
        assert answered.items() <= found.items()
        assert int(listed["metadata"]["resourceVersion"]) >= max(map(int, found.values()))


def test_sigterm_ends_watches_cleanly(tmp_path: Path, servers: list[ServerProcess]) -> None:
    server = _start(servers, tmp_path)
    with client_of(server.kubeconfig) as client:
        version = client.get(PATH).json()["metadata"]["resourceVersion"]
        with WatchStream(client, PATH, resourceVersion=version) as watch:
            server.process.send_signal(signal.SIGTERM)
            assert watch.rest() == []  # a clean end of the stream, not a broken one
    server.process.wait(deadline_seconds(60))
    assert server.stop() == 0


def test_sigterm_does_not_wait_for_a_followed_log(tmp_path: Path, servers: list[ServerProcess]) -> None:
    server = _start(servers, tmp_path)
    listener = kubelet_context(tmp_path).wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
    with listener as kubelet, client_of(server.kubeconfig) as client:
        client.post("/api/v1/nodes", json={"metadata": {"name": "one"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.getsockname()[1]}},
        }
        merge = {"Content-Type": "application/merge-patch+json"}
        client.patch("/api/v1/nodes/one/status", json={"status": status}, headers=merge)
        pods = "/api/v1/namespaces/default/pods"
        assert client.post(pods, json=pod("one", nodeName="one")).status_code == 201
        reader = threading.Thread(target=_read_log, args=(client, f"{pods}/one/log"))
        reader.start()
        connection, _ = kubelet.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n")
            time.sleep(0.3)  # so that the stream is most likely open; the outcome must not depend on it
            started = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - started < deadline_seconds(30)
        reader.join(deadline_seconds(60))


def _read_log(client: Http, path: str) -> None:
    with contextlib.suppress(requests.RequestException):
        client.get(path, params={"follow": "true"})


def test_a_second_server_on_the_same_state_refuses(tmp_path: Path, servers: list[ServerProcess]) -> None:
    _start(servers, tmp_path)
    command = [sys.executable, "-m", "fulcrum.cli.app", "apiserver", f"--state-dir={tmp_path / 'state'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_seconds(120), check=False)
    assert done.returncode == 1
    assert "another API server uses" in done.stderr


def test_secrets_are_readable_by_the_owner_only(tmp_path: Path, servers: list[ServerProcess]) -> None:
    server = _start(servers, tmp_path)
    private = [server.kubeconfig, *(path for path in (tmp_path / "state").rglob("*") if path.is_file())]
    secret = [path for path in private if path.name not in ("port", "addresses")]
    assert secret
    assert {oct(path.stat().st_mode & 0o077) for path in secret} == {"0o0"}
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_a_client_that_goes_leaves_no_watch_behind(tmp_path: Path, servers: list[ServerProcess]) -> None:
    server = _start(servers, tmp_path)

    def open_watches(client: Http) -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("apiserver_longrunning_requests{"))

    with client_of(server.kubeconfig) as client:
        watches = [WatchStream(client, PATH, timeoutSeconds=600) for _ in range(5)]
        wait_for(lambda: open_watches(client) == 5, "watches open")
        for watch in watches:
            watch.__exit__()
        wait_for(lambda: open_watches(client) == 0, "watches closed")


def test_writes_are_counted_by_client(tmp_path: Path, servers: list[ServerProcess]) -> None:
    server = _start(servers, tmp_path)
    with client_of(server.kubeconfig) as client:
        client.headers["User-Agent"] = "tester/1.0"
        _create(client, "one")
        headers = {"Content-Type": "application/apply-patch+yaml"}
        client.patch(f"{PATH}/one", params={"fieldManager": "me"}, json=config_map("one"), headers=headers)
        client.get(f"{PATH}/none")
        text = client.get("/metrics").text
    common = {'user="kubernetes-admin"', 'client="tester"', 'resource="configmaps"'}
    for verb, code in (("POST", 201), ("APPLY", 200), ("GET", 404)):
        wanted = common | {f'verb="{verb}"', f'code="{code}"'}
        found = [
            line.rpartition(" ")[2]
            for line in text.splitlines()
            if line.startswith("fulcrum_apiserver_client_requests_total{")
            and wanted <= set(line[line.index("{") + 1 : line.index("}")].split(","))
        ]
        assert found == ["1.0"], (verb, text)
    assert "apiserver_request_total{" in text
