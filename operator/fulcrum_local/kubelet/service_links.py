"""Environment variables through which a container finds Services, as the kubelet defines them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]


def service_variables(services: Iterable[Json]) -> dict[str, str]:
    """`NAME_SERVICE_HOST`, `NAME_SERVICE_PORT` and the older link variables of every Service with a cluster IP."""
    variables: dict[str, str] = {}
    for service in services:
        address = service["spec"].get("clusterIP")
        ports = service["spec"].get("ports") or []
        if not address or address == "None" or not ports:
            continue
        name = _variable(service["metadata"]["name"])
        variables[f"{name}_SERVICE_HOST"] = address
        variables[f"{name}_SERVICE_PORT"] = str(ports[0]["port"])
        variables[f"{name}_PORT"] = _url(address, ports[0])
        for port in ports:
            if port.get("name"):
                variables[f"{name}_SERVICE_PORT_{_variable(port['name'])}"] = str(port["port"])
            link = f"{name}_PORT_{port['port']}_{port.get('protocol', 'TCP')}"
            variables[link] = _url(address, port)
            variables[f"{link}_PROTO"] = port.get("protocol", "TCP").lower()
            variables[f"{link}_PORT"] = str(port["port"])
            variables[f"{link}_ADDR"] = address
    return variables


def api_server_variables(url: str) -> dict[str, str]:
    """The variables of the Service `kubernetes`, which every Pod gets; here they name the server at `url` itself."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    service = {
        "metadata": {"name": "kubernetes"},
        "spec": {"clusterIP": parts.hostname, "ports": [{"name": "https", "port": port}]},
    }
    return service_variables([service])


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def _url(address: str, port: Json) -> str:
    return f"{port.get('protocol', 'TCP').lower()}://{address}:{port['port']}"
