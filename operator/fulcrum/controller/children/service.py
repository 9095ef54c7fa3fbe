"""The Service in front of the gateways."""

from __future__ import annotations

from fulcrum.api.gateway_types import GatewayService
from fulcrum.api.names import PORT_GATEWAY, gateway_name
from fulcrum.controller.children.owner import GATEWAY, Manifest, Owner


def gateway_service(owner: Owner, service: GatewayService) -> Manifest:
    """Return the Service; its address within the Kubernetes cluster is the cluster's endpoint."""
    return service_of(owner, service, gateway_name(owner.name), GATEWAY)


def service_of(owner: Owner, service: GatewayService, name: str, component: str) -> Manifest:
    """Return a Service in front of the Pods of a component."""
    metadata = owner.metadata(name, component)
    if service.annotations:
        metadata["annotations"] = dict(service.annotations)
    port: Manifest = {"name": "http", "port": PORT_GATEWAY, "targetPort": PORT_GATEWAY, "protocol": "TCP"}
    if service.node_port is not None:
        port["nodePort"] = service.node_port
    spec: Manifest = {"type": service.type.value, "selector": owner.selector(component), "ports": [port]}
    if service.load_balancer_class is not None:
        spec["loadBalancerClass"] = service.load_balancer_class
    if service.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(service.load_balancer_source_ranges)
    if service.external_traffic_policy is not None:
        spec["externalTrafficPolicy"] = service.external_traffic_policy.value
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
