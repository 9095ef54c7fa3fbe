"""One vocabulary: metrics, reasons and alerts of the code are in the docs, and nothing else is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.conftest import MakeSite, make_site

from fulcrum.api.gateway import GatewayTracing
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.scale_types import ScaleConditionType
from fulcrum.api.serving_types import Admission, AdmissionQueue
from fulcrum.api.status import ConditionType
from fulcrum.api.worker import (
    EngineProgress,
    KvResidency,
    LoadReport,
    SpeedCoefficients,
    TransferCounters,
    WorkerConfig,
)
from fulcrum.controller.metrics import Metrics
from fulcrum.gateway.front.metrics import FrontMetrics
from fulcrum_worker.engine_limits import MAX_BATCH, MAX_BATCHED_TOKENS
from fulcrum_worker.engine_steps import LONGEST_STEP, STEPPED_AT
from fulcrum_worker.kv.pool import names as pool
from fulcrum_worker.kv.registration import HOST_TOKENS, HOST_USED
from fulcrum_worker.metrics_page import metrics_page
from fulcrum_worker.state import WorkerState

__all__ = ["make_site"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/reference"
RULES = ROOT / "charts/fulcrum/files/rules.yaml"
DASHBOARDS = ROOT / "charts/fulcrum/files/dashboards"
_METRIC = re.compile(r"\bfulcrum_(?:gateway|front|operator|worker|engine)_[a-z0-9_]+\b")
_SERIES_OF = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def families(page: bytes) -> dict[str, str]:
    """Our metrics on a page by the name that docs use, with their types."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        if family.name.startswith("fulcrum_") and not family.name.endswith("_created"):
            found[family.name + ("_total" if family.type == "counter" else "")] = family.type
    return found


async def exported(make: MakeSite) -> dict[str, str]:
    """Every metric of gateway, operator and worker, with its type; a family without a sample counts, too."""
    everything_on = {
        "admission": Admission(queue=AdmissionQueue(max_wait="1s", max_requests=1)),
        "tracing": GatewayTracing(endpoint="http://127.0.0.1:9", sampling_ratio=0.0),
    }
    site = await make(slo_seconds=(1.0, 1.0), config=everything_on)
    everything = {**families((await site.page()).encode()), **families(Metrics().page()), **families(worker_page())}
    everything |= families(FrontMetrics({}).render())
    gauges = (
        MAX_BATCH,
        MAX_BATCHED_TOKENS,
        STEPPED_AT,
        LONGEST_STEP,
        HOST_TOKENS,
        HOST_USED,
        pool.USED_BYTES,
        pool.PROBLEM,
    )
    counters = (pool.BAD_BLOCKS, pool.DROPPED_BLOCKS)
    of_engine = dict.fromkeys(gauges, "gauge") | {f"{name}_total": "counter" for name in counters}
    return {**everything, **of_engine}


def worker_page() -> bytes:
    """A worker's page on which all that it can know is known."""

    def ones(kind: type[msgspec.Struct]) -> Any:
        return kind(**dict.fromkeys(kind.__struct_fields__, 1))

    config = WorkerConfig(cluster="c", pool="p", model="m", served_name="m", accelerator="cpu")
    state = object.__new__(WorkerState)
    state.drains, state.engine_alive, state.engine_start_seconds, state.measure_seconds = 1, True, 1.0, 1.0
    state.speed, state.expert_balance = ones(SpeedCoefficients), lambda: 1.0
    report = LoadReport(
        role=Role.MIXED, role_epoch=1, ready=True, draining=False, kv_held_for_peers=0.1, kv_capacity_tokens=1,
        transfers=ones(TransferCounters), progress=ones(EngineProgress), residency=ones(KvResidency),
    )  # fmt: skip
    return metrics_page(config, state, report)


def series(metrics: dict[str, str]) -> set[str]:
    """Names by which Prometheus stores them."""
    return {name + end for name, kind in metrics.items() for end in _SERIES_OF.get(kind, ("",))}


def documented() -> dict[str, str]:
    """Metrics in the tables of docs/reference/metrics.md, with the type that stands beside each."""
    found = {}
    prefix = ""
    for line in (DOCS / "metrics.md").read_text().splitlines():
        if line.startswith("## "):
            room = line.split()[1].lower()
            prefix = f"fulcrum_{room}_" if room in ("gateway", "front") else ""
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 4 or not line.startswith("| `"):
            continue
        names, kinds = re.findall(r"`([a-z_0-9]+)`", cells[0]), [kind.strip() for kind in cells[1].split(",")]
        for number, name in enumerate(names):
            found[prefix + name] = kinds[min(number, len(kinds) - 1)].replace("sum and count", "summary")
    return found


def first_cells(page: str, *, sections: tuple[str, ...] = ()) -> list[str]:
    """Words in backquotes in the first column of a page's tables."""
    found, section = [], ""
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if line.startswith("| ") and (not sections or section in sections):
            found += re.findall(r"`([A-Za-z]+)`", line.split("|")[1])
    return found


async def test_every_metric_of_the_code_is_in_the_docs_with_its_type_and_no_other(make_site: MakeSite) -> None:
    assert documented() == await exported(make_site)


async def test_rules_and_dashboards_ask_for_what_is_exported(make_site: MakeSite) -> None:
    there = series(await exported(make_site))
    asked = {"rules.yaml": RULES.read_text()}
    for path in DASHBOARDS.glob("*.json"):
        board = json.loads(path.read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        asked[path.name] = "\n".join(queries + [str(each["query"]) for each in board["templating"]["list"]])
    assert len(asked) == 5
    for name, text in asked.items():
        expressions = text if name != "rules.yaml" else "\n".join(rule["expr"] for rule in rules())
        found = set(_METRIC.findall(expressions))
        assert found
        assert found <= there, name


async def test_prose_names_no_metric_that_is_not_there(make_site: MakeSite) -> None:
    metrics = await exported(make_site)
    there = series(metrics) | set(metrics)
    pages = [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("charts/*/README.md"),
        *ROOT.glob("manifests/samples/*.yaml"),
        RULES,
    ]
    for page in pages:
        named = {name for name in _METRIC.findall(page.read_text()) if not name.endswith("_")}
        assert named <= there, page


def test_every_reason_of_the_code_is_in_the_docs_and_no_other() -> None:
    assert set(first_cells("reasons.md")) == {reason.value for reason in Reason}


@pytest.mark.parametrize("kind", [*ConditionType, *ScaleConditionType])
def test_every_condition_has_a_section(kind: ConditionType | ScaleConditionType) -> None:
    assert first_cells("reasons.md", sections=(kind.value,))


def test_every_row_says_what_to_do() -> None:
    for page in ("reasons.md", "alerts.md"):
        for line in (DOCS / page).read_text().splitlines():
            if line.startswith("| "):
                assert all(cell.strip() for cell in line.strip("|").split("|")), line


def test_every_alert_is_in_the_docs_with_its_severity() -> None:
    lines = [line.split("|") for line in (DOCS / "alerts.md").read_text().splitlines() if line.startswith("| `")]
    told = {line[1].strip(" `"): line[2].strip() for line in lines}
    assert told == {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule}


def test_rules_name_conditions_and_reasons_that_exist() -> None:
    text = "\n".join(rule["expr"] for rule in rules())
    conditions = set(re.findall(r'condition="(\w+)"', text))
    reasons = {word for words in re.findall(r'reason=~?"([\w|]+)"', text) for word in words.split("|")}
    assert conditions
    assert conditions <= {kind.value for kind in ConditionType}
    assert reasons
    assert reasons <= {reason.value for reason in Reason}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
