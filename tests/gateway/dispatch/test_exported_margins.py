"""What a gateway's admission has learnt goes beside its ring, and a simulated gateway goes on from it."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest
from tests.admission.world import SPEED, TPOT_SECONDS, TTFT_SECONDS

from fulcrum.admission import Reject
from fulcrum.api.admission_state import AdmissionState
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.names import Role
from fulcrum.api.record import PATH, RecordError, RingPage, read_page
from fulcrum.api.serving_types import Admission, AdmissionPolicy, ClassMatch, QosClass
from fulcrum.gateway.dispatch.admit import AdmissionControl
from fulcrum.gateway.dispatch.recorder import record_page, recorder_of
from fulcrum.gateway.http.internal_server import InternalServer
from fulcrum.load.demand import LatencyTargets
from fulcrum.rehearsal.rings import merge
from fulcrum.routing import ClusterView
from fulcrum.simulation.simulated_gateway import SimulatedGateway
from fulcrum.telemetry.rings import read_rings

NOW = 1000.0
CLASSES = (
    QosClass(name="gold", priority=9, match=ClassMatch(header="X-Tier", value="gold")),
    QosClass(name="rest", priority=1),
)
CONFIG = GatewayConfig(
    cluster="c", served_name="m", model="m", slo_ttft_seconds=TTFT_SECONDS, slo_tpot_seconds=TPOT_SECONDS,
    admission=Admission(policy=AdmissionPolicy.PREDICTIVE, classes=CLASSES),
)  # fmt: skip


def put_workers(view: ClusterView, prefills: int) -> None:
    view.workers.set_speed("pool", SPEED)
    for number in range(prefills):
        view.workers.put(f"p{number}", Role.PREFILL, pool="pool")
    view.workers.put("d0", Role.DECODE, pool="pool")


def experienced() -> AdmissionControl:
    """A gateway whose predictions were too good, until a prefill worker came."""
    control = AdmissionControl(CONFIG)
    core, view = control.core, control.cluster
    put_workers(view, 1)
    for number in range(60):
        now = NOW - 400.0 + 5 * number
        if number == 40:
            view.workers.put("p1", Role.PREFILL, pool="pool")
        incoming = core.incoming(prompt_tokens=9_000.0, qos=1)
        decided = core.decide(incoming, view, now)
        if isinstance(decided, Reject):
            continue
        flight = view.start(incoming, decided.route, now)
        view.prefill_done(flight, now + 1.0)
        view.finish(flight, now + 3.0)
        core.learnt.learn(flight, ttft_seconds=1.5, tpot_seconds=0.2, output_tokens=700.0)
        core.learnt.neighbours.learn(2.5, 2, NOW - 10.0)
    return control


def page_of(control: AdmissionControl) -> RingPage:
    """The gateway's answer, as it is read."""
    recorder = recorder_of(CONFIG, control, "token", NOW - 500.0)
    status, _, body = record_page(recorder, "", NOW)
    assert status == 200
    return read_page(body)


def copy_of(state: AdmissionState | None) -> SimulatedGateway:
    gateway = SimulatedGateway(
        slo=LatencyTargets(ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS, attainment=CONFIG.slo_attainment),
        speeds={"pool": SPEED}, policy=AdmissionPolicy.PREDICTIVE, classes=CLASSES, learnt=state,
    )  # fmt: skip
    put_workers(gateway.view, 2)
    return gateway


def queue_up(core: Any, view: ClusterView, now: float) -> None:
    """Half a second of prompts for each prefill worker."""
    for _ in range(4):
        incoming = core.incoming(prompt_tokens=2_500.0, qos=0)
        decided = core.decide(incoming, view, now)
        assert not isinstance(decided, Reject)
        view.start(incoming, decided.route, now)


def decision(core: Any, view: ClusterView, now: float, prompt_tokens: float) -> str:
    decided = core.consider(core.incoming(prompt_tokens=prompt_tokens, qos=1), view, now)
    return str(decided.reason) if isinstance(decided, Reject) else type(decided).__name__


def test_a_copy_decides_as_the_gateway_does() -> None:
    control = experienced()
    state = page_of(control).admission
    assert state is not None
    assert state.ttft_margins[1].factor > 1.2
    assert state.ttft_margins[0].factor == 1.0
    assert state.tpot_margin.factor > 1.2
    assert (state.prefilling.workers, len(state.prefilling.changes)) == (("p0", "p1"), 1)
    assert state.outputs[0].tokens == 700
    copy, fresh = copy_of(state), copy_of(None)
    for margin, own in zip(copy.admission.learnt.ttft_margins, control.core.learnt.ttft_margins, strict=True):
        assert (margin.factor, margin.error, margin.samples) == (own.factor, own.error, own.samples)
    assert copy.admission.learnt.neighbours.factor(2, 0.0) == control.core.learnt.neighbours.factor(2, NOW) > 2
    deciding = [(control.core, control.cluster, NOW), *((each.admission, each.view, 0.0) for each in (copy, fresh))]
    for each in deciding:
        queue_up(*each)
    decided = [[decision(*each, float(tokens)) for tokens in range(250, 9_000, 250)] for each in deciding]
    assert decided[1] == decided[0]
    assert decided[2].count("Admit") > decided[0].count("Admit") > 0, "what was learnt decides"


def test_a_copy_has_learnt_the_same() -> None:
    state = page_of(experienced()).admission
    assert state is not None
    again = copy_of(state).admission.learnt.state(0.0)
    assert msgspec.to_builtins(again) == msgspec.to_builtins(state)
    assert page_of(AdmissionControl(CONFIG)).admission == copy_of(None).admission.learnt.state(0.0), "nothing, as well"


def test_a_copy_forgets_what_was_learnt_under_a_layout_that_is_gone() -> None:
    state = page_of(experienced()).admission
    assert state is not None
    stays, flipped = copy_of(state), copy_of(state)
    flipped.view.workers.put("p1", Role.DECODE, pool="pool")
    for gateway in (stays, flipped):
        gateway.admission.consider(gateway.admission.incoming(prompt_tokens=10.0), gateway.view, 1.0)
    assert stays.admission.learnt.ttft_margins[1].factor == state.ttft_margins[1].factor
    assert flipped.admission.learnt.ttft_margins[1].factor == pytest.approx(state.ttft_margins[1].factor ** 0.5)


def test_other_classes_are_no_copy() -> None:
    state = page_of(experienced()).admission
    assert state is not None
    with pytest.raises(ValueError, match="it is of 1 classes, and here are 2"):
        copy_of(msgspec.structs.replace(state, ttft_margins=state.ttft_margins[:1]))


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("admission", "ttftMargins", 0, 0), nan),
        (("admission", "ttftMargins", 0, 0), inf),
        (("admission", "ttftMargins", 0, 0), 0.5),
        (("admission", "ttftMargins", 1, 2), -1),
        (("admission", "ttftMargins"), []),
        (("admission", "ttftMargins"), [[1.0, 0.0, 0, 0]]),
        (("admission", "ttftMargins"), [[1.0, 0.0, 0, 0]] * 100),
        (("admission", "tpotMargin", 1), nan),
        (("admission", "tpotMargin", 1), -0.1),
        (("admission", "busy", 0, 0), -1.0),
        (("admission", "busy", 0, 1), inf),
        (("admission", "busy", 0, 2), 0),
        (("admission", "busy"), [[1.0, 1.0, 1]] * 2000),
        (("admission", "outputs", 0, 3), nan),
        (("admission", "outputs", 0, 0), -1),
        (("admission", "outputs"), [[0, 0, 1, 1.0]] * 3000),
        (("admission", "prefilling", 1, 0, 1), 1.5),
        (("admission", "prefilling", 1, 0, 0), nan),
        (("admission", "prefilling", 0), ["w"] * 20_000),
        (("admission", "decoding", 0), ["w" * 300]),
        (("ageOfStartSeconds",), nan),
        (("coversFromSeconds",), inf),
    ],
)
def test_numbers_that_are_none_make_a_ring_a_silent_one(path: tuple[str | int, ...], wrong: object) -> None:
    good = page_of(experienced())
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(good))
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = wrong
    with pytest.raises(RecordError):
        read_page(msgspec.msgpack.encode(document))


async def test_a_gateway_with_wrong_numbers_is_left_out_and_others_go_on() -> None:
    good = page_of(experienced())
    wrong = msgspec.structs.replace(good, age_of_start_seconds=nan)
    there = {}
    servers = []
    for name, page in (("good", good), ("wrong", wrong)):
        body = msgspec.msgpack.encode(page)
        servers.append(InternalServer({}, guarded={PATH: lambda _, body=body: (200, b"application/msgpack", body)}))
        there[name] = f"127.0.0.1:{await servers[-1].start('127.0.0.1', 0)}"
    recording = merge(await read_rings(there, token=None, last_seconds=60))
    for server in servers:
        server.close()
    assert recording.silent == (("wrong", "its ring has an age that is none"),)
