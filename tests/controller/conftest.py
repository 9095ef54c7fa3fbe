"""The API server of the integration tests, and a cluster for each of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.controller.cluster import ApiServer, Cluster, client_of, running_api_server


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_api_server(tmp_path_factory.mktemp("api")) as server:
        server.install()
        yield server


@pytest.fixture
async def cluster(api_server: ApiServer) -> AsyncIterator[Cluster]:
    namespace = f"t-{random.getrandbits(32):08x}"
    api_server.kubectl("create", "namespace", namespace)
    client = client_of(api_server)
    yield Cluster(api_server, client, namespace)
    await client.close()
