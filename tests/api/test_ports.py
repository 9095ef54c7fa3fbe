"""Ports of a worker as its Pod says them: what is read, and what is no port."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fulcrum.api.names import ANNOTATION_PORTS
from fulcrum.api.ports import USUAL_PORTS, AgentAddress, Ports, agent_of, ports_of


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, USUAL_PORTS),
        ({}, USUAL_PORTS),
        ({"a": "b"}, USUAL_PORTS),
        ({ANNOTATION_PORTS: "{}"}, USUAL_PORTS),
        ({ANNOTATION_PORTS: '{"engine":9000,"nixl":5700}'}, Ports(engine=9000, nixl=5700)),
        ({ANNOTATION_PORTS: '{"engine":65535,"later":1}'}, Ports(engine=65535)),
    ],
)
def test_what_is_read(annotations: dict[str, str] | None, expected: Ports) -> None:
    assert ports_of(annotations) == expected


@pytest.mark.parametrize(
    "said",
    [
        "", "9000", "[]", "null", '{"engine":0}', '{"engine":22}', '{"agent":65536}', '{"agent":-1}', '{"nixl":1e99}',
        '{"ranks":"9000"}', '{"engine":9000.5}', '{"engine":' + "9" * 400 + "}", '{"x":' + "[" * 100_000, "\ud800",
    ],
)  # fmt: skip
def test_what_is_no_port_is_unknown_and_not_the_usual(said: str) -> None:
    assert ports_of({ANNOTATION_PORTS: said}) is None


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"metadata": {}}, None),
        ({"metadata": {}, "status": {"podIP": "10.0.0.1"}}, "10.0.0.1:8001"),
        ({"metadata": {"annotations": {ANNOTATION_PORTS: '{"agent":9001}'}}, "status": {"podIP": "::1"}}, "[::1]:9001"),
        ({"metadata": {"annotations": {ANNOTATION_PORTS: '{"agent":1}'}}, "status": {"podIP": "10.0.0.1"}}, None),
    ],
)
def test_where_an_agent_answers(pod: dict[str, Any], expected: str | None) -> None:
    agent = agent_of(pod)
    assert (None if agent is None else str(agent)) == expected
    assert agent is None or isinstance(agent, AgentAddress)


def test_the_spec_and_pods_have_the_same_bounds() -> None:
    for port in (1023, 65536):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"engine": port}, Ports)
