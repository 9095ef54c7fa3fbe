"""A started request, and where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fulcrum.routing.path import Incoming, Route

if TYPE_CHECKING:
    from fulcrum.routing.worker import WorkerView

PREFILLING: Final = "prefilling"
DECODING: Final = "decoding"
ENDED: Final = "ended"


class Flight:
    """A started request. Made by `ClusterView.start`, moved on by its other methods; read-only for all others."""

    def __init__(self, incoming: Incoming, route: Route, now_seconds: float) -> None:
        self.qos = incoming.qos
        self.prompt_tokens = incoming.prompt_tokens
        self.output_tokens = incoming.output_tokens
        self.prefix = incoming.prefix
        self.route = route
        self.prefill: WorkerView = route.prefill
        self.decode: WorkerView = route.decode
        self.work_seconds = route.work_seconds
        """Prefill time that it occupies, without waiting."""
        self.new_tokens = max(incoming.prompt_tokens - route.cached_tokens, 1.0)
        """Prompt tokens that are to be computed."""
        self.share = 0.0
        """Part of its decode worker's capacity that it takes, 0 to 1."""
        self.step_limit_seconds = 0.0
        """Predicted decode step up to which admission let requests in when it was started."""
        self.step_share = 0.0
        """Part of its longest decode step that it takes, 0 to 1."""
        self.tight_tpot_seconds = incoming.tpot_seconds
        self.started_at = now_seconds
        self.asked_at = now_seconds - incoming.waited_seconds
        self.ttft_seconds = incoming.waited_seconds + route.ttft_seconds
        """Predicted, from `asked_at` on; admission raises it when a later request is prefilled in the same step."""
        self.busy_neighbours = 0
        """Other workers on the node of its prefill that were busy when it was started."""
        self.phase = PREFILLING
        self.joined_steps = 0.0
        """Decode steps of its worker at which its own output began."""

        self.pulled_tokens = 0.0
        """Prompt tokens whose KV its decode worker was asked to pull, and has not pulled yet as far as is seen."""
        self.pull_asked_at = 0.0

    @property
    def whole(self) -> bool:
        """Prefill and decode on one worker."""
        return self.prefill is self.decode

    def made_tokens(self, now_seconds: float) -> float:
        """Return how many tokens of its answer are made by now, by the predicted steps of its decode worker."""
        self.decode.advance(now_seconds)
        return self.decode.steps - self.joined_steps
