"""Makes the generated parts of the charts: CRD, roles, dashboards, values.schema.json and the values table.

    python charts/generate.py            # write them
    python charts/generate.py --check    # exit with 1 and name the files that would change

A value's description is the comment `# --` above it. `# @schema {...}` adds to its schema, and `# @crd PART`
takes that of a part of InferenceCluster's spec; `# @crd inferencegateways PART` that of another kind's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dashboards import DASHBOARDS, dashboard

ROOT = Path(__file__).resolve().parents[1]
CHARTS = ROOT / "charts"
CRD = ROOT / "crds/fulcrum.dev_inferenceclusters.yaml"
CLUSTER_WIDE = {"namespaces", "nodes", "customresourcedefinitions"}
"""Resources without a namespace: an operator of few namespaces does without them."""
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_TABLE = ("<!-- values: made by charts/generate.py -->", "<!-- end of values -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value: where it is, what it is by default, and what its comment says."""

    path: tuple[str, ...]
    default: Any
    description: str | None
    schema: dict[str, Any]


def values(text: str) -> Iterator[Value]:
    """Yield every value that a comment describes, and the sections around them, in order."""
    lines = text.splitlines()

    def walk(node: yaml.Node, path: tuple[str, ...]) -> Iterator[Value]:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, child in node.value:
            description, schema = _comment(lines, key.start_mark.line)
            default = yaml.safe_load(yaml.serialize(child))
            yield Value(path=(*path, key.value), default=default, description=description, schema=schema)
            if description is None:
                yield from walk(child, (*path, key.value))

    root = yaml.compose(text)
    assert root is not None
    yield from walk(root, ())


def _comment(lines: list[str], line: int) -> tuple[str | None, dict[str, Any]]:
    description: list[str] = []
    schema: dict[str, Any] = {}
    while line > 0 and lines[line - 1].lstrip().startswith("# "):
        line -= 1
        text = lines[line].lstrip().removeprefix("# ")
        if text.startswith("@schema "):
            schema |= json.loads(text.removeprefix("@schema "))
        elif text.startswith("@crd "):
            schema |= crd_part(text.removeprefix("@crd "))
        else:
            description.insert(0, text)
    said = " ".join(description)
    return (said.removeprefix("-- ") if said.startswith("-- ") else None), schema


def crd_part(words: str) -> dict[str, Any]:
    """Return the JSON schema of a part of a spec, which may be left empty: `[PLURAL] PART`."""
    plural, _, name = words.rpartition(" ")
    crd = yaml.safe_load((CRD.with_name(f"fulcrum.dev_{plural}.yaml") if plural else CRD).read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    part = _plain(spec["properties"][name])
    for bound in ("required", "minItems", "description", "default"):
        part.pop(bound, None)
    return part


def _plain(node: Any) -> Any:
    """Leave out what only Kubernetes understands; unknown fields are refused, as `kubectl apply` does."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _plain(each) for key, each in node.items() if not str(key).startswith("x-kubernetes-")}
    if node.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    kept.pop("format", None)
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(kept.get(exclusive), bool) and kept.pop(
            exclusive
        ):  # OpenAPI 3.0 has a flag, JSON schema a number
            kept[exclusive] = kept.pop(bound)
    if isinstance(kept.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        kept.setdefault("additionalProperties", False)
    return kept


def schema(found: list[Value]) -> dict[str, Any]:
    """Return the JSON schema of the values: unknown ones are refused, in sections as well."""
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft-07/schema#", **_section()}
    for value in found:
        section = root
        for name in value.path[:-1]:
            section = section["properties"][name]
        if value.description is None:
            section["properties"][value.path[-1]] = _section()
        else:
            kind = {"type": _TYPES[type(value.default)]}
            section["properties"][value.path[-1]] = {**kind, "description": value.description, **value.schema}
    # Helm hands `global` to every chart.
    root["properties"]["global"] = {"type": "object"}
    return root


def _section() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def table(found: list[Value]) -> str:
    """Return the values as a Markdown table."""
    rows = [
        f"| `{'.'.join(value.path)}` | `{json.dumps(value.default)}` | {value.description} |"
        for value in found
        if value.description is not None
    ]
    return "\n".join(["| value | default | |", "|---|---|---|", *rows])


def rules(*, namespaced: bool) -> str:
    """Return the operator's rules from `manifests/`, without cluster-wide resources where only Roles are made."""
    documents = yaml.safe_load_all((ROOT / "manifests/rbac/operator_role.yaml").read_text())
    role = next(document for document in documents if document["kind"] == "ClusterRole")
    kept = []
    for rule in role["rules"]:
        resources = [each for each in rule["resources"] if not (namespaced and each in CLUSTER_WIDE)]
        if resources:
            kept.append({**rule, "resources": resources})
    return yaml.safe_dump(kept, sort_keys=False, default_flow_style=None)


def namespaced_role() -> str:
    """Return Role and RoleBinding of an operator that serves one namespace, which is not its own."""
    api, name = "rbac.authorization.k8s.io", "fulcrum-operator-clusters"
    metadata = {"name": name, "namespace": "inference", "labels": {"app.kubernetes.io/name": "fulcrum"}}
    role = {
        "apiVersion": f"{api}/v1",
        "kind": "Role",
        "metadata": metadata,
        "rules": yaml.safe_load(rules(namespaced=True)),
    }
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "fulcrum-operator", "namespace": "fulcrum-system"}],
    }
    text = yaml.dump_all([role, binding], Dumper=_NoAliases, sort_keys=False, default_flow_style=None)
    return f"# Generated by charts/generate.py from manifests/rbac/operator_role.yaml; do not edit.\n{text}"


_MONITORING = {"namespace": "fulcrum-system", "labels": {"app.kubernetes.io/name": "fulcrum"}}


def prometheus_rule() -> str:
    """Return the alerts as `kubectl apply` takes them."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "fulcrum", **_MONITORING},
        "spec": yaml.safe_load((CHARTS / "fulcrum/files/rules.yaml").read_text()),
    }
    return f"# Generated by charts/generate.py from charts/fulcrum/files/rules.yaml; do not edit.\n{_dumped([rule])}"


def dashboard_maps() -> str:
    """Return the dashboards as ConfigMaps that Grafana's sidecar finds."""
    maps = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"fulcrum-dashboard-{name}",
                "namespace": _MONITORING["namespace"],
                "labels": {"app.kubernetes.io/name": "fulcrum", "grafana_dashboard": "1"},
            },
            "data": {f"fulcrum-{name}.json": json.dumps(dashboard(name))},
        }
        for name in DASHBOARDS
    ]
    return f"# Generated by charts/generate.py from charts/dashboards.py; do not edit.\n{_dumped(maps)}"


def _dumped(documents: list[dict[str, Any]]) -> str:
    return yaml.dump_all(documents, Dumper=_NoAliases, sort_keys=False, width=150)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def generated() -> dict[Path, str]:
    """Return what each generated file should hold."""
    made = {
        CHARTS / "fulcrum/files/operator_rules.yaml": rules(namespaced=False),
        CHARTS / "fulcrum/files/operator_namespaced_rules.yaml": rules(namespaced=True),
        ROOT / "manifests/overlays/namespaced/role.yaml": namespaced_role(),
        ROOT / "manifests/overlays/monitoring/rules.yaml": prometheus_rule(),
        ROOT / "manifests/overlays/monitoring/dashboards.yaml": dashboard_maps(),
    }
    for crd in CRD.parent.glob("fulcrum.dev_*.yaml"):
        made[CHARTS / f"fulcrum/files/crds/{crd.name}"] = crd.read_text()
    for name in DASHBOARDS:
        made[CHARTS / f"fulcrum/files/dashboards/{name}.json"] = json.dumps(dashboard(name), indent=1) + "\n"
    for source in sorted(CHARTS.glob("*/values.yaml")):
        found = list(values(source.read_text()))
        made[source.with_name("values.schema.json")] = json.dumps(schema(found), indent=2) + "\n"
        readme = source.with_name("README.md")
        before, _, rest = readme.read_text().partition(_TABLE[0])
        after = rest.partition(_TABLE[1])[2]
        made[readme] = f"{before}{_TABLE[0]}\n{table(found)}\n{_TABLE[1]}{after}"
    return made


def main() -> int:
    """Write or compare; the exit code."""
    stale = [path for path, text in generated().items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run `make generate`", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(generated()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
