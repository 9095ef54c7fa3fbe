"""From Services and EndpointSlices to a forwarding table. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Json = dict[str, Any]
Address = tuple[str, int]
"""(IP address, TCP port)"""
Table = dict[Address, tuple[Address, ...]]
"""cluster IP and port -> endpoints that take new connections."""

LABEL_SERVICE: Final = "kubernetes.io/service-name"


def forwarding_table(services: Iterable[Json], slices: Iterable[Json]) -> Table:
    """Every TCP port of every Service with a cluster IP; without an endpoint it maps to nothing.

    Endpoints that are ready; if there is none, those that still serve while they terminate (as kube-proxy does).
    """
    by_service: dict[tuple[str, str], list[Json]] = {}
    for item in slices:
        name = (item["metadata"].get("labels") or {}).get(LABEL_SERVICE)
        if name:
            by_service.setdefault((item["metadata"]["namespace"], name), []).append(item)
    table: Table = {}
    for service in services:
        cluster_ip = service["spec"].get("clusterIP")
        if not cluster_ip or cluster_ip == "None":
            continue
        mine = by_service.get((service["metadata"]["namespace"], service["metadata"]["name"]), [])
        for port in service["spec"].get("ports") or []:
            if port.get("protocol", "TCP") == "TCP":
                table[cluster_ip, int(port["port"])] = _endpoints(mine, port.get("name") or "")
    return table


def _endpoints(slices: list[Json], port_name: str) -> tuple[Address, ...]:
    ready: set[Address] = set()
    serving: set[Address] = set()
    for item in slices:
        ports = [port["port"] for port in item.get("ports") or [] if (port.get("name") or "") == port_name]
        for endpoint in item.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            found = {(address, int(port)) for address in endpoint.get("addresses") or [] for port in ports}
            if conditions.get("ready") is not False:
                ready |= found
            elif conditions.get("serving") and conditions.get("terminating"):
                serving |= found
    return tuple(sorted(ready or serving))
