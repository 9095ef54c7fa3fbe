"""Which node a Pod fits on. Pure. CPU and memory are not reserved: on one machine all Pods share them.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fulcrum.api.quantities import parse_quantity
from fulcrum_local.controllers.pods import condition, is_finished
from fulcrum_local.controllers.resources import Json
from fulcrum_local.controllers.taints import tolerates


def chosen_node(pod: Json, nodes: Iterable[Json], pods: Iterable[Json]) -> tuple[str, str]:
    """The fitting node with the fewest Pods, and why there is none: exactly one of both is empty."""
    bound = [each for each in pods if each["spec"].get("nodeName") and not is_finished(each)]
    load = Counter(each["spec"]["nodeName"] for each in bound)
    all_nodes = sorted(nodes, key=lambda node: (load[node["metadata"]["name"]], node["metadata"]["name"]))
    if not all_nodes:
        return "", "no nodes available to schedule pods"
    problems: Counter[str] = Counter()
    for node in all_nodes:
        name = node["metadata"]["name"]
        problem = _problem(pod, node, [each for each in bound if each["spec"]["nodeName"] == name])
        if not problem:
            return name, ""
        problems[problem] += 1
    reasons = ", ".join(f"{count} {problem}" for problem, count in sorted(problems.items()))
    return "", f"0/{len(all_nodes)} nodes are available: {reasons}."


def _problem(pod: Json, node: Json, bound: list[Json]) -> str:
    ready = condition(node, "Ready")
    if ready is None or ready["status"] != "True":
        return "node(s) were not ready"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    if not _is_selected(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    taint = next((taint for taint in node["spec"].get("taints") or () if not _tolerates(pod, taint)), None)
    if taint is not None:
        return f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
    return _lacking(pod, node, bound)


def _is_selected(pod: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    selector = pod["spec"].get("nodeSelector") or {}
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or []
    matches = any(all(_holds(each, labels) for each in term.get("matchExpressions") or ()) for term in terms)
    return selector.items() <= labels.items() and (required is None or matches)


def _holds(expression: Json, labels: dict[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    answers = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return answers.get(expression["operator"], False)


def _tolerates(pod: Json, taint: Json) -> bool:
    if taint["effect"] == "PreferNoSchedule":
        return True
    return any(tolerates(toleration, taint) for toleration in pod["spec"].get("tolerations") or ())


def _lacking(pod: Json, node: Json, bound: list[Json]) -> str:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    if "pods" in allocatable and len(bound) >= parse_quantity(allocatable["pods"]):
        return "Too many pods"
    for name, wanted in sorted(_extended_requests(pod).items()):
        used = sum(_extended_requests(each)[name] for each in bound)
        if used + wanted > parse_quantity(allocatable.get(name, "0")):
            return f"Insufficient {name}"
    return ""


def _extended_requests(pod: Json) -> Counter[str]:
    """Resources with a domain, such as nvidia.com/gpu: whole numbers that a device plugin gives out."""
    requests: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        requests.update({name: int(parse_quantity(str(amount))) for name, amount in amounts.items() if "/" in name})
    return requests
