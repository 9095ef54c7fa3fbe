"""`spec.adapters`: what is refused names the field and what to write; the list is no part of a worker's revision."""

from __future__ import annotations

from typing import Any

import pytest

from fulcrum.api.crd import root_schema
from fulcrum.api.objects import load_inference_cluster
from fulcrum.api.schema.structural import StructuralSchema
from fulcrum.rollout import worker_config, worker_revision

SCHEMA = StructuralSchema(root_schema())
SQL = {"name": "sql", "source": "/adapters/sql", "rank": 8}


def document(*listed: dict[str, Any], served: str | None = None, **adapters: Any) -> dict[str, Any]:
    model = {"name": "m"} if served is None else {"name": "m", "servedName": served}
    pool = {"name": "p", "accelerator": "cpu", "workers": {"max": 2}}
    spec = {"model": model, "pools": [pool], "adapters": {"max": 2, "list": list(listed), **adapters}}
    return {
        "apiVersion": "fulcrum.dev/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": spec,
    }


def problems(new: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    return "\n".join(map(str, SCHEMA.validate(SCHEMA.default(new), old and SCHEMA.default(old))))


@pytest.mark.parametrize(
    "listed",
    [
        [],
        [SQL],
        [SQL, {"name": "acme/tone:v2", "source": "acme/tone-lora", "revision": "8f3c1e0"}],
    ],
)
def test_adapters_are_accepted(listed: list[dict[str, Any]]) -> None:
    assert problems(document(*listed)) == ""
    assert [each.name for each in load_inference_cluster(document(*listed)).spec.adapters.list] == [  # type: ignore[union-attr]
        each["name"] for each in listed
    ]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (document(SQL, served="sql"), ("adapters.list[].name", "model.servedName")),
        (document({**SQL, "name": "chat"}), ("adapters.list[].name", "spec.model.servedName")),
        (document({**SQL, "rank": 32}), ("list[].rank", "raise maxRank")),
        (document(SQL, {**SQL, "name": "b"}, {**SQL, "name": "c"}), ("list: has more", "raise max")),
        (document(SQL, SQL), ("list", "Duplicate")),
        (document({**SQL, "revision": "main"}), ("revision: a folder has none",)),
        (document({**SQL, "source": "sql"}), ("source",)),
        (document({**SQL, "source": "/a b"}), ("source",)),
        (document({**SQL, "name": "a b"}), ("name",)),
        (document(SQL, maxRank=12), ("maxRank",)),
        (document(SQL, max=0), ("adapters.max",)),
    ],
)
def test_what_is_wrong_is_refused(bad: dict[str, Any], words: tuple[str, ...]) -> None:
    said = problems(bad)
    assert all(word in said for word in words), said


def test_a_name_keeps_its_weights() -> None:
    moved = document({**SQL, "source": "/adapters/sql-2"})
    assert "add the new weights under another name" in problems(moved, document(SQL))
    assert problems(moved, document()) == ""
    assert problems(document({**SQL, "name": "b"}), document(SQL)) == ""


def test_only_what_an_engine_is_started_with_replaces_workers() -> None:
    def revision(of: dict[str, Any]) -> str:
        spec = load_inference_cluster(of).spec
        return worker_revision(cluster="chat", spec=spec, pool=spec.pools[0])

    without = document()
    del without["spec"]["adapters"]
    assert revision(document(SQL)) == revision(document())
    assert len({revision(each) for each in (without, document(), document(max=3), document(maxRank=32))}) == 4


def test_a_new_worker_begins_with_the_list() -> None:
    spec = load_inference_cluster(document(SQL)).spec
    config = worker_config(cluster="chat", spec=spec, pool=spec.pools[0], role="mixed")  # type: ignore[arg-type]
    assert config.adapters is not None
    assert [each.key for each in config.adapters.initial] == [("sql", "/adapters/sql", None)]
