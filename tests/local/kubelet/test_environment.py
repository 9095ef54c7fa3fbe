from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum_local.kubelet.environment import (
    ConfigError,
    base_environment,
    build_environment,
    command_line,
    expand,
    quantity,
)

Json = dict[str, Any]
POD: Json = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"app": "a"}, "annotations": {"x/y": "z"}},
    "spec": {"nodeName": "n1", "serviceAccountName": "sa"},
}
OBJECTS: dict[tuple[str, str], Json] = {
    ("ConfigMap", "cm"): {"metadata": {"name": "cm"}, "data": {"A": "1", "not a name": "2"}},
    ("Secret", "s"): {"metadata": {"name": "s"}, "data": {"K": base64.b64encode(b"v").decode()}},
    ("Secret", "binary"): {"metadata": {"name": "binary"}, "data": {"K": base64.b64encode(b"\xff").decode()}},
}


def build(container: Json) -> dict[str, str]:
    return build_environment(
        container,
        POD,
        base={"PATH": "/bin"},
        pod_ip="127.77.1.1",
        host_ip="127.77.0.1",
        capacity={"cpu": 2.0, "memory": 2.0**30},
        lookup=lambda kind, name: OBJECTS.get((kind, name)),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(A)", "1-1"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $ $", "$A $ $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$(A.B)", "dotted"),
    ],
)
def test_expansion_as_kubernetes_defines_it(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "A.B": "dotted"}) == expected


@given(st.text(alphabet=st.characters(exclude_characters="$")))
def test_text_without_a_dollar_is_left_alone(text: str) -> None:
    assert expand(text, {"A": "1"}) == text


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"value": "x"}, "x"),
        ({}, ""),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}, "a"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x/y']"}}}, "z"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['none']"}}}, ""),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}, "u1"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}, "127.77.0.1"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, "n1"),
        ({"valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}}, "sa"),
        ({"valueFrom": {"configMapKeyRef": {"name": "cm", "key": "A"}}}, "1"),
        ({"valueFrom": {"secretKeyRef": {"name": "s", "key": "K"}}}, "v"),
        ({"valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}}, "1"),  # 500m, rounded up
        ({"valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}}, "500"),
        ({"valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}}, "1024"),
        ({"valueFrom": {"secretKeyRef": {"name": "none", "key": "K", "optional": True}}}, None),
    ],
)
def test_sources_of_a_variable(entry: Json, expected: str | None) -> None:
    env = build({"env": [{"name": "V", **entry}], "resources": {"requests": {"cpu": "500m"}}})
    assert env.get("V") == expected


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]}, "unsupported fieldPath: spec.x"),
        (
            {"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "X"}}}]},
            "couldn't find key X in Sec",
        ),
        ({"envFrom": [{"secretRef": {"name": "none"}}]}, 'secret "none" not found'),
        ({"envFrom": [{"secretRef": {"name": "binary"}}]}, 'secret "binary"'),
        ({"env": [{"name": "V", "valueFrom": {}}]}, "unsupported valueFrom"),
    ],
)
def test_what_is_missing_is_named(container: Json, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(container)


def test_env_from_takes_names_only_and_env_wins() -> None:
    env = build(
        {"envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}], "env": [{"name": "P_A", "value": "own"}]}
    )
    assert env == {"PATH": "/bin", "P_A": "own"}


def test_command_line_expands_both_and_needs_a_command() -> None:
    assert command_line({"command": ["a", "$(X)"], "args": ["$(X)"]}, {"X": "1"}) == ["a", "1", "1"]
    assert command_line({"args": ["x"]}, {}) == []


def test_base_leaks_nothing_and_puts_our_programs_first() -> None:
    own = {"HOME": "/h", "XDG_CACHE_HOME": "/c", "AWS_SECRET": "no", "PATH": "/usr/bin:/venv/bin", "HF_HOME": "/hf"}
    assert base_environment(own, bin_directory="/venv/bin", also=("HF_HOME",)) == {
        "HOME": "/h",
        "XDG_CACHE_HOME": "/c",
        "HF_HOME": "/hf",
        "PATH": "/venv/bin:/usr/bin",
    }


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1.0), ("250m", 0.25), ("2Gi", 2.0**31), ("1e3", 1000.0), (2, 2.0), ("1.5k", 1500.0)]
)
def test_quantities(text: str | float, expected: float) -> None:
    assert quantity(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "1x", "Gi", "1 Gi"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        quantity(text)
