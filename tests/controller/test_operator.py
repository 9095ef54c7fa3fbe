"""The operator as a process against a real API server; the tests play kubelet and agents."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from tests.controller.cluster import Agent, ApiServer, Cluster, Operator, eventually

from fulcrum.controller.kube import DEPLOYMENT, INFERENCE_CLUSTER, POD, SERVICE

pytestmark = pytest.mark.integration


def ratio(prefill: int, decode: int) -> dict[str, object]:
    return {"spec": {"balance": {"ratio": {"prefill": prefill, "decode": decode}}}}


async def test_a_new_cluster_gets_children_status_and_events(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        status = await cluster.status()
        service = await cluster.kube.get(SERVICE, cluster.namespace, "c-gateway")
        assert service is not None
        assert status["endpoint"] == f"http://{service['spec']['clusterIP']}:8080"
        assert (status["ratio"], status["ready"]) == ("2P:2D", "4/4")
        assert status["roles"]["prefill"] == {"desired": 2, "ready": 2, "draining": 0}
        assert {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]} == {
            "Available": ("True", "Ready"),
            "Progressing": ("False", "Reconciled"),
            "Degraded": ("False", "Healthy"),
        }
        assert await cluster.roles() == {"c-p-0": "prefill", "c-p-1": "prefill", "c-p-2": "decode", "c-p-3": "decode"}
        assert sorted(await cluster.events()) == [
            ("WorkerCreated", f"Created worker c-p-{n} as {role}.")
            for n, role in enumerate(("prefill", "prefill", "decode", "decode"))
        ]


async def test_a_new_ratio_patches_the_labels_of_the_fewest_workers_and_restarts_none(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        before = await cluster.pods()
        seconds = []
        for prefill, moved, role in ((1, "c-p-1", "decode"), (2, "c-p-3", "prefill"), (3, "c-p-2", "prefill")):
            began = time.perf_counter()
            await cluster.patch(ratio(prefill, 4 - prefill))

            async def flipped(name: str = moved, wanted: str = role) -> bool:
                pod = await cluster.kube.get(POD, cluster.namespace, name)
                return pod is not None and pod["metadata"]["labels"]["fulcrum.dev/role"] == wanted

            await eventually(flipped)
            seconds.append(time.perf_counter() - began)
        print(f"kubectl patch -> label, seconds: {[round(s, 3) for s in seconds]}")

        async def quiet() -> bool:
            return bool((await cluster.status())["ratio"] == "3P:1D")

        await eventually(quiet)
        after = await cluster.pods()
        assert {n: p["metadata"]["uid"] for n, p in after.items()} == {
            n: p["metadata"]["uid"] for n, p in before.items()
        }
        epochs = {name: pod["metadata"]["annotations"]["fulcrum.dev/role-epoch"] for name, pod in after.items()}
        assert epochs == {"c-p-0": "0", "c-p-1": "1", "c-p-2": "1", "c-p-3": "1"}
        assert after["c-p-1"]["metadata"]["labels"]["llm-d.ai/role"] == "decode"
        dated = {name for name, pod in after.items() if "fulcrum.dev/role-since" in pod["metadata"]["annotations"]}
        assert dated == {"c-p-1", "c-p-2", "c-p-3"}
        flips = [message for reason, message in await cluster.events() if reason == "RoleFlipped"]
        assert sorted(flips) == [
            "Worker c-p-1: prefill -> decode (epoch 1).",
            "Worker c-p-2: decode -> prefill (epoch 1).",
            "Worker c-p-3: decode -> prefill (epoch 1).",
        ]
        decision = (await cluster.status())["lastDecision"]
        assert (decision["action"], decision["from"], decision["to"]) == ("Flip c-p-2", "2P:2D", "3P:1D")


async def test_a_worker_too_many_is_drained_and_deleted_when_its_load_is_known_to_be_idle(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        pod = (await cluster.pods())["c-p-3"]
        agent = Agent()
        agent.running = None
        async with agent.serve(pod["status"]["podIP"]):
            await cluster.apply(workers=3)

            async def draining() -> bool:
                return (await cluster.roles())["c-p-3"] == "draining" and bool(agent.told)

            await eventually(draining)
            assert (agent.told[-1].role, agent.told[-1].role_epoch) == ("draining", 1)
            await asyncio.sleep(3)  # longer than the time after which idle would count
            assert "c-p-3" in await cluster.pods()

            async def said() -> bool:
                return bool((await cluster.status())["roles"]["decode"]["draining"] == 1)

            await eventually(said)
            agent.running = 0

            async def gone() -> bool:
                return set(await cluster.pods()) == {"c-p-0", "c-p-1", "c-p-2"}

            await eventually(gone)
    reasons = [reason for reason, _ in await cluster.events()]
    assert reasons.count("WorkerDraining") == 1
    assert reasons.count("WorkerDrained") == 1


async def test_agents_are_told_their_role_until_they_know_it(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        await cluster.patch(ratio(1, 3))

        async def flipped() -> bool:
            return (await cluster.roles())["c-p-1"] == "decode"

        await eventually(flipped)
        # The agent was not there when it was told; now it is, with an older epoch.
        agent = Agent()
        async with agent.serve((await cluster.pods())["c-p-1"]["status"]["podIP"]):

            async def told() -> bool:
                return bool(agent.told)

            await eventually(told)
            assert (agent.told[0].role, agent.told[0].role_epoch) == ("decode", 1)


async def test_a_restart_against_an_unchanged_cluster_writes_nothing(cluster: Cluster) -> None:
    with Operator(cluster.server):
        await cluster.apply()
        await cluster.settle()
        await cluster.patch(ratio(3, 1))

        async def flipped() -> bool:
            return bool((await cluster.status())["ratio"] == "3P:1D")

        await eventually(flipped)
        await cluster.server.writes_at_rest(seconds=3)
    before = cluster.server.writes()
    with Operator(cluster.server) as operator:

        async def looked() -> bool:
            return "operator_started" in operator.log.read_text()

        await eventually(looked)
        await asyncio.sleep(6)  # longer than every delay but the resync
    assert cluster.server.writes() == before
    # The counter would have shown it.
    await cluster.patch({"metadata": {"labels": {"a": "b"}}})
    assert cluster.server.writes() != before


async def test_a_killed_operator_leaves_nothing_half_done(cluster: Cluster) -> None:
    operator = Operator(cluster.server, "--namespace", cluster.namespace)
    with operator:
        await cluster.apply()
        await cluster.settle()
        operator.kill()
    await cluster.patch(ratio(1, 3))
    await cluster.kube.delete(DEPLOYMENT, cluster.namespace, "c-gateway", uid=None)
    with Operator(cluster.server, "--namespace", cluster.namespace):

        async def caught_up() -> bool:
            deployment = await cluster.kube.get(DEPLOYMENT, cluster.namespace, "c-gateway")
            return (await cluster.roles())["c-p-1"] == "decode" and deployment is not None

        await eventually(caught_up)


async def test_a_failed_engine_is_degraded_with_its_last_lines(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        ended = {"terminated": {"exitCode": 70, "message": "loading\nValueError: no such model"}}
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        container = {
            "name": "worker",
            "image": "w",
            "imageID": "",
            "ready": False,
            "restartCount": 3,
            "state": waiting,
            "lastState": ended,
        }
        await cluster.set_pod_status("c-p-0", ready=False, containerStatuses=[container])

        async def degraded() -> bool:
            return bool((await cluster.condition("Degraded"))["reason"] == "EngineFailed")

        await eventually(degraded)
        condition = await cluster.condition("Degraded")
        assert condition["status"] == "True"
        assert condition["message"] == (
            "The engine of Pod c-p-0 failed: vLLM did not come up (exit code 70). "
            "Last lines:\nloading\nValueError: no such model"
        )
        assert (await cluster.condition("Available"))["status"] == "True"
        assert "EngineFailed" in [reason for reason, _ in await cluster.events()]
        await cluster.set_pod_status("c-p-0")

        async def healthy() -> bool:
            return bool((await cluster.condition("Degraded"))["status"] == "False")

        await eventually(healthy)


async def test_an_evicted_pod_and_a_deleted_pod_come_back(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        old = {name: pod["metadata"]["uid"] for name, pod in (await cluster.pods()).items()}
        await cluster.set_pod_status("c-p-0", ready=False, phase="Failed")
        await cluster.kube.delete(POD, cluster.namespace, "c-p-2", uid=None)

        async def replaced() -> bool:
            pods = await cluster.pods()
            return {"c-p-0", "c-p-2"} == {n for n, p in pods.items() if p["metadata"]["uid"] != old[n]}

        await eventually(replaced)
        assert await cluster.roles() == {"c-p-0": "prefill", "c-p-1": "prefill", "c-p-2": "decode", "c-p-3": "decode"}


async def test_a_paused_cluster_is_left_alone(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        await cluster.patch({"metadata": {"annotations": {"fulcrum.dev/paused": "true"}}})
        await cluster.patch(ratio(1, 3))

        async def says_so() -> bool:
            return "Paused" in (await cluster.condition("Progressing"))["message"]

        await eventually(says_so)
        assert (await cluster.roles())["c-p-1"] == "prefill"
        await cluster.patch({"metadata": {"annotations": {"fulcrum.dev/paused": None}}})

        async def flipped() -> bool:
            return (await cluster.roles())["c-p-1"] == "decode"

        await eventually(flipped)


async def test_drift_of_a_child_is_put_right(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        await cluster.kube.merge(DEPLOYMENT, cluster.namespace, "c-gateway", {"spec": {"replicas": 5}})

        async def restored() -> bool:
            deployment = await cluster.kube.get(DEPLOYMENT, cluster.namespace, "c-gateway")
            return deployment is not None and deployment["spec"]["replicas"] == 2

        await eventually(restored)


async def test_gateways_that_others_scale_keep_their_number(cluster: Cluster) -> None:
    async def gateways(number: int) -> None:
        async def there() -> bool:
            deployment = await cluster.kube.get(DEPLOYMENT, cluster.namespace, "c-gateway")
            return deployment is not None and deployment["spec"]["replicas"] == number

        await eventually(there)

    async def priority(name: str) -> None:
        """Change another field of the Deployment, and wait until the operator has written it."""
        await cluster.patch({"spec": {"gateway": {"priorityClassName": name}}})

        async def written() -> bool:
            deployment = await cluster.kube.get(DEPLOYMENT, cluster.namespace, "c-gateway")
            return deployment is not None and deployment["spec"]["template"]["spec"].get("priorityClassName") == name

        await eventually(written)

    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        # Handing them over changes nothing.
        await cluster.patch({"spec": {"gateway": {"scaling": "External"}}})
        await priority("one")
        await gateways(2)
        cluster.server.kubectl("-n", cluster.namespace, "scale", "deployment/c-gateway", "--replicas=5")
        await priority("two")
        await gateways(5)
        await cluster.patch({"spec": {"gateway": {"scaling": "Fixed"}}})
        await gateways(2)


async def test_a_cluster_that_is_being_deleted_gets_nothing_new(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        await cluster.apply()
        await cluster.settle()
        owners = [pod["metadata"]["ownerReferences"] for pod in (await cluster.pods()).values()]
        uid = (await cluster.get())["metadata"]["uid"]
        assert all(refs[0]["uid"] == uid and refs[0]["controller"] for refs in owners)
        assert "finalizers" not in (await cluster.get())["metadata"]
        await cluster.kube.delete(INFERENCE_CLUSTER, cluster.namespace, "c", uid=None)
        for name in await cluster.pods():
            await cluster.kube.delete(POD, cluster.namespace, name, uid=None)
        await asyncio.sleep(1)
        assert await cluster.pods() == {}


async def test_the_operator_outlives_an_api_server_that_goes_away(api_server: ApiServer, cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(Operator(api_server, "--namespace", cluster.namespace))
        await cluster.apply()
        await cluster.settle()
        await asyncio.to_thread(api_server.stop)
        await asyncio.sleep(2)
        await asyncio.to_thread(api_server.start)
        await cluster.patch(ratio(1, 3))

        async def flipped() -> bool:
            return (await cluster.roles())["c-p-1"] == "decode"

        await eventually(flipped)


async def test_what_the_api_server_refuses_is_said_and_tried_again(cluster: Cluster) -> None:
    with Operator(cluster.server, "--namespace", cluster.namespace):
        broken = {"metadata": {"labels": {"team": "not a label!"}}}
        pool = {"name": "p", "accelerator": "cpu", "workers": {"max": 2}, "template": broken}
        await cluster.apply(pools=[pool])

        async def refused() -> bool:
            return bool((await cluster.condition("Progressing"))["reason"] == "ReconcileFailed")

        await eventually(refused)
        assert "not a label!" in (await cluster.condition("Progressing"))["message"]
        # The gateway does not wait for the workers.
        assert await cluster.kube.get(DEPLOYMENT, cluster.namespace, "c-gateway") is not None
        await cluster.apply(workers=2)
        await cluster.settle(2)
