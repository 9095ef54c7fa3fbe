"""The kubelet against the embedded API server: from a Pod to its processes and back to its status."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from tests.local.kubelet.conftest import NODE
from tests.machine import deadline_seconds

if TYPE_CHECKING:
    from tests.local.kubelet.conftest import Client

Json = dict[str, Any]
pytestmark = pytest.mark.integration
SERVE = """
import http.server, os
http.server.HTTPServer((os.environ['IP'], 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
ON_TERM = """
import os, signal, time
def end(*_):
    print({said})
    while not os.path.exists({go!r}):
        time.sleep(0.1)
    raise SystemExit
signal.signal(signal.SIGTERM, end)
print('up')
time.sleep(1e6)
"""
NIL_KEY = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "nil", "key": "k"}}}
POD_IP = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def container(*command: str, name: str = "main", **more: Any) -> Json:
    return {"name": name, "image": "none", "command": list(command), **more}


def python(code: str, *, name: str = "main", **more: Any) -> Json:
    return container("python3", "-u", "-c", code, name=name, **more)


def state(pod: Json, index: int = 0, field: str = "containerStatuses") -> Json:
    found: Json = pod["status"][field][index]
    return found


def is_ready(pod: Json) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"]["conditions"])


async def test_node_is_registered_with_capacity_and_lease(client: Client) -> None:
    node = await client.api.get("/api/v1/nodes/test-node")
    assert node["metadata"]["labels"]["fulcrum.dev/process-kubelet"] == "true"
    assert int(node["status"]["capacity"]["cpu"]) >= 1
    assert any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])
    lease = await client.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/test-node")
    assert lease["spec"]["holderIdentity"] == "test-node"


async def test_a_pod_is_ready_as_soon_as_its_probe_says_so(client: Client) -> None:
    probe: Json = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": round(deadline_seconds(600))}
    asked = time.monotonic()
    await client.make(
        "ready",
        python(SERVE, env=[POD_IP], ports=[{"name": "web", "containerPort": 8000}], readinessProbe=probe,
               startupProbe=probe),
    )  # fmt: skip
    pod = await client.until("ready", is_ready)
    assert time.monotonic() - asked < probe["periodSeconds"]  # not a period later
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"].startswith(client.world.cidr.split(".0")[0])
    assert pod["status"]["qosClass"] == "BestEffort"
    assert (state(pod)["ready"], state(pod)["started"], state(pod)["restartCount"]) == (True, True, 0)
    # Nothing happens: nothing is written.
    version = pod["metadata"]["resourceVersion"]
    await asyncio.sleep(1.5)
    assert (await client.get("ready"))["metadata"]["resourceVersion"] == version
    await client.delete("ready")
    assert client.world.processes(pod["metadata"]["uid"]) == []


async def test_environment_is_built_from_scratch(client: Client) -> None:
    await client.api.create(
        "/api/v1/namespaces/default/configmaps",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"COLOUR": "red"}},
    )
    await client.api.create(
        "/api/v1/namespaces/default/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": "s3cret"}},
    )
    env = [
        POD_IP,
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "GREETING", "value": "$(NAME)@$(IP) $$(IP) $(NOBODY)"},
    ]
    await client.make(
        "env",
        container(
            "sh", "-c", "env; cat $FULCRUM_VOLUME_FILES/token; echo; ls -ld $FULCRUM_VOLUME_FILES; exit 0", "$(NAME)",
            env=env, envFrom=[{"configMapRef": {"name": "settings"}}], resources={"limits": {"memory": "64Mi"}},
        ),
        restartPolicy="Never",
        volumes=[{"name": "files", "secret": {"secretName": "keys"}}],
    )  # fmt: skip
    pod = await client.until("env", lambda pod: pod["status"]["phase"] == "Succeeded")
    text = await client.logs("env")
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert lines["GREETING"] == f"env@{pod['status']['podIP']} $(IP) $(NOBODY)"
    assert (lines["COLOUR"], lines["TOKEN"], lines["LIMIT"], lines["PASSED"]) == ("red", "s3cret", "64", "on")
    assert "SECRET_OF_HOST" not in lines
    assert "\ns3cret\n" in text
    assert "drwx------" in text
    kubeconfig = client.world.state / "pods" / pod["metadata"]["uid"] / "kubeconfig"
    assert lines["KUBECONFIG"] == str(kubeconfig)
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    await client.delete("env")
    await client.poll(lambda: not kubeconfig.parent.exists())


async def test_services_are_found_by_the_environment(client: Client) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "links"}, "spec": {"ports": [{"port": 80}]}}
    made = await client.api.create("/api/v1/namespaces/default/services", service)
    address = made["spec"]["clusterIP"]
    said = container("sh", "-c", "echo [$LINKS_SERVICE_HOST:$LINKS_SERVICE_PORT] [$KUBERNETES_SERVICE_HOST]")
    await client.make("linked", said)
    await client.printed("linked", f"[{address}:80] [127.0.0.1]")
    await client.make("unlinked", said, enableServiceLinks=False)
    await client.printed("unlinked", "[:] [127.0.0.1]")
    await client.delete("linked")
    await client.delete("unlinked")
    await client.api.delete("/api/v1/namespaces/default/services/links")


async def test_mount_paths_and_the_token_are_found_where_the_pod_says(client: Client) -> None:
    token_path = "/var/run/secrets/kubernetes.io/serviceaccount"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mounted"}, "data": {"word": "found"}}
    await client.api.create("/api/v1/namespaces/default/configmaps", config)
    mounts = [{"name": "settings", "mountPath": "/no/such/folder"}]
    env = [{"name": "WHERE", "value": "/no/such/folder/word"}, {"name": "TOKEN", "value": f"{token_path}/token"}]
    await client.make(
        "mounts",
        container("sh", "-c", "cat /no/such/folder/word $WHERE; echo; wc -c < $TOKEN", volumeMounts=mounts, env=env),
        restartPolicy="Never",
        volumes=[{"name": "settings", "configMap": {"name": "mounted"}}],
    )
    await client.until("mounts", lambda pod: pod["status"]["phase"] == "Succeeded")
    words, size = (await client.logs("mounts")).split()
    assert words == "foundfound"
    assert int(size) > 100
    await client.delete("mounts")


async def test_the_pod_is_its_service_account(client: Client) -> None:
    code = """
from kubernetes import client, config
config.load_kube_config()
_, context = config.list_kube_config_contexts()
print(context["context"]["namespace"])
client.CoreV1Api().read_namespaced_pod("x", "default")
"""
    await client.make("account", python(code), restartPolicy="Never")
    await client.until("account", lambda pod: pod["status"]["phase"] == "Failed")
    text = await client.logs("account")
    assert text.startswith("default\n")
    assert "system:serviceaccount:default:default" in text  # known by name, and has no rights
    await client.delete("account")


async def test_init_containers_come_first_and_in_order(client: Client) -> None:
    await client.make(
        "init",
        container("sh", "-c", "cat $FULCRUM_VOLUME_SHARED/note; sleep 1000"),
        initContainers=[
            container("sh", "-c", "echo one > $FULCRUM_VOLUME_SHARED/note", name="first"),
            container("sh", "-c", "echo two >> $FULCRUM_VOLUME_SHARED/note", name="second"),
        ],
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    pod = await client.until("init", is_ready)
    assert [item["state"]["terminated"]["reason"] for item in pod["status"]["initContainerStatuses"]] == [
        "Completed"
    ] * 2
    await client.printed("init", "one\ntwo\n")
    await client.delete("init", grace_seconds=1)


async def test_first_restart_is_at_once_then_it_backs_off_and_says_why(client: Client) -> None:
    await client.make(
        "crash", python("print('the reason'); raise SystemExit(3)", terminationMessagePolicy="FallbackToLogsOnError")
    )
    pod = await client.until("crash", lambda pod: state(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff")
    status = state(pod)
    assert status["restartCount"] == 1
    assert "back-off 10s" in status["state"]["waiting"]["message"]
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["lastState"]["terminated"]["message"] == "the reason"
    assert pod["status"]["phase"] == "Running"
    assert await client.logs("crash", previous="true") == "the reason\n"
    await client.delete("crash")


@pytest.mark.parametrize(
    ("policy", "command", "phase", "restarts"),
    [("Never", "exit 1", "Failed", 0), ("Never", "exit 0", "Succeeded", 0), ("OnFailure", "exit 0", "Succeeded", 0)],
)
async def test_restart_policies(client: Client, policy: str, command: str, phase: str, restarts: int) -> None:
    name = f"{policy.lower()}-{phase.lower()}"
    await client.make(name, container("sh", "-c", command), restartPolicy=policy)
    pod = await client.until(name, lambda pod: pod["status"]["phase"] == phase)
    assert state(pod)["restartCount"] == restarts
    assert not is_ready(pod)
    await client.delete(name)


async def test_a_killed_process_comes_back_and_takes_its_children_along(client: Client) -> None:
    await client.make("killed", container("sh", "-c", "setsid sleep 1001 & sleep 1002"))
    pod = await client.until("killed", is_ready)
    await client.process(pod["metadata"]["uid"], "sleep")
    before = client.world.processes(pod["metadata"]["uid"])
    os.kill(await client.process(pod["metadata"]["uid"], "sh"), 9)
    pod = await client.until("killed", lambda pod: state(pod)["restartCount"] == 1 and is_ready(pod))
    last = state(pod)["lastState"]["terminated"]
    assert (last["exitCode"], last["signal"], last["reason"]) == (137, 9, "Error")
    assert not set(before) & set(client.world.processes(pod["metadata"]["uid"]))
    await client.delete("killed", grace_seconds=1)
    assert client.world.processes(pod["metadata"]["uid"]) == []


async def test_liveness_failure_restarts_the_container(client: Client) -> None:
    probe = {"exec": {"command": ["test", "!", "-e", "unhealthy"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "trap 'rm unhealthy; exit 5' TERM; sleep 1; touch unhealthy; while :; do sleep .1; done"
    await client.make("live", container("sh", "-c", script, livenessProbe=probe), terminationGracePeriodSeconds=60)
    pod = await client.until("live", lambda pod: state(pod)["restartCount"] >= 1)
    assert state(pod)["lastState"]["terminated"]["exitCode"] == 5
    events = await client.api.get("/api/v1/namespaces/default/events")
    assert {"Unhealthy", "Killing", "Started"} <= {
        item["reason"] for item in events["items"] if item["involvedObject"]["name"] == "live"
    }
    await client.delete("live")


async def test_termination_is_graceful_then_forced(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = ON_TERM.format(said="'bye'", go=str(go))
    await client.make("polite", python(code), terminationGracePeriodSeconds=600)
    await client.until("polite", is_ready)
    await client.printed("polite", "up")
    await client.api.delete("/api/v1/namespaces/default/pods/polite")
    pod = await client.until("polite", lambda pod: not is_ready(pod))
    assert pod["metadata"]["deletionTimestamp"]
    await client.printed("polite", "bye")
    go.touch()
    await client.gone("polite")

    endless = container("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    await client.make("stubborn", endless, terminationGracePeriodSeconds=600)
    pod = await client.until("stubborn", is_ready)
    begun = time.monotonic()
    await client.delete("stubborn", grace_seconds=1)
    assert time.monotonic() - begun > 0.9
    assert client.world.processes(pod["metadata"]["uid"]) == []


async def test_pre_stop_runs_before_the_signal(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo asked > asked"]}}}
    code = ON_TERM.format(said="os.path.exists('asked')", go=str(go))
    await client.make("hook", python(code, lifecycle=hook), terminationGracePeriodSeconds=600)
    await client.printed("hook", "up")
    await client.api.delete("/api/v1/namespaces/default/pods/hook")
    await client.printed("hook", "True")
    go.touch()
    await client.gone("hook")


@pytest.mark.parametrize(
    ("name", "spec", "reason", "message"),
    [
        ("no-command", {"name": "main", "image": "nginx"}, "ErrImageNeverPull", "set `command`"),
        ("no-secret", container("true", env=[NIL_KEY]),
         "CreateContainerConfigError", 'secret "nil" not found'),
        ("no-folder", container("true", workingDir="/no/such"), "CreateContainerConfigError", "does not exist"),
    ],
)  # fmt: skip
async def test_what_cannot_run_says_why(client: Client, name: str, spec: Json, reason: str, message: str) -> None:
    await client.make(name, spec)
    pod = await client.until(name, lambda pod: state(pod)["state"]["waiting"]["reason"] == reason)
    assert message in state(pod)["state"]["waiting"]["message"]
    assert pod["status"]["phase"] == "Pending"
    await client.delete(name)


async def test_a_program_that_does_not_exist(client: Client) -> None:
    await client.make("typo", container("no-such-program"), restartPolicy="Never")
    pod = await client.until("typo", lambda pod: pod["status"]["phase"] == "Failed")
    ended = state(pod)["state"]["terminated"]
    assert ended["reason"] == "StartError"
    assert 'exec "no-such-program": No such file or directory' in ended["message"]
    await client.delete("typo")


async def test_logs_with_their_options(client: Client) -> None:
    await client.make(
        "talk",
        python("import time\nfor i in range(4): print(i)\nimport sys; print('e', file=sys.stderr)\ntime.sleep(1e6)"),
    )
    await client.printed("talk", "e\n")
    assert await client.logs("talk") == "0\n1\n2\n3\ne\n"
    assert await client.logs("talk", tailLines="2") == "3\ne\n"
    assert await client.logs("talk", limitBytes="3") == "0\n1"
    stamped = await client.logs("talk", timestamps="true", tailLines="1")
    assert stamped.endswith("Z e\n")
    assert stamped.startswith("20")
    assert await client.logs("talk", sinceTime="2099-01-01T00:00:00Z") == ""
    followed = b""

    async def follow() -> None:
        nonlocal followed
        async for chunk in client.api.stream("/api/v1/namespaces/default/pods/talk/log", {"follow": "true"}):
            followed += chunk

    follower = asyncio.create_task(follow())
    await client.poll(lambda: followed == b"0\n1\n2\n3\ne\n")
    assert not follower.done()
    await client.delete("talk", grace_seconds=1)
    await asyncio.wait_for(follower, deadline_seconds(60))
    assert followed == b"0\n1\n2\n3\ne\n"


async def test_the_kubelets_own_port_serves_logs_to_those_who_may_use_its_node(client: Client) -> None:
    await client.make("secretive", python("print('told in confidence'); import time; time.sleep(1e6)"))
    await client.printed("secretive", "told in confidence\n")
    status = (await client.api.get(f"/api/v1/nodes/{NODE}"))["status"]
    address = next(entry["address"] for entry in status["addresses"] if entry["type"] == "InternalIP")
    port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"https://{address}:{port}/containerLogs/default/secretive/main"
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await client.api.create(accounts, {"metadata": {"name": "reader"}})
    token = (await client.api.create(f"{accounts}/reader/token", {"spec": {}}))["status"]["token"]

    async def ask(authorization: str | None) -> tuple[int, str]:
        headers = {} if authorization is None else {"Authorization": authorization}
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as response:
            return response.status, await response.text()

    for wrong in (None, "Bearer", "Bearer ", "Bearer wrong", f"Bearer {token}x", "Basic YWRtaW46YWRtaW4="):
        code, text = await ask(wrong)
        assert (code, "confidence" in text) == (401, False), wrong
    code, text = await ask(f"Bearer {token}")
    assert (code, "confidence" in text) == (403, False)
    assert "user=system:serviceaccount:default:reader, verb=get, resource=nodes, subresource=proxy" in text
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:kubelet-api-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
    }
    await client.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    assert await ask(f"Bearer {token}") == (200, "told in confidence\n")
    assert await client.logs("secretive") == "told in confidence\n"
    await client.delete("secretive", grace_seconds=1)
