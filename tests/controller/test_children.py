"""Golden tables of what an InferenceCluster consists of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.errors import InvalidValueError
from fulcrum.api.gateway import GatewayConfig, GatewayLimits, GatewayPool, GatewayTracing
from fulcrum.api.names import API_VERSION, KIND, Role
from fulcrum.api.objects import load_inference_cluster, to_dict
from fulcrum.api.types import InferenceClusterSpec, ModelTask
from fulcrum.api.worker import WorkerConfig
from fulcrum.controller.children import Manifest, Owner, children, worker_pod
from fulcrum.controller.children.gateway_deployment import gateway_config
from fulcrum.controller.children.internal_secret import internal_secret, token_of
from fulcrum.controller.children.overlay import overlay
from fulcrum.controller.children.pod_security import violations
from fulcrum.controller.installation import Installation
from fulcrum.rollout.revision import worker_config, worker_revision

OWNER = Owner(name="chat", namespace="ml", uid="u-1")


def make_spec(**changes: Any) -> InferenceClusterSpec:
    document = {
        "model": {"name": "m", "maxModelLen": 4096},
        "pools": [{"name": "cpu", "accelerator": "cpu", "workers": {"max": 4}}],
        **changes,
    }
    return msgspec.convert(document, InferenceClusterSpec)


def gpu_spec(template: dict[str, Any] | None = None, **changes: Any) -> InferenceClusterSpec:
    pool = {
        "name": "h100",
        "accelerator": "H100-SXM-80GB",
        "parallelism": {"tensor": 2, "pipeline": 2},
        "workers": {"max": 4},
        "template": template or {},
    }
    return make_spec(pools=[pool], **changes)


def pod_of(
    spec: InferenceClusterSpec, *, ordinal: int = 0, role: Role = Role.DECODE, token_fingerprint: str | None = None
) -> Manifest:
    image = Installation().worker_image
    pool = spec.pools[0]
    return worker_pod(OWNER, spec, pool, ordinal=ordinal, role=role, image=image, token_fingerprint=token_fingerprint)


def container(pod: Manifest) -> Manifest:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "worker")


def env(pod: Manifest) -> dict[str, Manifest]:
    return {item["name"]: item for item in container(pod)["env"]}


def test_the_worker_pod_of_a_cpu_pool() -> None:
    pod = pod_of(make_spec(), ordinal=3)
    config = msgspec.json.decode(env(pod)["FULCRUM_WORKER_CONFIG"]["value"], type=WorkerConfig)
    assert (config.cluster, config.pool, config.model, config.served_name) == ("chat", "cpu", "m", "chat")
    assert (config.role, config.role_epoch, config.max_model_len, config.accelerator) == (Role.DECODE, 0, 4096, "cpu")
    spec_hash = pod["metadata"]["annotations"].pop("fulcrum.dev/spec-hash")
    assert len(spec_hash) == 10
    assert pod["metadata"] == {
        "name": "chat-cpu-3",
        "namespace": "ml",
        "labels": {
            "app.kubernetes.io/name": "fulcrum",
            "app.kubernetes.io/instance": "chat",
            "app.kubernetes.io/component": "worker",
            "app.kubernetes.io/managed-by": "fulcrum",
            "fulcrum.dev/cluster": "chat",
            "fulcrum.dev/pool": "cpu",
            "fulcrum.dev/role": "decode",
            "llm-d.ai/role": "decode",
        },
        "annotations": {
            "fulcrum.dev/role-epoch": "0",
            "fulcrum.dev/release-image": Installation().worker_image,
        },
        "ownerReferences": [
            {
                "apiVersion": "fulcrum.dev/v1alpha1",
                "kind": "InferenceCluster",
                "name": "chat",
                "uid": "u-1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    container(pod)["env"] = list(env(pod))
    assert pod["spec"] == {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 150,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {
                    "matchLabels": {
                        "fulcrum.dev/cluster": "chat",
                        "app.kubernetes.io/component": "worker",
                        "fulcrum.dev/pool": "cpu",
                    }
                },
            }
        ],
        "affinity": {
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "topology.kubernetes.io/zone",
                            "labelSelector": {
                                "matchLabels": {"fulcrum.dev/cluster": "chat", "app.kubernetes.io/component": "worker"}
                            },
                        },
                    }
                ]
            }
        },
        "containers": [
            {
                "name": "worker",
                "image": "ghcr.io/fulcrum/worker:0.1.0",
                "command": ["python3", "-m", "fulcrum_worker"],
                "env": ["FULCRUM_WORKER_CONFIG", "POD_IP", "POD_NAME", "POD_NAMESPACE"],
                "ports": [
                    {"name": "engine", "containerPort": 8000},
                    {"name": "agent", "containerPort": 8001},
                    {"name": "nixl", "containerPort": 5600},
                ],
                "startupProbe": {
                    "httpGet": {"path": "/readyz?startup=1", "port": 8001},
                    "periodSeconds": 1,
                    "timeoutSeconds": 5,
                    "failureThreshold": 7320,
                },
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": 8001},
                    "periodSeconds": 2,
                    "timeoutSeconds": 5,
                    "failureThreshold": 3,
                },
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": 8001},
                    "periodSeconds": 10,
                    "timeoutSeconds": 5,
                    "failureThreshold": 3,
                },
                "resources": {"requests": {"cpu": "250m", "memory": "2048Mi"}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                },
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}, {"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    }


def test_images_are_those_of_the_operators_release_unless_the_spec_names_others() -> None:
    installation = Installation(gateway_image="registry/g:2")
    spec = make_spec()
    (deployment,) = (
        child for child in children(OWNER, spec, installation, token_fingerprint="f1") if child["kind"] == "Deployment"
    )
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "registry/g:2"
    named = make_spec(engine={"image": "mine:1"}, gateway={"image": "mine:2"})
    (deployment,) = (
        child for child in children(OWNER, named, installation, token_fingerprint="f1") if child["kind"] == "Deployment"
    )
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:2"
    assert container(pod_of(named))["image"] == "mine:1"


def test_configuration_documents_hold_no_defaults_and_tolerate_what_a_newer_operator_adds() -> None:
    document = msgspec.json.decode(env(pod_of(make_spec()))["FULCRUM_WORKER_CONFIG"]["value"])
    assert document == {
        "cluster": "chat",
        "pool": "cpu",
        "model": "m",
        "servedName": "chat",
        "accelerator": "cpu",
        "maxModelLen": 4096,
        "kvCache": {"dtype": "auto"},  # without it an agent of release 0.1.0 takes fp8
        "role": "decode",
    }
    newer = {**document, "fromTheFuture": 1, "kvCache": {"dtype": "bf16", "tiering": {}}}
    config = msgspec.convert(newer, WorkerConfig)
    assert (config.kv_cache.dtype, config.kv_cache.block_size) == ("bf16", None)
    gateway = {"cluster": "c", "servedName": "s", "model": "m", "later": {}, "limits": {"maxBodyBytes": 1, "more": 2}}
    assert msgspec.convert(gateway, GatewayConfig).limits.max_body_bytes == 1


def test_a_gpu_worker_asks_for_its_gpus_its_node_and_shared_memory() -> None:
    pod = pod_of(
        gpu_spec(
            model={"name": "m", "credentials": {"secretName": "hf"}, "cache": {"persistentVolumeClaim": "models"}},
            balance={"flip": {"drainTimeout": "5m"}},
        )
    )
    assert container(pod)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert pod["spec"]["nodeSelector"] == {"fulcrum.dev/accelerator": "H100-SXM-80GB"}
    assert container(pod)["resources"]["requests"] == {"nvidia.com/gpu": "4", "cpu": "8", "memory": "32Gi"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod["spec"]["volumes"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}} in pod["spec"]["volumes"]
    assert env(pod)["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert pod["spec"]["terminationGracePeriodSeconds"] == 330


@pytest.mark.parametrize(
    ("slo", "flip", "grace_seconds"),
    [
        ({}, {}, 150),
        ({"ttft": "3s", "tpot": "1s"}, {}, 1057),
        ({"tpot": "10s"}, {}, 3630),
        # Objects from before have it stored.
        ({"tpot": "1s"}, {"drainTimeout": "120s"}, 150),
        ({"tpot": "1s"}, {"drainTimeout": "0s"}, 30),
    ],
)
def test_a_drain_lasts_a_long_answer_within_the_promise(
    slo: dict[str, str], flip: dict[str, str], grace_seconds: int
) -> None:
    pod = pod_of(gpu_spec(slo=slo, balance={"flip": flip}))
    assert pod["spec"]["terminationGracePeriodSeconds"] == grace_seconds


def test_a_pools_template_is_laid_over_and_identity_stays() -> None:
    pod = pod_of(
        gpu_spec(
            template={
                "metadata": {"labels": {"team": "a", "fulcrum.dev/cluster": "other"}, "annotations": {"x": "y"}},
                "spec": {
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "nodeSelector": {"fulcrum.dev/accelerator": None, "gpu": "h100"},
                    "containers": [
                        {
                            "name": "worker",
                            "resources": {"limits": {"memory": "64Gi"}},
                            "env": [{"name": "EXTRA", "value": "1"}],
                            "volumeMounts": [{"name": "models", "mountPath": "/cache"}],
                        },
                        {"name": "sidecar", "image": "s"},
                    ],
                    "volumes": [{"name": "cache", "hostPath": {"path": "/nvme"}}],
                },
            }
        )
    )
    assert pod["metadata"]["labels"]["fulcrum.dev/cluster"] == "chat"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["x"] == "y"
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert [c["name"] for c in pod["spec"]["containers"]] == ["worker", "sidecar"]
    assert container(pod)["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "64Gi"}
    assert set(env(pod)) == {"FULCRUM_WORKER_CONFIG", "POD_IP", "POD_NAME", "POD_NAMESPACE", "EXTRA"}
    assert {"name": "models", "mountPath": "/cache"} in container(pod)["volumeMounts"]
    assert {"name": "cache", "hostPath": {"path": "/nvme"}} in pod["spec"]["volumes"]


@pytest.mark.parametrize(
    ("limit", "request_of_ours"), [("100m", None), ("7", None), ("7.5", None), ("8", "8"), (9, "8")]
)
def test_a_request_of_ours_is_never_above_a_limit_of_the_template(
    limit: str | int, request_of_ours: str | None
) -> None:
    worker = {"name": "worker", "resources": {"limits": {"cpu": limit}}}
    found = container(pod_of(gpu_spec(template={"spec": {"containers": [worker]}})))["resources"]
    assert found["limits"]["cpu"] == limit
    assert found["requests"].get("cpu") == request_of_ours
    assert "memory" in found["requests"]


@pytest.mark.parametrize("entry", [None, {"name": "VLLM_API_KEY", "value": "mine"}])
def test_a_worker_asks_for_its_clusters_token_whatever_its_template_says(entry: Manifest | None) -> None:
    template = (
        {"spec": {"containers": [{"name": "worker", "env": [entry]}, {"name": "s", "image": "i"}]}} if entry else {}
    )
    pod = pod_of(gpu_spec(template), token_fingerprint="f1")
    assert env(pod)["VLLM_API_KEY"] == {
        "name": "VLLM_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "chat-internal", "key": "token"}},
    }
    assert pod["metadata"]["annotations"]["fulcrum.dev/internal-token"] == "f1"
    assert "api-key" not in str(container(pod)["command"])


def test_the_token_belongs_to_no_revision_so_that_an_upgrade_restarts_nobody() -> None:
    spec = make_spec()
    with_token, without = pod_of(spec, token_fingerprint="f1"), pod_of(spec)
    hashes = [each["metadata"]["annotations"]["fulcrum.dev/spec-hash"] for each in (with_token, without)]
    assert hashes[0] == hashes[1]
    assert "VLLM_API_KEY" not in env(without)
    assert "fulcrum.dev/internal-token" not in without["metadata"]["annotations"]


def test_gateways_get_the_token_from_the_secret_and_are_replaced_with_it() -> None:
    def template(fingerprint: str) -> Manifest:
        made = children(OWNER, make_spec(), token_fingerprint=fingerprint)
        return next(child for child in made if child["kind"] == "Deployment")["spec"]["template"]

    (container,) = template("f1")["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "chat-internal", "key": "token"}}
    assert {"name": "FULCRUM_INTERNAL_TOKEN", "valueFrom": reference} in container["env"]
    assert template("f1") == template("f1")
    assert template("f1") != template("f2")


def test_the_secret_cannot_be_changed_and_goes_with_its_cluster() -> None:
    secret = internal_secret(OWNER, "abc")
    assert (secret["metadata"]["name"], secret["immutable"], secret["data"]) == (
        "chat-internal",
        True,
        {"token": "YWJj"},
    )
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert token_of(secret) == "abc"


@pytest.mark.parametrize(
    "data", [None, {}, {"other": "YWJj"}, {"token": ""}, {"token": "Y"}, {"token": "YQ0K"}, {"token": "/w=="}]
)
def test_a_secret_without_a_usable_token(data: Manifest | None) -> None:
    assert token_of({"data": data}) is None


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"args": [1]}, {"args": [2]}, {"args": [2]}),
        ({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {}}]},
            {"env": [{"name": "A", "valueFrom": {}}]},
        ),
        (
            {"ports": [{"containerPort": 1}]},
            {"ports": [{"containerPort": 1, "name": "x"}]},
            {"ports": [{"containerPort": 1, "name": "x"}]},
        ),
    ],
)
def test_overlay(base: Manifest, patch: Manifest, merged: Manifest) -> None:
    before = msgspec.json.encode(base)
    assert overlay(base, patch) == merged
    assert msgspec.json.encode(base) == before


def test_the_gateway_knows_policy_classes_and_what_pools_admit() -> None:
    premium = {"name": "premium", "priority": 9, "reserved": 0.1, "match": {"header": "x-tier", "value": "gold"}}
    admission = {"policy": "Predictive", "classes": [premium, {"name": "rest", "priority": 1}]}
    pools = [
        {"name": "gpu", "accelerator": "L4-24GB", "workers": {"max": 2}},
        {"name": "cpu", "accelerator": "cpu", "workers": {"max": 2}, "admits": {"classes": ["rest"]}},
    ]
    spec = make_spec(admission=admission, pools=pools, gateway={"replicas": 3}, slo={"attainment": 0.9})
    (deployment,) = (child for child in children(OWNER, spec, token_fingerprint="f1") if child["kind"] == "Deployment")
    document = deployment["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"]
    config = msgspec.json.decode(document, type=GatewayConfig)
    assert config.admission == spec.admission
    assert [(pool.name, pool.admits) for pool in config.pools] == [("gpu", None), ("cpu", spec.pools[1].admits)]
    assert config.slo_attainment == 0.9


def test_api_keys_are_mounted_and_need_no_right_to_read_secrets() -> None:
    made = {
        child["kind"]: child
        for child in children(OWNER, make_spec(gateway={"auth": {"secretName": "keys"}}), token_fingerprint="f1")
    }
    assert all("secrets" not in rule["resources"] for rule in made["Role"]["rules"])
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if "secret" in each)
    assert volume["secret"] == {"secretName": "keys"}
    (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"])
    config = msgspec.json.decode(pod["containers"][0]["env"][0]["value"], type=GatewayConfig)
    assert (mount["mountPath"], mount["readOnly"]) == (config.api_keys_directory, True)


PLACED = {
    "requestTimeout": "90s",
    "maxBodySize": "128Mi",
    "resources": {"limits": {"cpu": "2"}},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"edge": ""},
    "tolerations": [
        {"key": "dedicated", "value": "edge"},
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    ],
    "priorityClassName": "edge",
}


def gateway_children(gateway: dict[str, Any]) -> tuple[Manifest, Manifest]:
    """Deployment and Service of the gateways."""
    made = {child["kind"]: child for child in children(OWNER, make_spec(gateway=gateway), token_fingerprint="f1")}
    return made["Deployment"], made["Service"]


def gateway_limits(gateway: dict[str, Any]) -> GatewayLimits:
    (container,) = gateway_children(gateway)[0]["spec"]["template"]["spec"]["containers"]
    return msgspec.json.decode(container["env"][0]["value"], type=GatewayConfig).limits


def test_gateway_pods_are_placed_as_the_spec_says_and_stay_restricted() -> None:
    pod = gateway_children(PLACED)[0]["spec"]["template"]["spec"]
    assert list(violations(pod)) == []
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"edge": ""}
    assert pod["tolerations"] == [
        {"key": "dedicated", "value": "edge"},
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    ]
    assert pod["priorityClassName"] == "edge"
    # Without a request Kubernetes reserves as much as the limit: a default of ours might be above it.
    assert pod["containers"][0]["resources"] == {"requests": {"memory": "256Mi"}, "limits": {"cpu": "2"}}


def test_requests_of_a_gateway_are_limited_as_the_spec_says() -> None:
    limits = gateway_limits(PLACED)
    assert (limits.request_timeout_seconds, limits.max_body_bytes) == (90.0, 128 * 2**20)
    assert limits.body_timeout_seconds == 128  # a mebibyte a second
    # 16,384 tokens at twice the default TPOT; small bodies have their minute.
    assert gateway_limits({}).request_timeout_seconds > 16_384 * 0.2
    assert gateway_limits({}) == gateway_limits({"maxBodySize": "8Mi"}) == GatewayLimits()


@pytest.mark.parametrize(
    ("gateway", "port"), [({}, 8082), ({"image": "registry.example.com/fulcrum:0.1.0"}, 8080)], ids=["ours", "pinned"]
)
def test_probes_ask_the_port_that_clients_cannot_take(gateway: dict[str, Any], port: int) -> None:
    (container,) = gateway_children(gateway)[0]["spec"]["template"]["spec"]["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert [probe["port"] for probe in probes] == [port] * 3
    assert [probe["path"] for probe in probes] == ["/health", "/ready", "/health"]


def gateway_config_of(gateway: dict[str, Any], engine: dict[str, Any] | None = None) -> GatewayConfig:
    spec = make_spec(gateway=gateway, **({"engine": engine} if engine is not None else {}))
    made = {child["kind"]: child for child in children(OWNER, spec, token_fingerprint="f1")}
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    return msgspec.json.decode(container["env"][0]["value"], type=GatewayConfig)


def test_gateways_and_engines_trace_as_the_spec_says() -> None:
    tracing = {"endpoint": "http://collector:4318", "samplingRatio": 0.2}
    for engine, url in ((False, None), (True, "http://collector:4318/v1/traces")):
        spec = make_spec(telemetry={"tracing": {**tracing, "engine": engine}})
        told = gateway_config(OWNER, spec).tracing
        assert told == GatewayTracing(endpoint="http://collector:4318", sampling_ratio=0.2)
        worker = worker_config(cluster="c", spec=spec, pool=spec.pools[0], role=Role.MIXED)
        assert worker.traces_url == url
    assert gateway_config(OWNER, make_spec()).tracing is None


def test_workers_and_gateways_of_a_pooling_model_know_that_it_is_one() -> None:
    pool = {"name": "cpu", "accelerator": "cpu", "workers": {"max": 4}, "roles": ["mixed"]}
    spec = make_spec(model={"name": "m", "task": "Pooling"}, pools=[pool])
    worker = worker_config(cluster="c", spec=spec, pool=spec.pools[0], role=Role.MIXED)
    assert (worker.pools, worker.exchanges_kv, gateway_config(OWNER, spec).task) == (True, False, ModelTask.POOLING)
    usual = make_spec(pools=[pool])
    said = worker_revision(cluster="c", spec=usual, pool=usual.pools[0])
    assert said != worker_revision(cluster="c", spec=spec, pool=spec.pools[0]), "another engine"


def test_how_clients_are_treated_is_as_the_spec_says() -> None:
    config = gateway_config_of(
        {"idleTimeout": "2m", "heartbeat": "15s", "cors": {"allowedOrigins": ["https://a.example.com"]}},
        {"mediaDomains": ["images.example.com"]},
    )
    assert config.limits.idle_timeout_seconds == 120
    assert (config.heartbeat_seconds, config.cors_origins) == (15, ("https://a.example.com",))
    assert config.media_domains == ("images.example.com",)
    plain = gateway_config_of({})
    assert (plain.record, gateway_config_of({"record": "Off"}).record) == (True, False)
    assert (plain.heartbeat_seconds, plain.cors_origins, plain.media_domains) == (None, (), ())
    assert plain.limits.idle_timeout_seconds > 600, "longer than a balancer keeps an idle connection"


@pytest.mark.parametrize(
    ("args", "forced"),
    [
        ([], False),
        (["--enable-force-include-usage"], True),
        (["--enable_force_include_usage"], True),
        (["--enable-force-include-usage", "--no-enable-force-include-usage"], False),
    ],
)
def test_a_gateway_knows_that_engines_always_tell_usage(args: list[str], forced: bool) -> None:
    assert gateway_config_of({}, {"args": args}).force_include_usage is forced


def test_more_gateways_restart_none() -> None:
    two, three = (gateway_children({"replicas": replicas})[0]["spec"] for replicas in (2, 3))
    assert (two.pop("replicas"), three.pop("replicas")) == (2, 3)
    assert two == three


def test_a_spec_that_says_nothing_of_them_leaves_gateway_pods_as_they_are() -> None:
    pod = gateway_children({})[0]["spec"]["template"]["spec"]
    assert pod.keys() & {"nodeSelector", "tolerations", "imagePullSecrets", "priorityClassName"} == set()
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "500m", "memory": "256Mi"}}
    assert list(violations(pod)) == []


def test_the_service_is_of_the_type_that_the_spec_says() -> None:
    service = gateway_children({})[1]
    assert service["spec"]["type"] == "ClusterIP"
    assert "annotations" not in service["metadata"]
    service = gateway_children(
        {
            "service": {
                "type": "LoadBalancer",
                "annotations": {"example.com/scheme": "internal"},
                "nodePort": 30080,
                "loadBalancerClass": "example.com/nlb",
                "loadBalancerSourceRanges": ["203.0.113.0/24"],
                "externalTrafficPolicy": "Local",
            }
        }
    )[1]
    assert service["metadata"]["annotations"] == {"example.com/scheme": "internal"}
    assert service["spec"] == {
        "type": "LoadBalancer",
        "selector": OWNER.selector("gateway"),
        "ports": [{"name": "http", "port": 8080, "targetPort": 8080, "protocol": "TCP", "nodePort": 30080}],
        "loadBalancerClass": "example.com/nlb",
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
        "externalTrafficPolicy": "Local",
    }


def test_a_label_that_kubernetes_would_refuse_is_an_error_that_names_it() -> None:
    spec = to_dict(make_spec()) | {"gateway": {"nodeSelector": {"no label": "x"}}}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "c"}, "spec": spec}
    with pytest.raises(InvalidValueError, match=r"spec\.gateway\.nodeSelector"):
        load_inference_cluster(document)


def test_the_gateway_is_replaced_without_a_gap_and_may_only_read_pods_and_its_cluster() -> None:
    wanted = children(OWNER, make_spec(), token_fingerprint="f1", least_available=3)
    made = {(child["kind"], child["metadata"]["name"]): child for child in wanted}
    assert list(made) == [
        ("ServiceAccount", "chat-gateway"),
        ("Role", "chat-gateway"),
        ("RoleBinding", "chat-gateway"),
        ("Service", "chat-gateway"),
        ("NetworkPolicy", "chat-gateway"),
        ("NetworkPolicy", "chat-workers"),
        ("Deployment", "chat-gateway"),
        ("PodDisruptionBudget", "chat-gateway"),
        ("PodDisruptionBudget", "chat-workers"),
    ]
    assert made["Role", "chat-gateway"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["fulcrum.dev"],
            "resources": ["inferenceclusters"],
            "resourceNames": ["chat"],
            "verbs": ["list", "watch"],
        },
    ]
    deployment = made["Deployment", "chat-gateway"]["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = deployment["template"]["spec"]
    config = msgspec.json.decode(pod["containers"][0]["env"][0]["value"], type=GatewayConfig)
    assert config == GatewayConfig(
        cluster="chat",
        served_name="chat",
        model="m",
        max_model_len=4096,
        slo_ttft_seconds=2.0,
        slo_tpot_seconds=0.1,
        slo_attainment=0.95,
        pools=(GatewayPool(name="cpu"),),
    )
    assert pod["terminationGracePeriodSeconds"] == 135
    assert pod["containers"][0]["command"] == ["fulcrum", "gateway"]
    assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    service = made["Service", "chat-gateway"]["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"]
    assert made["PodDisruptionBudget", "chat-workers"]["spec"]["minAvailable"] == 3
    for name in ("chat-workers", "chat-gateway"):
        assert made["PodDisruptionBudget", name]["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    for child in made.values():
        assert child["metadata"]["namespace"] == "ml"
        assert child["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def ingress(name: str) -> dict[int | None, list[Manifest] | None]:
    """Who may connect, by port; None is every port, or everyone."""
    made = {
        c["metadata"]["name"]: c
        for c in children(OWNER, make_spec(), token_fingerprint="f1")
        if c["kind"] == "NetworkPolicy"
    }
    assert made[name]["spec"]["policyTypes"] == ["Ingress"]
    rules = made[name]["spec"]["ingress"]
    return {
        port: [peer for rule in rules if port in _ports(rule) for peer in rule.get("from") or ()] or None
        for rule in rules
        for port in _ports(rule)
    }


def _ports(rule: Manifest) -> list[int | None]:
    return [port["port"] for port in rule.get("ports") or ()] or [None]


def test_workers_let_in_gateways_the_operator_prometheus_and_each_other_only() -> None:
    gateways = {"podSelector": {"matchLabels": OWNER.selector("gateway")}}
    workers = {"podSelector": {"matchLabels": OWNER.selector("worker")}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "fulcrum-system"}},
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/name": "fulcrum", "app.kubernetes.io/component": "operator"}
        },
    }
    prometheus = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
    assert ingress("chat-workers") == {
        None: [workers],
        8000: [gateways, prometheus],
        8001: [gateways, operator, prometheus],
    }
    assert ingress("chat-gateway") == {8080: None, 8082: [gateways, operator, prometheus]}


@pytest.mark.parametrize(
    ("gateway", "salted"),
    [
        ({}, False),
        ({"auth": {"secretName": "keys"}}, False),
        ({"auth": {"secretName": "keys", "prefixCache": "PerKey"}}, True),
    ],
)
def test_a_prefix_cache_for_each_key_is_an_option(gateway: dict[str, Any], salted: bool) -> None:
    (deployment,) = (
        c for c in children(OWNER, make_spec(gateway=gateway), token_fingerprint="f1") if c["kind"] == "Deployment"
    )
    document = deployment["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"]
    assert msgspec.json.decode(document, type=GatewayConfig).salt_prefixes is salted
