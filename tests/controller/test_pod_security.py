"""A pool's template cannot ask for more than the Pod Security level `restricted`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.types import ConditionType, InferenceClusterSpec
from fulcrum.controller.children import Owner, refused_templates
from fulcrum.controller.installation import Installation
from fulcrum.decide import ObservedWorker, Snapshot, WorkerPhase
from fulcrum.report import BalancePlan, plan
from fulcrum.rollout import CreateWorker, as_seen

OWNER = Owner(name="c", namespace="ns", uid="u")
PRIVILEGED = {"spec": {"hostNetwork": True}}


def spec_of(template: dict[str, Any], **pool: Any) -> InferenceClusterSpec:
    pools = [{"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"max": 2}, "template": template, **pool}]
    return msgspec.convert(
        {"model": {"name": "m"}, "pools": pools, "balance": {"mode": "Manual"}}, InferenceClusterSpec
    )


def worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


def security(**fields: Any) -> dict[str, Any]:
    return worker(securityContext=fields)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork: remove it"),
        ({"spec": {"hostPID": True}}, "spec.hostPID"),
        ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
        ({"spec": {"volumes": [{"name": "n", "hostPath": {"path": "/"}}]}}, "spec.volumes[n].hostPath"),
        ({"spec": {"volumes": [{"name": "cache", "nfs": {"server": "s"}}]}}, "spec.volumes[cache].nfs"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.securityContext.runAsNonRoot"),
        ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile.type"),
        ({"spec": {"securityContext": {"seccompProfile": None}}}, "securityContext.seccompProfile.type"),
        ({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}, "[kernel.msgmax]"),
        ({"spec": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}}, "seLinuxOptions"),
        (security(privileged=True), "spec.containers[worker].securityContext.privileged: remove it"),
        (security(allowPrivilegeEscalation=True), "allowPrivilegeEscalation: set it to false"),
        (security(capabilities={"add": ["SYS_ADMIN"]}), "capabilities.add: remove SYS_ADMIN"),
        (security(capabilities={"drop": ["NET_RAW"]}), "capabilities.drop: set it to [ALL]"),
        (security(capabilities={"add": ["IPC_LOCK"]}), "capabilities.add: remove IPC_LOCK"),
        (security(runAsUser=0), "runAsUser"),
        (security(procMount="Unmasked"), "procMount"),
        (security(appArmorProfile={"type": "Unconfined"}), "appArmorProfile.type"),
        (worker(securityContext=None), "allowPrivilegeEscalation"),
        (worker(ports=[{"containerPort": 9, "hostPort": 9}]), "ports[9].hostPort"),
        (worker(livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80}}), "livenessProbe.httpGet.host"),
        (worker(lifecycle={"preStop": {"httpGet": {"host": "h", "port": 1}}}), "lifecycle.preStop.httpGet.host"),
        ({"spec": {"initContainers": [{"name": "i", "image": "x"}]}}, "spec.initContainers[i].securityContext"),
        ({"spec": {"containers": [{"name": "side", "image": "x"}]}}, "spec.containers[side].securityContext"),
    ],
)
def test_what_is_above_the_level_is_refused_with_field_and_fix(template: dict[str, Any], field: str) -> None:
    spec = spec_of(template)
    message = refused_templates(OWNER, spec, Installation())["p"].message
    assert message.startswith("spec.pools[0].template.spec.")
    assert field in message
    assert "--allow-privileged-templates" in message
    assert refused_templates(OWNER, spec, Installation(allow_privileged_templates=True)) == {}


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": {"labels": {"team": "a"}}},
        {"spec": {"tolerations": [{"operator": "Exists"}], "volumes": [{"name": "cache", "emptyDir": {}}]}},
        {"spec": {"volumes": [{"name": "w", "csi": {"driver": "d"}}], "securityContext": {"runAsUser": 10001}}},
        worker(resources={"limits": {"memory": "64Gi"}}, env=[{"name": "UCX_LOG_LEVEL", "value": "info"}]),
        {
            "spec": {
                "containers": [
                    {
                        "name": "side",
                        "image": "x",
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ]
            }
        },
    ],
)
def test_what_workers_need_is_within_the_level(template: dict[str, Any]) -> None:
    assert refused_templates(OWNER, spec_of(template), Installation()) == {}


def test_memory_locks_come_with_rdma_and_not_with_a_template() -> None:
    rdma = {"rdma": {"resource": "rdma/ib"}}
    assert refused_templates(OWNER, spec_of({"metadata": {"labels": {"a": "b"}}}, **rdma), Installation()) == {}
    assert refused_templates(OWNER, spec_of(security(privileged=True), **rdma), Installation()) != {}


SIDECAR_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    ("template", "field", "allows"),
    [
        ({"spec": {"serviceAccountName": "fulcrum"}}, "spec.serviceAccountName", "ServiceAccount/fulcrum"),
        ({"spec": {"serviceAccount": "a"}}, "spec.serviceAccount", "ServiceAccount/a"),
        ({"spec": {"automountServiceAccountToken": True}}, "automountServiceAccountToken", "ServiceAccount/default"),
        (
            {"spec": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}},
            "spec.volumes[t].projected.sources.serviceAccountToken",
            "ServiceAccount/default",
        ),
        (
            {"spec": {"automountServiceAccountToken": None}},
            "spec.automountServiceAccountToken",
            "ServiceAccount/default",
        ),
        (
            {"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {
                "signerName": "example.com/s", "keyType": "ED25519", "credentialBundlePath": "c"
            }}]}}]}},
            "spec.volumes[v].projected.sources.podCertificate",
            "ServiceAccount/default",
        ),
        ({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}, "spec.volumes[v].secret", "Secret/s"),
        (
            {"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]}},
            "spec.volumes[v].projected.sources.secret",
            "Secret/s",
        ),
        (
            {"spec": {"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]}},
            "spec.volumes[v].csi.nodePublishSecretRef",
            "Secret/s",
        ),
        (worker(envFrom=[{"secretRef": {"name": "s"}}]), "containers[worker].envFrom.secretRef", "Secret/s"),
        (
            worker(env=[{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            "containers[worker].env[E].valueFrom.secretKeyRef",
            "Secret/s",
        ),
        (
            {"spec": {"initContainers": [
                {"name": "i", "securityContext": SIDECAR_SECURITY, "envFrom": [{"secretRef": {"name": "s"}}]}
            ]}},
            "spec.initContainers[i].envFrom.secretRef",
            "Secret/s",
        ),
        ({"metadata": {"labels": {"app": "payments"}}}, "metadata.labels[app]", "Label/app"),
        (
            {"metadata": {"labels": {"app.kubernetes.io/name": "x"}}},
            "metadata.labels[app.kubernetes.io/name]",
            "Label/app.kubernetes.io/name",
        ),
    ],
)  # fmt: skip
def test_what_a_template_takes_is_allowed_by_name_alone(template: dict[str, Any], field: str, allows: str) -> None:
    message = refused_templates(OWNER, spec_of(template), Installation())["p"].message
    assert field in message
    assert f"--template-may-use {allows}" in message
    assert refused_templates(OWNER, spec_of(template), Installation(templates_may_use=frozenset((allows,)))) == {}
    other = Installation(templates_may_use=frozenset(("Secret/other", "ServiceAccount/other", "Label/other")))
    assert refused_templates(OWNER, spec_of(template), other) != {}


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"metadata": {"finalizers": ["x/y"]}}, "metadata.finalizers"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"metadata": {"annotations": {"fulcrum.dev/replaces": "c-p-1"}}}, "annotations[fulcrum.dev/replaces]"),
        (
            {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}}},
            "use runtime/default",
        ),
        ({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}}, "runtime/default"),
        ({"spec": {"priorityClassName": "system-node-critical"}}, "spec.priorityClassName"),
    ],
)
def test_what_no_template_may_have(template: dict[str, Any], field: str) -> None:
    assert field in refused_templates(OWNER, spec_of(template), Installation())["p"].message


def test_a_pool_has_no_class_that_keeps_nodes_alive() -> None:
    spec = spec_of({}, priorityClassName="system-cluster-critical")
    assert "priorityClassName" in refused_templates(OWNER, spec, Installation())["p"].message


def test_labels_and_annotations_of_ones_own_are_kept() -> None:
    template = {
        "metadata": {
            "labels": {"team": "a", "kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "runtime/default"},
        }
    }
    assert refused_templates(OWNER, spec_of(template), Installation()) == {}


def planned(*workers: ObservedWorker) -> BalancePlan:
    spec, now = spec_of(PRIVILEGED), datetime.now(UTC)
    refused = refused_templates(OWNER, spec, Installation())
    seen = as_seen(workers, cluster="c", spec=spec, refused=refused, now=now)
    return plan(Snapshot(name="c", generation=1, spec=spec, workers=seen, refused=refused), now)


def test_no_worker_is_made_and_the_condition_says_why() -> None:
    decided = planned()
    assert not any(isinstance(action, CreateWorker) for action in decided.actions)
    degraded = next(c for c in decided.conditions if c.type is ConditionType.DEGRADED)
    assert (degraded.status.value, degraded.reason.value) == ("True", "TemplateRefused")
    assert "No worker of pool p is made: spec.pools[0].template.spec.hostNetwork: remove it" in degraded.message
    assert [event.reason.value for event in decided.events] == ["TemplateRefused"]


def test_workers_that_stand_are_neither_drained_nor_deleted_for_it() -> None:
    standing = [
        ObservedWorker(
            name=f"c-p-{ordinal}",
            uid=f"u{ordinal}",
            pool="p",
            ordinal=ordinal,
            role=role,
            role_epoch=0,
            spec_hash="before",
            phase=WorkerPhase.RUNNING,
            ready=True,
            deleting=False,
            role_acknowledged=True,
        )
        for ordinal, role in enumerate((Role.PREFILL, Role.DECODE))
    ]
    assert planned(*standing).actions == ()


def test_a_template_beside_rdma_as_root_is_judged_by_itself() -> None:
    """Root is what the pool's field asks for; what the template adds is its own."""
    rdma, labels = {"runAsRoot": True}, {"metadata": {"annotations": {"a": "b"}}}
    spec = msgspec.convert(
        {"model": {"name": "m"}, "pools": [{"name": "p", "accelerator": "H100-SXM-80GB", "workers": {"max": 1},
                                            "rdma": rdma, "template": labels}]},
        InferenceClusterSpec,
    )  # fmt: skip
    assert refused_templates(OWNER, spec, Installation()) == {}
    host = msgspec.structs.replace(spec.pools[0], template={"spec": {"hostNetwork": True}})
    refused = refused_templates(OWNER, msgspec.structs.replace(spec, pools=(host,)), Installation())
    assert "hostNetwork" in refused["p"].message
    assert "runAsUser" not in refused["p"].message
