"""Malformed HTTP and JSON get a 4xx, and the gateway serves on. Odd bodies that are accepted end no engine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urlsplit

import pytest
from answers import Question, post
from local_cluster import REPOSITORY, Cluster
from tests.machine import deadline_seconds

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


def http(body: bytes, *, path: bytes = b"/v1/completions") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        path,
        len(body),
        body,
    )


def prompt(**fields: object) -> bytes:
    return json.dumps({"model": "quickstart", "prompt": "a", "max_tokens": 1, **fields}).encode()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: minus one\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (http(b"{"), 400),
        (http(b""), 400),
        (http(b"[]"), 400),
        (http(b"\xff\xfe"), 400),
        (http(prompt(max_tokens="many")), 400),
        (http(prompt(model="another")), 404),
        (http(b"{}", path=b"/v1/nothing"), 404),
        (b"GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
    ],
)
def test_4xx_and_still_serving(
    quickstart: Cluster, questions: list[Question], request_bytes: bytes, status: int
) -> None:
    url = urlsplit(quickstart.endpoint())
    assert url.hostname is not None
    with socket.create_connection((url.hostname, url.port or 80), timeout=deadline_seconds(120)) as connection:
        connection.sendall(request_bytes)
        with HTTPResponse(connection) as response:
            response.begin()
            body = response.read()
    assert response.status == status, body
    assert json.loads(body)["error"]["message"]
    answer = post(f"{quickstart.endpoint()}/v1/completions", questions[0].body)
    assert answer["choices"][0]["text"] == questions[0].answer


ACCEPTED = 200
AT_ONCE = 8
ANSWER_BYTES = 64 * 1024
ANSWER_SECONDS = 20.0


def accepted_bodies(model: str) -> list[tuple[str, str]]:
    """Paths and bodies that the gateway and vLLM's request classes accept, though fields of them are mutated."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "bodies.py"), "--accepted", "--model", model]
    done = subprocess.run(
        [*command, "--bodies", str(6 * ACCEPTED), "--seed", "11"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=deadline_seconds(300),
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def ask(endpoint: str, path: str, body: str) -> tuple[int, str]:
    """Status of the answer, 0 where there is none in time, and the workers that gave it."""
    url = urlsplit(endpoint)
    connection = HTTPConnection(url.hostname or "", url.port, timeout=deadline_seconds(ANSWER_SECONDS))
    try:
        connection.request("POST", path, body.encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read(ANSWER_BYTES)
        return answer.status, answer.headers.get("x-fulcrum-path", "")
    except (OSError, HTTPException):
        return 0, ""
    finally:
        connection.close()


def engine_processes(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """By worker, which process its container is, and the restarts before it."""
    return {
        pod["metadata"]["name"]: (status["containerID"], status["restartCount"])
        for pod in cluster.pods("worker")
        for status in pod["status"]["containerStatuses"]
    }


def test_accepted_bodies_end_no_engine(quickstart: Cluster, questions: list[Question]) -> None:
    bodies = accepted_bodies(quickstart.name)
    assert len(bodies) >= 2 * ACCEPTED
    before, endpoint = engine_processes(quickstart), quickstart.endpoint()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda each: ask(endpoint, *each), bodies[: 2 * ACCEPTED]))
    statuses = Counter(status for status, _ in answers)
    print(dict(statuses), Counter(path for _, path in answers))
    assert sum(bool(path) for _, path in answers) >= ACCEPTED, statuses
    assert any("," in path for _, path in answers), "none went over two legs"
    assert not statuses.keys() & {502, 504}, statuses
    assert engine_processes(quickstart) == before
    assert post(f"{endpoint}/v1/completions", questions[0].body)["choices"][0]["text"] == questions[0].answer
