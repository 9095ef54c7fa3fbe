"""Classes under any load: what must hold of every single decision."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.admission.world import SHORT_STEPS, World, make, steady

from fulcrum.admission import Admission, Preempt, Reject
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, QosClass
from fulcrum.routing import ClusterView, Incoming

HIGH, MIDDLE, LOW = 0, 1, 2


@st.composite
def tiers(draw: st.DrawFn) -> tuple[QosClass, ...]:
    """Three classes of falling priority, which reserve nine tenths of the cluster at most."""
    reserved = [draw(st.sampled_from([0.0, 0.1, 0.2, 0.3])) for _ in range(3)]
    names = ("high", "middle", "low")
    return tuple(
        QosClass(name=name, priority=100 - 40 * rank, reserved=share)
        for rank, (name, share) in enumerate(zip(names, reserved, strict=True))
    )


@dataclass(frozen=True)
class Ask:
    """One request that comes some time after the one before."""

    qos: int
    prompt_tokens: float
    output_tokens: float
    after_seconds: float


asks = st.builds(
    Ask,
    qos=st.integers(0, 2),
    prompt_tokens=st.floats(10, 6000),
    output_tokens=st.floats(1, 400),
    after_seconds=st.floats(0, 0.05),
)


class Crowd:
    """Requests that are decided about, and never end."""

    def __init__(self, admission: Admission, view: ClusterView) -> None:
        self.admission = admission
        self.view = view
        self.now = 0.0

    def ask(self, one: Ask) -> Reject | None:
        """Decide; None when it was let in."""
        self.now += one.after_seconds
        incoming = Incoming(prompt_tokens=one.prompt_tokens, output_tokens=one.output_tokens, qos=one.qos)
        decided = self.admission.decide(incoming, self.view, self.now)
        if isinstance(decided, Reject):
            return decided
        for victim in decided.victims if isinstance(decided, Preempt) else ():
            assert self._priority(victim.load.qos) < self._priority(one.qos), "only lower classes make way"
            assert victim.load in victim.prefill.prompts.legs, "and only before their prefill is done"
            self.view.finish(victim, self.now)
        flight = self.view.start(incoming, decided.route, self.now)
        if one.prompt_tokens < 500:
            self.view.prefill_done(flight, self.now)
        return None

    def _priority(self, qos: int) -> int:
        return self.admission.classes.priorities[qos]


def crowd(classes: tuple[QosClass, ...], before: list[Ask], policy: AdmissionPolicy) -> Crowd:
    made = Crowd(*make(policy, classes, prefills=2, decodes=2))
    for one in before:
        made.ask(one)
    return made


policies = st.sampled_from([AdmissionPolicy.PREDICTIVE, AdmissionPolicy.THRESHOLD])


@given(tiers(), st.lists(asks, max_size=60), asks, policies)
def test_a_reserve_that_nobody_asks_for_is_not_kept(
    classes: tuple[QosClass, ...], before: list[Ask], last: Ask, policy: AdmissionPolicy
) -> None:
    """Work conservation: alone, each class is let in exactly as if there were no others."""
    mine = [Ask(last.qos, one.prompt_tokens, one.output_tokens, one.after_seconds) for one in (*before, last)]
    with_others = Crowd(*make(policy, classes, prefills=2, decodes=2))
    alone = Crowd(*make(policy, prefills=2, decodes=2))
    for one in mine:
        plain = Ask(0, one.prompt_tokens, one.output_tokens, one.after_seconds)
        assert (with_others.ask(one) is None) == (alone.ask(plain) is None)


@given(tiers(), st.lists(asks, max_size=60), asks, policies)
def test_for_its_class_is_only_turned_away_who_would_otherwise_be_let_in(
    classes: tuple[QosClass, ...], before: list[Ask], last: Ask, policy: AdmissionPolicy
) -> None:
    """The same state of the same workers, but nobody to leave room for: only then is the reason the class."""
    busy = crowd(classes, before, policy)
    refused = busy.ask(last)
    equal = tuple(QosClass(name=one.name, priority=0) for one in classes)
    plain, _ = make(policy, equal, prefills=2, decodes=2)
    incoming = Incoming(prompt_tokens=last.prompt_tokens, output_tokens=last.output_tokens, qos=last.qos)
    if refused is None:
        return
    without = plain.decide(incoming, busy.view, busy.now)
    if refused.reason is Reason.CLASS_SHARE:
        assert not isinstance(without, Reject)
    else:
        assert isinstance(without, Reject), "who is over a limit of the workers is so in any class"
        assert without.reason is refused.reason


@given(tiers(), st.lists(asks, max_size=60), asks, policies)
def test_a_class_with_a_higher_rank_is_let_in_wherever_a_lower_one_without_a_reserve_is(
    classes: tuple[QosClass, ...], before: list[Ask], last: Ask, policy: AdmissionPolicy
) -> None:
    """Nobody gains by being of a lower class, except by what is reserved for it.

    A higher one may still be one too many for the step that it would be in, where a lower one waits for another.
    """
    bare = tuple(
        QosClass(name=one.name, priority=one.priority, reserved=0.0 if rank else one.reserved)
        for rank, one in enumerate(classes)
    )
    lower_is_in = False
    for qos in (LOW, MIDDLE, HIGH):
        world = crowd(bare, before, policy)
        refused = world.ask(Ask(qos, last.prompt_tokens, last.output_tokens, last.after_seconds))
        assert refused is None or not lower_is_in or refused.reason is Reason.TTFT_UNREACHABLE
        lower_is_in = lower_is_in or refused is None


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([0.2, 0.3, 0.5]),
    st.sampled_from([HIGH, MIDDLE, LOW]),
    st.sampled_from([(1000, 50, 40.0), (100, 200, 16.0)]),
    st.floats(1.5, 4.0),
)
def test_a_class_that_asks_for_half_of_its_reserve_gets_it_in_any_flood(
    reserved: float, qos: int, load: tuple[int, int, float], times: float
) -> None:
    """No starvation: not even by classes of a higher rank."""
    prompt_tokens, output_tokens, capacity = load
    classes = tuple(
        QosClass(name=name, priority=100 - 40 * rank, reserved=reserved if rank == qos else 0.0)
        for rank, name in enumerate(("high", "middle", "low"))
    )
    admission, view = make(AdmissionPolicy.PREDICTIVE, classes, prefills=4, decodes=4, speed=SHORT_STEPS)
    world = World(admission, view, tick_seconds=0.01)
    arrivals = [
        one
        for other in (HIGH, MIDDLE, LOW)
        for one in steady(
            0.5 * reserved * capacity if other == qos else times * capacity / 2, 30.0,
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, qos=other,
        )
    ]  # fmt: skip
    world.run(arrivals, drain_seconds=30.0)
    mine = [one for one in world.served if one.arrival.qos == qos and one.arrival.at > 15]
    refused = [one for one, _ in world.rejected if one.qos == qos and one.at > 15]
    assert len(refused) <= 0.1 * len(mine)
