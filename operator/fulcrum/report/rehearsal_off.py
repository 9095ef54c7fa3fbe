"""What is said while nothing is done by rehearsals."""

from __future__ import annotations

from fulcrum.api.types import RehearsalStatus


def rehearsal_off(*, rehearses: bool, played: RehearsalStatus | None) -> str:
    """Say what plays that were wrong hold back: roles only where rehearsals decide about them."""
    what = "no worker is given back"
    if rehearses:
        what = "no further role is changed for the load (empty ones are taken over), and no worker is given back,"
    said = [
        f"What rehearsals foretold did not come, several times in a row: {what} until it does, or until ten "
        "minutes have passed without a forecast that could be compared with what came."
    ]
    if not rehearses:
        said.append("Rehearsals have no answer at present, so roles change by estimates.")
    if played is not None and played.foretold_attainment is not None:
        said.append("status.rehearsal has both shares.")
    said.append(
        "Most often engines are slower than what is known of them, or something else uses their GPUs, cores or links: "
        "see status.slowWorkers, and what else runs on their nodes."
    )
    return " ".join(said)
