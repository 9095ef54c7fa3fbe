"""vLLM's own fetcher of media, with the hosts and the environment that engines get: no redirect leads anywhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests import vllm_source
from tests.machine import deadline_seconds
from tests.worker_image.test_engine_command import cuda, environment_of

FETCH = """
import sys, warnings
warnings.simplefilter("ignore")
from vllm.multimodal.media.connector import MediaConnector
connector = MediaConnector(allowed_media_domains=["localhost"])
for url in sys.argv[1:]:
    try:
        connector.fetch_image(url)
    except Exception as error:
        print("refused", type(error).__name__)
    else:
        print("fetched")
"""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "e221bc330000000049454e44ae426082"
)


class Host:
    """A server on loopback that answers with `status`, and counts who asks."""

    def __init__(self, status: int, location: str = "") -> None:
        host = self
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked += 1
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(PIXEL)))
                self.end_headers()
                self.wfile.write(PIXEL)

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    secret = Host(200)
    redirecting = Host(302, f"http://127.0.0.1:{secret.port}/secret.png")
    yield redirecting, secret
    redirecting.close()
    secret.close()


@pytest.mark.vllm_facts
def test_how_many_bytes_of_media_vllm_takes() -> None:
    """docs/reference/gateway.md says so: 0.32 bounds each file, 0.33 also what a request has in all."""
    found = dict(
        re.findall(
            r"^    (VLLM_MAX_MEDIA_\w+): int = ([\d_]+)$", (vllm_source.root() / "envs.py").read_text(), re.MULTILINE
        )
    )
    of_requests = {
        "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES": "715_827_880",
        "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB": "256",
    }
    of_files = {"VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": "256"}
    assert found in (of_files, of_files | of_requests)


@pytest.mark.timeout(600)
def test_a_redirect_from_an_allowed_host_reaches_nothing(hosts: tuple[Host, Host]) -> None:
    redirecting, secret = hosts
    urls = [
        f"http://localhost:{redirecting.port}/a.png",
        f"http://127.0.0.1:{secret.port}/secret.png",
        f"http://localhost@127.0.0.1:{secret.port}/secret.png",
    ]
    environment = {**os.environ, **environment_of(cuda(media_domains=("localhost",)))}
    environment |= {"VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, *urls],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=deadline_seconds(500),
    )
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["refused"] * 2
    assert redirecting.asked > 0, "the allowed host was asked"
    assert secret.asked == 0
