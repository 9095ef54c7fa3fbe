"""A cluster for the tests of the API surface: the one of `--kubeconfig`, or a `fulcrum apiserver` of our own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.server.cluster import Http, Kubectl, client_of, delete_namespace, local_api_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", default=None, help="Cluster for tests/api; default: a `fulcrum apiserver`.")


@pytest.fixture(scope="session")
def external_kubeconfig(pytestconfig: pytest.Config) -> Path | None:
    """The file of `--kubeconfig`, if it was given."""
    # In a run of all tests this conftest is loaded too late for the option to exist.
    option = pytestconfig.getoption("--kubeconfig", None)
    return Path(option) if option else None


@pytest.fixture(scope="session")
def kubeconfig(external_kubeconfig: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig with the rights of an administrator."""
    if external_kubeconfig is not None:
        yield external_kubeconfig
        return
    with local_api_server(tmp_path_factory.mktemp("cluster")) as file:
        yield file


@pytest.fixture(scope="session")
def kubectl_of_cluster(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """kubectl without a namespace of its own."""
    return Kubectl(kubeconfig=kubeconfig, cache=tmp_path_factory.mktemp("kubectl-cache"))


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Iterator[Http]:
    """HTTP client with the credentials of the kubeconfig."""
    with client_of(kubeconfig) as client:
        yield client


@pytest.fixture
def namespace(api: Http) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    response = api.post("/api/v1/namespaces", json={"metadata": {"name": name}})
    assert response.status_code == 201, response.text
    yield name
    delete_namespace(api, name)


@pytest.fixture
def kubectl(kubectl_of_cluster: Kubectl, namespace: str) -> Kubectl:
    """kubectl in the test's namespace."""
    return kubectl_of_cluster.in_namespace(namespace)
