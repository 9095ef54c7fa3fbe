"""What admission has learnt, taken out of one and put into another."""

from __future__ import annotations

from fulcrum.admission.decide import Admission
from fulcrum.api.admission_state import AdmissionState


def state_of(admission: Admission, now_seconds: float) -> AdmissionState:
    """Return what it has learnt; `now_seconds` on the clock that it is asked with."""
    return AdmissionState(
        ttft_margins=tuple([margin.state() for margin in admission.ttft_margins]),
        tpot_margin=admission.tpot_margin.state(),
        busy=admission.neighbours.state(now_seconds),
        outputs=admission.outputs.state(),
        prefilling=admission.prefilling.state(now_seconds),
        decoding=admission.decoding.state(now_seconds),
    )


def begin_with(admission: Admission, state: AdmissionState, now_seconds: float) -> None:
    """Go on from what another one of the same classes had learnt at `now_seconds`; what this one had is gone.

    Raises ValueError where the classes are others.
    """
    if len(state.ttft_margins) != len(admission.classes):
        raise ValueError(f"it is of {len(state.ttft_margins)} classes, and here are {len(admission.classes)}")
    for margin, of_class in zip(admission.ttft_margins, state.ttft_margins, strict=True):
        margin.begin_with(of_class)
    admission.tpot_margin.begin_with(state.tpot_margin)
    admission.neighbours.begin_with(state.busy, now_seconds)
    admission.outputs.begin_with(state.outputs)
    admission.prefilling.begin_with(state.prefilling, now_seconds)
    admission.decoding.begin_with(state.decoding, now_seconds)
