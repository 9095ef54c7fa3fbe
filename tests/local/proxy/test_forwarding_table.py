from __future__ import annotations

from typing import Any

import pytest

from fulcrum_local.proxy.table import forwarding_table

Json = dict[str, Any]


def service(name: str = "web", ip: str | None = "127.78.0.9", ports: list[Json] | None = None) -> Json:
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"clusterIP": ip, "ports": ports or [{"port": 80, "targetPort": 8080}]},
    }


def endpoints(*conditions: Json, name: str = "web", port: int = 8080, port_name: str = "") -> Json:
    return {
        "metadata": {"namespace": "default", "name": f"{name}-x", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"port": port, "name": port_name}],
        "endpoints": [
            {"addresses": [f"127.77.1.{number}"], "conditions": condition}
            for number, condition in enumerate(conditions, start=1)
        ],
    }


@pytest.mark.parametrize(
    ("services", "slices", "expected"),
    [
        pytest.param(
            [service()],
            [endpoints({"ready": True}, {"ready": False}, {})],
            {("127.78.0.9", 80): (("127.77.1.1", 8080), ("127.77.1.3", 8080))},
            id="ready, or without a word about it",
        ),
        pytest.param([service()], [], {("127.78.0.9", 80): ()}, id="no endpoint"),
        pytest.param([service(ip="None")], [endpoints({})], {}, id="headless"),
        pytest.param([service(ip=None)], [endpoints({})], {}, id="no address yet"),
        pytest.param(
            [service()],
            [endpoints({"ready": False, "serving": True, "terminating": True}, {"ready": False})],
            {("127.78.0.9", 80): (("127.77.1.1", 8080),)},
            id="only one that still serves while it ends",
        ),
        pytest.param(
            [service(ports=[{"name": "a", "port": 80}, {"name": "b", "port": 81}, {"port": 53, "protocol": "UDP"}])],
            [endpoints({}, port=1, port_name="a"), endpoints({}, port=2, port_name="b")],
            {("127.78.0.9", 80): (("127.77.1.1", 1),), ("127.78.0.9", 81): (("127.77.1.1", 2),)},
            id="ports by name, TCP only",
        ),
        pytest.param(
            [service()], [endpoints({}, name="other")], {("127.78.0.9", 80): ()}, id="another Service's endpoints"
        ),
    ],
)
def test_table(services: list[Json], slices: list[Json], expected: Json) -> None:
    assert forwarding_table(services, slices) == expected
