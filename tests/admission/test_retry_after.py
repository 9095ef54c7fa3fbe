"""`Retry-After` is truthful: who comes back after it is let in, where the load did not grow meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from tests.admission.world import SHORT_STEPS, Arrival, World, make

from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, QosClass

PREMIUM, STANDARD, FREE = 0, 1, 2
TIERS = (
    QosClass(name="premium", priority=100, reserved=0.1),
    QosClass(name="standard", priority=50, reserved=0.3),
    QosClass(name="free", priority=10),
)


@dataclass
class Returning(World):
    """Those that are turned away come once more after their `Retry-After`."""

    due: list[tuple[float, Arrival]] = field(default_factory=list)
    back: list[tuple[Reason, bool]] = field(default_factory=list)
    """Why they were turned away, and whether they were let in when they came back."""

    def arrive(self, arrival: Arrival) -> bool:
        admitted = super().arrive(arrival)
        if not admitted:
            after_seconds = self.rejected[-1][1].retry_after_seconds
            assert after_seconds is not None
            self.due.append((self.now + after_seconds, arrival))
        return admitted

    def _work(self) -> None:
        for one in [one for one in self.due if one[0] <= self.now]:
            self.due.remove(one)
            reason = next(rejection.reason for arrival, rejection in self.rejected if arrival is one[1])
            self.back.append((reason, super().arrive(one[1])))
        super()._work()


def bursts(rate: float, seconds: float, *, prompt: int, output: int, qos: int = 0, stream: int = 0) -> list[Arrival]:
    """Gamma arrivals with a coefficient of variation of 2, lengths that vary a little."""
    draw = random.Random(qos + 100 * stream)
    arrivals, at = [], 0.0
    while (at := at + draw.gammavariate(0.25, 4 / rate)) < seconds:
        spread = draw.uniform(0.7, 1.3), draw.uniform(0.7, 1.3)
        lengths = round(prompt * spread[0]), round(output * spread[1])
        arrivals.append(Arrival(at=at, prompt_tokens=lengths[0], output_tokens=lengths[1], qos=qos))
    return arrivals


@pytest.mark.parametrize(
    ("policy", "prompt", "output", "rate"),
    [
        (AdmissionPolicy.PREDICTIVE, 1000, 50, 16.0),
        (AdmissionPolicy.PREDICTIVE, 1000, 50, 18.0),
        (AdmissionPolicy.PREDICTIVE, 100, 200, 8.0),
        (AdmissionPolicy.PREDICTIVE, 100, 200, 9.0),
        (AdmissionPolicy.THRESHOLD, 1000, 50, 20.0),
    ],
)
def test_most_are_let_in_when_they_come_back(policy: AdmissionPolicy, prompt: int, output: int, rate: float) -> None:
    """Bursts of 80 and 90 % of what two and two workers can serve on average; fixed limits bear more (late)."""
    back = []
    for stream in range(8):  # one alone is up to 5 points off by chance, three up to 2
        admission, view = make(policy, prefills=2, decodes=2)
        world = Returning(admission, view)
        world.run(bursts(rate, 300.0, prompt=prompt, output=output, stream=stream))
        assert len(world.back) > 20
        back += world.back
    assert sum(admitted for _, admitted in back) > 0.56 * len(back)


def test_so_are_the_lower_classes() -> None:
    admission, view = make(classes=TIERS, speed=SHORT_STEPS, prefills=2, decodes=2)
    world = Returning(admission, view)
    rates = {PREMIUM: 3.0, STANDARD: 4.0, FREE: 7.0}
    world.run([one for qos, rate in rates.items() for one in bursts(rate, 300.0, prompt=1000, output=50, qos=qos)])
    shares = [admitted for reason, admitted in world.back if reason is Reason.CLASS_SHARE]
    assert len(shares) > 20
    assert sum(shares) > 0.55 * len(shares)
