"""A streamed request goes through the code as docs/concepts/walk.md says."""

from __future__ import annotations

from tests.docs.walk import MOST_CALLS, PAGE, calls_on_page, misplaced, traced
from tests.gateway.conftest import Engine, MakeSite

from fulcrum.api.names import Role
from fulcrum.api.serving_types import Admission, AdmissionPolicy


async def test_a_streamed_request_makes_the_calls_of_the_page(make_site: MakeSite) -> None:
    predictive = {"admission": Admission(policy=AdmissionPolicy.PREDICTIVE)}
    site = await make_site(Engine("p", Role.PREFILL), Engine("d", Role.DECODE), config=predictive)
    client = await site.connect()
    with traced() as trace:
        client.post({"model": "m", "prompt": "x", "max_tokens": 3, "stream": True})
        answer = await client.answer()
    assert (answer.status, answer.headers["x-fulcrum-path"]) == (200, "p,d")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    listed = calls_on_page("One streamed request", PAGE.read_text())
    assert 10 < len(listed) <= MOST_CALLS
    assert misplaced(listed, trace.calls) == []
