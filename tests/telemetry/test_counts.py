"""A gateway's page, the increase between two, and the traffic that they make."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.api.reasons import REJECTIONS
from fulcrum.gateway.metrics.counts import Metrics, gauge
from fulcrum.gateway.metrics.slo import SloOutcome, judge_refusal
from fulcrum.load.demand import ClassPart
from fulcrum.load.traffic import without_nonsense
from fulcrum.load.tuning import TUNING
from fulcrum.telemetry.counts import (
    BadPageError,
    Counts,
    Key,
    Page,
    _known_keys,
    add,
    increase,
    make_traffic,
    read_page,
    spread_of,
)

ARRIVALS = Key("arrivals_total")


def a_page(*, cluster: str = "chat", model: str = 'a"b,le="7\\') -> str:
    """What a gateway that counted a little exports."""
    metrics = Metrics(model=model, labels={"fulcrum_cluster": cluster, "fulcrum_namespace": "prod"})
    for name, tokens in (("default", 100), ("premium", 900)):
        counts = metrics.of_class(name)
        counts.arrivals = 2
        counts.slo[SloOutcome.MET] = 1
        counts.slo[SloOutcome.TTFT] = 1
        counts.prompt_tokens.observe(tokens)
        counts.output_tokens.observe(10)
        counts.ttft_seconds.observe(0.25)
        counts.tpot_seconds.observe(0.015)
    metrics.requests["/v1/completions", 503, "NoWorker", "default"] = 1
    metrics.requests["/v1/completions", 200, "", "default"] = 3
    info = gauge("info", "", ("model", "pod"), [((model, "chat-gateway-x"), 1.0)])
    return metrics.render([info]).decode()


def test_a_page_is_summed_over_classes() -> None:
    page = read_page(a_page())
    assert (page.pod_name, page.cluster) == ("chat-gateway-x", "chat")
    assert page.started_seconds > 1e9
    assert page.counts[ARRIVALS] == 4
    assert page.counts[Key("slo_total", "met")] == 2
    assert page.counts[Key("requests_total", "NoWorker")] == 1
    assert page.counts[Key("prompt_tokens_sum")] == 1000
    assert page.counts[Key("prompt_tokens_bucket", "128.0")] == 1
    assert page.counts[Key("prompt_tokens_bucket", "+Inf")] == 2


def test_who_came_is_counted_before_anybody_ended() -> None:
    """A long prompt that waits, and is expected to be answered as those before it were."""
    metrics = Metrics(labels={"fulcrum_cluster": "chat"})
    counts = metrics.of_class("default")
    info = gauge("info", "", ("model", "pod"), [(("m", "chat-gateway-x"), 1.0)])

    def request(prompt: int, *, times: int) -> None:
        counts.arrivals += times
        for _ in range(times):
            counts.arrived_prompt_tokens.add(prompt)
            counts.arrived_prompt_tokens_squared.add(prompt * prompt)
            counts.arrived_output_tokens.add(5)

    def counted() -> Counts:
        return read_page(metrics.render([info]).decode()).counts

    request(40, times=10)
    for _ in range(10):
        counts.prompt_tokens.observe(80)  # twice what was estimated
        counts.expected_prompt_tokens.add(40)
        counts.output_tokens.observe(5)
        counts.expected_output_tokens.add(5)
    begun = counted()
    request(1000, times=4)
    request(1000, times=2)
    window = {key: value - begun.get(key, 0.0) for key, value in counted().items()}
    traffic = make_traffic(window, 2.0, longer=counted())
    assert (traffic.rate, traffic.isl_tokens, traffic.isl_cv2) == (3.0, 2000.0, 0.0)
    assert (traffic.osl_tokens, traffic.ended) == (5.0, 0.0)


def test_what_came_of_each_class_is_known() -> None:
    metrics = Metrics(labels={"fulcrum_cluster": "chat"}, class_names=("chat", "batch", "idle"))
    for name, prompt, times in (("chat", 100, 6), ("batch", 700, 2)):
        for _ in range(times):
            metrics.of_class(name).arrivals += 1
            metrics.of_class(name).arrived_prompt_tokens.add(prompt)
    info = gauge("info", "", ("model", "pod"), [(("m", "chat-gateway-x"), 1.0)])
    traffic = make_traffic(read_page(metrics.render([info]).decode()).counts, 2.0)
    assert traffic.classes == (ClassPart("batch", 0.25, 2.8), ClassPart("chat", 0.75, 0.4))
    assert without_nonsense(traffic) == (traffic, ())
    assert make_traffic({}, 2.0).classes == ()


def test_after_a_pause_the_rate_is_that_of_the_time_since() -> None:
    came = {
        Key("arrivals_total"): 8.0,
        Key("arrived_prompt_tokens_sum"): 800.0,
        Key("arrived_prompt_tokens_count"): 8.0,
        Key("arrived_prompt_tokens_squared_sum"): 80_000.0,
    }
    traffic = make_traffic(came, 10.0, newest=[came] * len(TUNING.newest_parts))
    assert (traffic.window_seconds, traffic.rate, traffic.isl_tokens) == (2.0, 4.0, 100.0)


def test_traffic_of_a_page() -> None:
    traffic = make_traffic(read_page(a_page()).counts, 2.0)
    assert (traffic.rate, traffic.isl_tokens, traffic.osl_tokens) == (2.0, 500.0, 10.0)
    assert (traffic.attainment, traffic.rejected) == (0.5, 0.25)
    assert traffic.rejections == {"NoWorker": 0.25}
    assert traffic.ttft_p50_seconds == pytest.approx(0.25)
    assert traffic.tpot_p90_seconds == pytest.approx(0.0145, abs=0.001)
    assert traffic.isl_cv2 is not None
    assert 0.4 < traffic.isl_cv2 < 1.0
    assert traffic.prefix_hit is None


def test_answers_are_as_spread_as_within_the_stretches_of_the_last_minutes() -> None:
    """A quiet window and a loud one say the same of it."""

    def ended(counts: dict[float, float]) -> Counts:
        below = 0.0
        found: Counts = {}
        for bound, count in counts.items():
            below += count
            found[Key("output_tokens_bucket", f"{bound:g}")] = below
        return found

    short, long = ended({10.0: 100.0, 20.0: 0.0, math.inf: 0.0}), ended({10.0: 0.0, 20.0: 100.0, math.inf: 0.0})
    both = ended({10.0: 100.0, 20.0: 100.0, math.inf: 0.0})
    window = {Key("arrivals_total"): 9.0, **both}
    apart = make_traffic(window, 30.0, stretches=[short, long])
    together = make_traffic(window, 30.0, stretches=[both, both])
    assert apart.osl_cv2 is not None
    assert together.osl_cv2 is not None
    assert apart.osl_cv2 < 0.5 * together.osl_cv2
    assert make_traffic(window, 30.0).osl_cv2 == pytest.approx(together.osl_cv2, rel=0.01)
    assert set(spread_of(window)) > set(both)


def test_traffic_of_nothing() -> None:
    traffic = make_traffic({ARRIVALS: 0.0}, 2.0)
    assert traffic.rate == 0
    assert traffic.isl_tokens is traffic.attainment is traffic.ttft_p50_seconds is traffic.rejected is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not those of a gateway"),
        ("<html>", "not those of a gateway"),
        ("fulcrum_gateway_arrivals_total 3\n", "not those of a gateway"),
        ('fulcrum_gateway_info{pod="x"} 1\n', "not those of a gateway"),
        ('fulcrum_gateway_info{pod="x"} 1\nfulcrum_gateway_arrivals_total x\n', "cannot be read"),
        ('fulcrum_gateway_info{pod="x"} 1\nfulcrum_gateway_arrivals_total NaN\n', "is NaN"),
        ("fulcrum_gateway_slo_total 1\n", "cannot be read"),
        ("fulcrum_gateway_info{ 1\n", "cannot be read"),
    ],
)
def test_what_is_no_gateway(text: str, why: str) -> None:
    with pytest.raises(BadPageError, match=why):
        read_page(text)


@given(st.text())
def test_reading_fails_in_one_way(text: str) -> None:
    for page in (text, f"fulcrum_gateway_{text}", f'fulcrum_gateway_info{{pod="{text}"}} 1'):
        with pytest.raises(BadPageError):
            read_page(page)


def page(counts: Counts, started_seconds: float = 1.0) -> Page:
    return Page(pod_name="a", cluster="chat", started_seconds=started_seconds, counts=counts)


OTHER = Key("slo_total", "met")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (page({ARRIVALS: 3}), page({ARRIVALS: 5}), {ARRIVALS: 2}),
        (page({ARRIVALS: 3}), page({ARRIVALS: 3, OTHER: 2}), {ARRIVALS: 0, OTHER: 2}),
        (page({ARRIVALS: 3}), page({ARRIVALS: 5}, 9.0), {ARRIVALS: 5}),  # it has started again
        (page({ARRIVALS: 3}, math.nan), page({ARRIVALS: 5}, math.nan), {ARRIVALS: 2}),
        (page({ARRIVALS: 3, OTHER: 1}, math.nan), page({ARRIVALS: 2, OTHER: 1}, math.nan), {ARRIVALS: 2, OTHER: 1}),
        (page({ARRIVALS: 3, OTHER: 1}, math.nan), page({ARRIVALS: 4}, math.nan), {ARRIVALS: 4}),
    ],
)
def test_increase(before: Page, after: Page, expected: Counts) -> None:
    assert increase(before, after) == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=30))
def test_no_request_is_counted_twice_whatever_restarts(steps: list[tuple[int, bool]]) -> None:
    """Increments of each step, and whether the gateway starts again after it (losing nothing that was scraped)."""
    counted = 0.0
    started, value = 1.0, 0
    before = page({ARRIVALS: 0.0}, started)
    for more, restarts in steps:
        value += more
        after = page({ARRIVALS: float(value)}, started)
        counted += increase(before, after)[ARRIVALS]
        before = after
        if restarts:
            started, value = started + 1, 0
    assert counted == sum(more for more, _ in steps)


def test_gateway_and_source_agree_on_what_is_a_rejection() -> None:
    for reason in REJECTIONS:
        assert judge_refusal(503, reason) is SloOutcome.REJECTED


def test_sums() -> None:
    assert add([{ARRIVALS: 1.0}, {}, {ARRIVALS: 2.0, OTHER: 1.0}]) == {ARRIVALS: 3.0, OTHER: 1.0}


def test_a_page_says_the_same_whichever_cluster_it_is_of_and_however_often_it_is_read() -> None:
    pages = [read_page(a_page(cluster=name)) for name in ("chat", "chat", "a" * 250, "x")]
    assert {page.cluster for page in pages} == {"chat", "a" * 250, "x"}
    assert [page.counts for page in pages] == [pages[0].counts] * 4


def test_what_is_remembered_of_pages_is_bounded() -> None:
    start, page = 'fulcrum_gateway_requests_total{reason="', a_page()
    read_page(page)
    before = _known_keys.cache_info()
    assert before.maxsize is not None
    odd = "".join(f'{start}{"y" * 10_000}{number}"}} 1.0\n' for number in range(20))
    assert len(read_page(odd + page).counts) == len(read_page(page).counts) + 20
    assert _known_keys.cache_info().currsize == before.currsize, "long ones are not kept"
