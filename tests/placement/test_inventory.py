"""Inventories as users write them, and as Kubernetes reports them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.placement.cases import kubernetes_node, names

from fulcrum.placement.cluster_nodes import COUNT_LABEL, PRICE_LABEL, inventory_from_nodes
from fulcrum.placement.errors import InventoryError
from fulcrum.placement.inventory import inventory_from

NODE: dict[str, Any] = {"accelerator": "H100", "gpus": 8}


def test_an_entry_stands_for_several_nodes_and_overrides_the_data_sheet() -> None:
    entry = {**NODE, "name": "a", "count": 2, "memory": "70Gi", "network": 400, "local": "pcie", "pricePerHour": 2.5}
    found = inventory_from({"nodes": [entry]})
    assert names(found.nodes) == ["a-0", "a-1"]
    assert found.gpus == 16
    assert found.price_per_hour == 40.0
    node = found.nodes[0]
    assert node.accelerator.memory_bytes == 70 * 2**30
    assert node.network_bytes_per_second == 50e9
    assert node.accelerator.local_bytes_per_second == node.accelerator.pcie_bytes_per_second
    assert found.nodes[0].kind == found.nodes[1].kind


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "nodes"),
        ({"nodes": []}, "nodes"),
        ({"nodes": [NODE], "link": []}, "link"),
        ({"nodes": [{"gpus": 8}]}, "nodes[0].accelerator"),
        ({"nodes": [{"accelerator": "H900", "gpus": 8}]}, "nodes[0].accelerator"),
        ({"nodes": [{"accelerator": "H100"}]}, "nodes[0].gpus"),
        ({"nodes": [{**NODE, "gpus": 0}]}, "nodes[0].gpus"),
        ({"nodes": [{**NODE, "gpus": 17}]}, "nodes[0].gpus"),
        ({"nodes": [{**NODE, "gpus": True}]}, "nodes[0].gpus"),
        ({"nodes": [{**NODE, "count": 10**6}]}, "nodes[0].count"),
        ({"nodes": [{**NODE, "count": 4000}, {**NODE, "count": 4000, "name": "b"}]}, "nodes[1].count"),
        ({"nodes": [{**NODE, "pricePerHour": -1}]}, "nodes[0].pricePerHour"),
        ({"nodes": [{**NODE, "pricePerHour": float("nan")}]}, "nodes[0].pricePerHour"),
        ({"nodes": [{**NODE, "memory": "much"}]}, "nodes[0].memory"),
        ({"nodes": [{**NODE, "network": 0}]}, "nodes[0].network"),
        ({"nodes": [{"accelerator": "L40S", "gpus": 4, "local": "nvlink"}]}, "nodes[0].local"),
        ({"nodes": [{**NODE, "price": 1}]}, "nodes[0].price"),
        ({"nodes": [{**NODE, "name": "a"}, {**NODE, "name": "a"}]}, "nodes"),
        ({"nodes": [NODE], "links": [{"between": ["default", "x"], "gigabitsPerSecond": 1}]}, "links[0].between"),
        ({"nodes": [NODE], "links": [{"between": ["default"]}]}, "links[0].between"),
        (
            {
                "nodes": [NODE, {**NODE, "region": "b"}],
                "links": [{"between": ["default", "b"], "gigabitsPerSecond": 0}],
            },
            "links[0].gigabitsPerSecond",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(document: Any, field: str) -> None:
    with pytest.raises(InventoryError) as caught:
        inventory_from(document)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_nodes_of_a_cluster_are_read_by_their_labels() -> None:
    found = inventory_from_nodes(
        [
            kubernetes_node("cpu", {}, gpus=None),
            kubernetes_node("a", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}),
            kubernetes_node("b", {"nvidia.com/gpu.product": "NVIDIA-RTX-A6000"}, gpus="4"),
            kubernetes_node("ours", {"fulcrum.dev/accelerator": "L40S-48GB", "nvidia.com/gpu.product": "unknown"}),
            kubernetes_node("new", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", COUNT_LABEL: "8"}, gpus=None),
            kubernetes_node("priced", {"nvidia.com/gpu.product": "NVIDIA-L4", PRICE_LABEL: "0.7"}),
            kubernetes_node("cordoned", {"nvidia.com/gpu.product": "NVIDIA-L4"}, unschedulable=True),
            kubernetes_node("broken", {"nvidia.com/gpu.product": "NVIDIA-L4"}, ready="False"),
            kubernetes_node("odd", {"nvidia.com/gpu.product": "NVIDIA-X1"}),
            kubernetes_node("unlabelled", {}),
        ],
        prices={"H100-SXM-80GB": 3.0},
    )  # fmt: skip
    nodes = {node.name: node for node in found.inventory.nodes}
    assert {name: (node.accelerator.name, node.gpus, node.price_per_gpu_hour) for name, node in nodes.items()} == {
        "a": ("H100-SXM-80GB", 8, 3.0),
        "b": ("A6000-48GB", 4, 0.0),
        "ours": ("L40S-48GB", 8, 0.0),
        "new": ("A100-SXM-80GB", 8, 0.0),
        "priced": ("L4-24GB", 8, 0.7),
    }
    assert [line.split(":")[0] for line in found.left_out] == ["cordoned", "broken", "odd", "unlabelled"]


@pytest.mark.parametrize("chip", ["MI300X", "MI325X", "MI355X"])
def test_amds_nodes_are_read_by_the_labels_of_amds_node_labeller(chip: str) -> None:
    node = kubernetes_node("a", {"amd.com/gpu.product-name": f"AMD_Instinct_{chip}_OAM"}, gpus=None)
    node["status"]["allocatable"] = {"amd.com/gpu": "8"}
    (found,) = inventory_from_nodes([node]).inventory.nodes
    assert (found.accelerator.name.partition("-")[0], found.gpus) == (chip, 8)


def test_zones_become_regions_when_asked_for() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "topology.kubernetes.io/zone": "z"}
    assert inventory_from_nodes([kubernetes_node("a", labels)]).inventory.nodes[0].region == "default"
    assert inventory_from_nodes([kubernetes_node("a", labels)], by_zone=True).inventory.nodes[0].region == "z"


def test_a_cluster_without_usable_gpus_says_why() -> None:
    with pytest.raises(InventoryError, match="device plugin"):
        inventory_from_nodes([kubernetes_node("a", {}, gpus=None)])
    with pytest.raises(InventoryError, match="has 8 GPUs and no label"):
        inventory_from_nodes([kubernetes_node("a", {})])
    with pytest.raises(InventoryError, match="is not a price"):
        inventory_from_nodes([kubernetes_node("a", {"nvidia.com/gpu.product": "L4", PRICE_LABEL: "x"})])
