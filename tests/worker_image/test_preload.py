"""The download of weights, by the hub's own library from a hub on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.machine import deadline_seconds

from fulcrum_worker.preload import _ignored, main

SHA = "a" * 40
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"s" * 5_000_000,
    "pytorch_model.bin": b"b" * 1000,
    "original/consolidated.00.pth": b"p" * 1000,
}


class Hub(ThreadingHTTPServer):
    """One model; while `stuck` is set, weights begin and do not go on."""

    daemon_threads = True
    stuck: threading.Event | None = None
    asked: threading.Event


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, content: bytes, name: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        if name:
            self.send_header("ETag", f'"{name.replace("/", "-")}"')
            self.send_header("X-Repo-Commit", SHA)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:1000])
            self.wfile.flush()
            if self.server.stuck is not None and name.endswith(".safetensors"):
                self.server.asked.set()
                self.server.stuck.wait()
                return
            self.wfile.write(content[1000:])

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/org/m/revision/"):
            siblings = [{"rfilename": name} for name in FILES]
            self._reply(json.dumps({"id": "org/m", "sha": SHA, "siblings": siblings}).encode())
        elif self.path.startswith(f"/api/models/org/m/tree/{SHA}"):
            tree = [{"type": "file", "path": name, "size": len(FILES[name]), "oid": "0" * 40} for name in FILES]
            self._reply(json.dumps(tree).encode())
        elif (name := self.path.partition(f"/org/m/resolve/{SHA}/")[2]) in FILES:
            self._reply(FILES[name], name)
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 - the name that the library calls


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Answer) as server:
        server.asked = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        if server.stuck is not None:
            server.stuck.set()
        server.shutdown()


def start(hub: Hub, home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "XDG_CACHE_HOME": str(home),
    }
    command = [sys.executable, "-m", "fulcrum_worker.preload", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=deadline_seconds(60))
    return process.returncode, said


def test_a_run_that_was_stopped_is_continued_and_a_second_one_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.stuck = threading.Event()
    stopped = start(hub, tmp_path, "org/m", "--revision=main")
    assert hub.asked.wait(deadline_seconds(60))
    stopped.send_signal(signal.SIGTERM)
    assert end(stopped)[0] == 128 + signal.SIGTERM
    hub.stuck.set()
    hub.stuck = None
    code, said = end(start(hub, tmp_path, "org/m", "--revision=main"))
    assert (code, "org/m is there" in said) == (0, True), said
    folder = tmp_path / "hub" / "models--org--m" / "snapshots" / SHA
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    hub.asked.clear()
    hub.stuck = threading.Event()  # would hold up a download
    assert end(start(hub, tmp_path, "org/m", "--revision=main"))[0] == 0
    assert not hub.asked.is_set()


def test_a_model_that_is_not_there_ends_with_one_line(hub: Hub, tmp_path: Path) -> None:
    code, said = end(start(hub, tmp_path, "org/other"))
    assert code == 1
    assert said.strip().splitlines()[-1].startswith("org/other cannot be downloaded: ")


def test_a_path_is_only_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main([str(tmp_path / "m")]) == 1
        assert "put the model there" in capsys.readouterr().err
        (tmp_path / "config.json").write_text("{}")
        assert main([str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("names", "ignored"),
    [
        (["a.safetensors", "a.bin", "a.gguf", "config.json"], ["a.bin", "a.gguf"]),
        (["consolidated.safetensors", "model.safetensors", "params.json"], ["model.safetensors"]),
        (["pytorch_model.bin", "x.onnx", "vocab.txt"], ["x.onnx"]),
        (["a.safetensors", "original/b.safetensors", "original/p.json"], ["original/b.safetensors", "original/p.json"]),
        (["unet/a.safetensors", "vae/b.bin"], []),
    ],
)
def test_weights_of_one_format_are_downloaded(names: list[str], ignored: list[str]) -> None:
    assert _ignored(names) == ignored
