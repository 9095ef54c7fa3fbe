"""Variables for Services, against what the kubelet of Kubernetes makes of the same Services."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum_local.kubelet.service_links import api_server_variables, service_variables


def service(name: str, address: str | None, *ports: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": list(ports)}}


def test_host_port_and_links_as_the_documentation_of_kubernetes_shows_them() -> None:
    assert service_variables([service("redis-primary", "10.0.0.11", {"port": 6379})]) == {
        "REDIS_PRIMARY_SERVICE_HOST": "10.0.0.11",
        "REDIS_PRIMARY_SERVICE_PORT": "6379",
        "REDIS_PRIMARY_PORT": "tcp://10.0.0.11:6379",
        "REDIS_PRIMARY_PORT_6379_TCP": "tcp://10.0.0.11:6379",
        "REDIS_PRIMARY_PORT_6379_TCP_PROTO": "tcp",
        "REDIS_PRIMARY_PORT_6379_TCP_PORT": "6379",
        "REDIS_PRIMARY_PORT_6379_TCP_ADDR": "10.0.0.11",
    }


def test_named_ports_have_a_variable_each_and_the_first_port_is_the_services_own() -> None:
    made = service_variables(
        [service("a", "10.0.0.1", {"name": "web-ui", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"})]
    )
    assert (made["A_SERVICE_PORT"], made["A_SERVICE_PORT_WEB_UI"], made["A_SERVICE_PORT_DNS"]) == ("80", "80", "53")
    assert (made["A_PORT"], made["A_PORT_53_UDP"]) == ("tcp://10.0.0.1:80", "udp://10.0.0.1:53")


@pytest.mark.parametrize("address", [None, "None", ""])
def test_a_service_without_an_address_has_no_variables(address: str | None) -> None:
    assert service_variables([service("a", address, {"port": 80})]) == {}


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://127.0.0.1:6443", "127.0.0.1", "6443"),
        ("https://api.example.com", "api.example.com", "443"),
        ("https://[::1]:6443/", "::1", "6443"),
    ],
)
def test_the_api_server_is_the_service_kubernetes(url: str, host: str, port: str) -> None:
    made = api_server_variables(url)
    assert (made["KUBERNETES_SERVICE_HOST"], made["KUBERNETES_SERVICE_PORT"]) == (host, port)
    assert made["KUBERNETES_SERVICE_PORT_HTTPS"] == port
