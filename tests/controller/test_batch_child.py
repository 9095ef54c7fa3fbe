"""The children of `spec.batch`: one Pod on the claim, whose configuration the batch process reads."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.controller.test_children import OWNER, make_spec

from fulcrum.api.batch import BatchConfig, BatchLimits, GatewayBatch
from fulcrum.controller.children import Manifest, children
from fulcrum.controller.children.gateway_deployment import gateway_config

CLASSES = [
    {"name": "chat", "priority": 10},
    {"name": "spare", "kind": "Batch", "priority": 0, "match": {"header": "x-class", "value": "batch"}},
]
WITH_BATCH: dict[str, Any] = {"admission": {"classes": CLASSES}, "batch": {"claim": "files", "maxFileSize": "1Mi"}}


def named(made: tuple[Manifest, ...]) -> dict[str, Manifest]:
    return {child["kind"]: child for child in made if child["metadata"]["name"] == "chat-batch"}


def test_one_pod_on_the_claim() -> None:
    spec = make_spec(**WITH_BATCH, gateway={"maxBodySize": "2Mi"})
    made = named(children(OWNER, spec, token_fingerprint="f1", gateway_address="10.0.0.1"))
    assert made.keys() == {"NetworkPolicy", "Deployment"}
    (rule,) = made["NetworkPolicy"]["spec"]["ingress"]
    gateways, operator = rule["from"]
    assert gateways == {"podSelector": {"matchLabels": OWNER.selector("gateway")}}
    assert operator["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    deployment = made["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    (files,) = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert files["persistentVolumeClaim"] == {"claimName": "files"}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == files["name"]]
    document = next(each["value"] for each in container["env"] if each["name"] == "FULCRUM_BATCH_CONFIG")
    assert msgspec.json.decode(document, type=BatchConfig) == BatchConfig(
        cluster="chat",
        gateway_host="10.0.0.1",
        directory=mount["mountPath"],
        class_header="x-class",
        class_value="batch",
        limits=BatchLimits(max_file_bytes=1 << 20, max_line_bytes=2 << 20),
    )
    assert gateway_config(OWNER, spec).batch == GatewayBatch(class_name="spare")


def test_it_waits_for_the_address_of_the_gateways() -> None:
    made = named(children(OWNER, make_spec(**WITH_BATCH), token_fingerprint="f1"))
    assert made.keys() == {"NetworkPolicy"}


def test_without_it_there_is_nothing_and_what_there_was_is_stopped() -> None:
    with_batch = named(children(OWNER, make_spec(**WITH_BATCH), token_fingerprint="f1", gateway_address="10.0.0.1"))[
        "Deployment"
    ]
    spec = make_spec()
    assert gateway_config(OWNER, spec).batch is None
    assert named(children(OWNER, spec, token_fingerprint="f1", gateway_address="10.0.0.1")) == {}
    stopped = named(children(OWNER, spec, token_fingerprint="f1", live_batch=with_batch))["Deployment"]
    assert stopped["spec"] == {**with_batch["spec"], "replicas": 0}
