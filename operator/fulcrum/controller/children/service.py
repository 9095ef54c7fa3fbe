"""The Service in front of the gateways."""

from __future__ import annotations

from fulcrum.api.names import PORT_GATEWAY, gateway_name
from fulcrum.controller.children.owner import GATEWAY, Manifest, Owner


def gateway_service(owner: Owner) -> Manifest:
    """Return the ClusterIP Service; its address is the cluster's endpoint."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owner.metadata(gateway_name(owner.name), GATEWAY),
        "spec": {
            "type": "ClusterIP",
            "selector": owner.selector(GATEWAY),
            "ports": [{"name": "http", "port": PORT_GATEWAY, "targetPort": PORT_GATEWAY, "protocol": "TCP"}],
        },
    }
