"""What a policy is: who starts, what changes at a tick, who is let in, and where each request goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fulcrum import routing
from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.balance import Action
from fulcrum.routing import NobodyFits, NobodyThere, OneLeg, TwoLegs
from fulcrum.simulation.job import Job
from fulcrum.simulation.worker import Worker

if TYPE_CHECKING:
    from fulcrum.simulation.view import View

Path = TwoLegs[Worker] | OneLeg[Worker] | NobodyThere | NobodyFits


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a tick decides, and when the next one is due; None: never again."""

    actions: Sequence[Action] = ()
    again_seconds: float | None = None


class Policy(ABC):
    """One way to run a cluster. One object runs one simulation."""

    name: str

    @abstractmethod
    def initial(self) -> Sequence[tuple[str, Role]]:
        """Return the workers that are ready at second 0, as (pool, role)."""

    def on_tick(self, view: View) -> Turn:
        """Decide about roles and workers; called at second 0 and whenever the last turn asked for it."""
        return Turn()

    def admit(self, request: Job, view: View) -> Reason | None:
        """Return why a request is turned away at its arrival; None lets it in."""
        return None

    def admit_decode(self, request: Job, view: View) -> Reason | None:
        """Return why a request is turned away between prefill and decode (its prefill is then wasted)."""
        return None

    def route(self, request: Job, view: View) -> Path:
        """Return the request's workers: by the production router, unless a policy brings its own."""
        return routing.plan(view.workers, exclude=request.tried, turn=view.turn)
