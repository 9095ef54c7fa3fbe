"""What workers report of a model that nothing else describes; whatever they report, it costs nobody anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.capacity.test_model_facts import LLAMA
from tests.controller.test_cluster_watch import report, spec_of, worker

from fulcrum.api.objects import without_defaults
from fulcrum.api.types import InferenceClusterSpec, InferenceClusterStatus
from fulcrum.api.worker import LoadReport
from fulcrum.capacity.config_fields import relevant
from fulcrum.capacity.model_facts import ModelFacts, facts_of_config, facts_of_name
from fulcrum.controller.reported_model import ReportedModel
from fulcrum.controller.speeds import PoolSpeeds
from fulcrum.controller.watched_cluster import WatchedCluster
from fulcrum.rollout import worker_revision

FIELDS = relevant(LLAMA)


def cluster(name: str = "own/model", **changes: Any) -> WatchedCluster:
    spec = spec_of()
    spec = msgspec.structs.replace(spec, model=msgspec.structs.replace(spec.model, name=name))
    hashed = worker_revision(cluster="c", spec=spec, pool=spec.pools[0])
    workers = tuple(replace(worker(number), spec_hash=hashed) for number in range(2))
    watched = WatchedCluster(
        namespace="ns", name="c", spec=spec, status=InferenceClusterStatus(), gateways={}, workers=workers
    )
    return replace(watched, **changes)


def reporting(*documents: dict[str, Any] | None) -> dict[str, LoadReport | None]:
    named = zip(cluster().workers, documents, strict=False)
    return {who.name: msgspec.structs.replace(report(), model_config=document) for who, document in named}


def test_an_unknown_model_is_known_once_a_worker_reports_it() -> None:
    known, watched = ReportedModel(), cluster()
    assert known.model(watched) == ModelFacts()
    known.see(watched, {**reporting(None), "c-p-1": None})
    assert known.model(watched) == ModelFacts()
    known.see(watched, reporting(None, FIELDS))
    assert known.model(watched) == facts_of_config(LLAMA).named("own/model")
    assert known.model(cluster("another/model")) == ModelFacts(), "another model is not it"


def test_what_tables_or_a_config_map_say_goes_first() -> None:
    known, llama = ReportedModel(), "meta-llama/Llama-3.1-8B-Instruct"
    watched = cluster(llama)
    known.see(watched, reporting(FIELDS | {"num_hidden_layers": 1}))
    assert known.model(watched) == facts_of_name(llama)
    described = cluster(model=facts_of_config(LLAMA | {"num_hidden_layers": 2}))
    known.see(described, reporting(FIELDS))
    assert known.model(described) == described.model


def test_a_worker_of_another_revision_is_not_believed() -> None:
    known, watched = ReportedModel(), cluster()
    old = replace(watched, workers=tuple(replace(each, spec_hash="0" * 10) for each in watched.workers))
    known.see(old, reporting(FIELDS, FIELDS))
    assert known.model(watched) == ModelFacts()


@pytest.mark.parametrize(
    "document",
    [{}, {"hidden_size": 10**40}, {"hidden_size": "x"}, FIELDS | {"vocab_size": 2**31, "hidden_size": 2**31},
     FIELDS | {"layer_types": {"a": [1]}, "quantization_config": {"quant_method": ["x"]}}],
)  # fmt: skip
def test_nonsense_leaves_it_unknown(document: dict[str, Any]) -> None:
    known, watched = ReportedModel(), cluster()
    known.see(watched, reporting(document))
    assert known.model(watched) == ModelFacts()
    known.see(watched, reporting(FIELDS))
    assert known.model(watched).dimensions is not None


def test_a_pool_without_workers_is_reckoned_with_by_it() -> None:
    """Of the second pool no worker has measured anything: only the roofline knows it, and it needs the model."""
    pools = [
        {"name": name, "accelerator": accelerator, "workers": {"max": 2}}
        for name, accelerator in (("h100", "H100-SXM-80GB"), ("l40s", "L40S-48GB"))
    ]
    spec = msgspec.convert({"model": {"name": "own/model"}, "pools": pools}, InferenceClusterSpec)
    unknown, known = PoolSpeeds(), PoolSpeeds()
    unknown.expect(cluster="c", spec=spec)
    known.expect(cluster="c", spec=spec, model=facts_of_config(LLAMA))
    assert unknown.speeds() == {}
    assert set(known.speeds()) == {"h100", "l40s"}
    known.learn(cluster="c", spec=spec, workers=(), loads={}, at=0.0, isl_cv2=0.0, model=None)
    assert known.speeds() == {}, "what is no longer known is not kept as if it were"


def test_the_release_before_reads_a_report_with_it_and_this_one_a_report_without() -> None:
    full = without_defaults(msgspec.structs.replace(report(), model_config=FIELDS))
    assert full["modelConfig"] == FIELDS
    before = msgspec.defstruct(
        "LoadReport", [("role", str), ("role_epoch", int), ("ready", bool), ("draining", bool)], rename="camel"
    )
    assert msgspec.json.decode(msgspec.json.encode(full), type=before)
    del full["modelConfig"]
    assert msgspec.json.decode(msgspec.json.encode(full), type=LoadReport).model_config is None
