"""What admission has learnt, taken out of one and put into another."""

from __future__ import annotations

from fulcrum.admission.decide import Admission
from fulcrum.api.admission_state import AdmissionState


def state_of(admission: Admission, now_seconds: float) -> AdmissionState:
    """Return what it has learnt; `now_seconds` on the clock that it is asked with."""
    return AdmissionState(
        ttft_margins=tuple([margin.state() for margin in admission.learnt.ttft_margins]),
        tpot_margin=admission.learnt.tpot_margin.state(),
        busy=admission.learnt.neighbours.state(now_seconds),
        outputs=admission.learnt.outputs.state(),
        prefilling=admission.learnt.prefilling.state(now_seconds),
        decoding=admission.learnt.decoding.state(now_seconds),
    )


def begin_with(admission: Admission, state: AdmissionState, now_seconds: float) -> None:
    """Go on from what another one of the same classes had learnt at `now_seconds`; what this one had is gone.

    Raises ValueError where the classes are others.
    """
    if len(state.ttft_margins) != len(admission.classes):
        raise ValueError(f"it is of {len(state.ttft_margins)} classes, and here are {len(admission.classes)}")
    for margin, of_class in zip(admission.learnt.ttft_margins, state.ttft_margins, strict=True):
        margin.begin_with(of_class)
    admission.learnt.tpot_margin.begin_with(state.tpot_margin)
    admission.learnt.neighbours.begin_with(state.busy, now_seconds)
    admission.learnt.outputs.begin_with(state.outputs)
    admission.learnt.prefilling.begin_with(state.prefilling, now_seconds)
    admission.learnt.decoding.begin_with(state.decoding, now_seconds)
