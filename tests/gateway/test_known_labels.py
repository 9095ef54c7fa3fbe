"""Counters are there with 0 before they count: `rate()` of Prometheus does not see the first sample of a series.

That no other test makes a counter appear late is asserted where their gateways end (`make_site`).
"""

from __future__ import annotations

import inspect
from typing import Any

from tests.gateway.conftest import Engine, MakeSite

from fulcrum.api.names import Role
from fulcrum.api.reasons import REJECTIONS, Reason
from fulcrum.api.serving_types import Admission, ClassMatch, QosClass
from fulcrum.gateway import errors

CLASSES = (
    QosClass(name="gold", priority=9, match=ClassMatch(header="x-tier", value="gold")),
    QosClass(name="rest", priority=1),
)


async def test_a_new_gateway_has_all_rejections_of_all_classes(make_site: MakeSite) -> None:
    site = await make_site(Engine("m", Role.MIXED), config={"admission": Admission(classes=CLASSES)}, pod_name="g-0")
    page = await site.page()
    for name in ("gold", "rest"):
        for reason in REJECTIONS:
            labels = f'class="{name}",fulcrum_cluster="c",fulcrum_gateway="g-0",fulcrum_namespace="default"'
            assert f'fulcrum_gateway_rejected_total{{{labels},reason="{reason.value}"}} 0.0' in page, (name, reason)
            status = errors.STATUSES[reason].value
            assert f'class="{name}",code="{status}"' in page
    assert await site.metric("fulcrum_gateway_requests_total") == 0


def test_each_refusal_has_the_status_that_is_counted_from_the_start() -> None:
    made: list[Any] = []
    for _, make in inspect.getmembers(errors, inspect.isfunction):
        parameters = inspect.signature(make).parameters.values()
        if make.__annotations__.get("return") == "RequestError" and make.__module__ == errors.__name__:
            examples = {"str": "x", "int": 1, "Reason": Reason.QUEUE_FULL, "float | None": 1.0}
            made.append(make(*(examples[each.annotation] for each in parameters if each.default is each.empty)))
    found = {(error.reason, error.status) for error in made if error.reason is not None}
    assert found <= set(errors.STATUSES.items())
    assert {reason for reason, _ in found} >= {Reason.NO_WORKER, Reason.TIMED_OUT, Reason.UPSTREAM_FAILED}
    assert set(REJECTIONS) <= errors.STATUSES.keys()
