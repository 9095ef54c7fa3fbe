"""The published OpenAPI document against a gateway: what it allows is served, and all is answered as it says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvloop
from click.testing import CliRunner
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from tests.gateway.apis import ApiEngine
from tests.gateway.conftest import Site
from tests.machine import deadline_seconds

from fulcrum.api.gateway import GatewayConfig, GatewayLimits
from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, ClassMatch, QosClass
from fulcrum.gateway.api_formats.openapi import document
from fulcrum.gateway.app import Gateway
from fulcrum.gateway.config import Settings

PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
KEY = "openapi-test-key"


class Served:
    """A gateway on a loop and a thread of its own, for clients that block."""

    def __init__(self, directory: Path) -> None:
        (directory / "key").write_text(KEY)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._directory = directory
        self._stop: asyncio.Event
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._runner.run, args=(self._serve(),))
        self.site: Site
        self._thread.start()
        assert self._up.wait(deadline_seconds(120))
        self.url = f"http://127.0.0.1:{self.site.gateway.port}"

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        engines = {"p": ApiEngine("p", Role.PREFILL), "d": ApiEngine("d", Role.DECODE)}
        for engine in engines.values():
            await engine.start()
        classes = (
            QosClass(name="gold", priority=9, match=ClassMatch(header="x-tier", value="gold")),
            QosClass(name="rest", priority=1),
        )
        gateway = Gateway(
            Settings(
                config=GatewayConfig(
                    cluster="c", served_name="m", model="m", limits=GatewayLimits(max_body_bytes=100_000),
                    api_keys_directory=str(self._directory), admission=Admission(classes=classes),
                ),
                host="127.0.0.1", port=0, prewarm=False, lame_duck_seconds=0,
                static_workers=tuple(engine.record() for engine in engines.values()),
            ),
            asyncio.get_running_loop(),
        )  # fmt: skip
        await gateway.start()
        self.site = Site(gateway, engines)
        self._up.set()
        await self._stop.wait()
        await gateway.stop()
        for engine in engines.values():
            await engine.stop()

    def close(self) -> None:
        self._runner.get_loop().call_soon_threadsafe(self._stop.set)
        self._thread.join(deadline_seconds(120))
        self._runner.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("keys"))
    yield served
    served.close()


CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {
            # What the gateway does not know it passes on, and the engine of this test takes anything.
            "negative_data_rejection": {"enabled": False},
            # A guarded cluster's document; every model but one is unknown.
            "positive_data_acceptance": {"expected-statuses": ["2xx", "404"]},
            "not_a_server_error": {"expected-statuses": ["2xx", "4xx"]},
        }
    }
)
schema = schemathesis.openapi.from_dict(document(guarded=True), config=CONFIG)


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_is_as_published(served: Served, case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"})


def test_without_a_key_nothing_is_served_that_the_document_guards(served: Served) -> None:
    import urllib.error
    import urllib.request

    for path, operations in document(guarded=True)["paths"].items():
        for method, operation in operations.items():
            request = urllib.request.Request(served.url + path, method=method.upper())
            if method == "post":
                request.data = b"{}"
                request.add_header("content-type", "application/json")
            try:
                with urllib.request.urlopen(request, timeout=deadline_seconds(60)) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
                error.close()
            guarded = operation.get("security", [{}]) == [{"apiKey": []}]
            assert (status == 401) == guarded, (method, path, status)


def test_it_is_served(served: Served) -> None:
    import urllib.request

    with urllib.request.urlopen(served.url + "/openapi.json", timeout=deadline_seconds(60)) as answer:
        assert json.load(answer) == document(guarded=True, max_body_bytes=100_000)


def test_the_published_file_is_what_the_code_says() -> None:
    assert json.loads(PUBLISHED.read_text()) == document(), "fulcrum gateway --openapi > docs/reference/openapi.json"


def test_the_command_prints_it() -> None:
    from fulcrum.cli.gateway import command

    printed = CliRunner().invoke(command, ["--openapi"])
    assert printed.exit_code == 0
    assert json.loads(printed.output) == document()


def test_every_rejection_and_route_is_in_it() -> None:
    from fulcrum.api.reasons import REJECTIONS
    from fulcrum.gateway.dispatch.routes import GET_PATHS, POST_PATHS

    made: Any = document()
    assert set(made["paths"]) == {*GET_PATHS, *POST_PATHS, "/v1/models/{model}"}
    assert set(REJECTIONS) <= set(made["components"]["headers"]["x-fulcrum-rejected"]["schema"]["enum"])
