"""A started request, and where it stands."""

from __future__ import annotations

from typing import Final

from fulcrum.routing.path import Incoming, Route
from fulcrum.routing.request_load import RequestLoad
from fulcrum.routing.worker import WorkerView

PREFILLING: Final = "prefilling"
DECODING: Final = "decoding"
ENDED: Final = "ended"


class Flight:
    """A started request. Made by `ClusterView.start`, moved on by its other methods; all else only reads it."""

    def __init__(self, incoming: Incoming, route: Route, now_seconds: float, *, batch: bool) -> None:
        self.prefix = incoming.prefix
        self.route = route
        self.prefill: WorkerView = route.prefill
        self.decode: WorkerView = route.decode
        self.load = RequestLoad(
            qos=incoming.qos,
            prompt_tokens=incoming.prompt_tokens,
            output_tokens=incoming.output_tokens,
            cached_tokens=route.cached_tokens,
            loaded_tokens=route.loaded_tokens,
            work_seconds=route.work_seconds,
            ttft_seconds=incoming.waited_seconds + route.ttft_seconds,
            tight_tpot_seconds=incoming.tpot_seconds,
            started_at=now_seconds,
            batch=batch,
        )
        self.waited_seconds = incoming.waited_seconds
        """Part of its TTFT promise that was gone when it was started."""
        self.step_limit_seconds = 0.0
        """Predicted decode step up to which admission let requests in when it was started."""
        self.busy_neighbours = 0
        """Other workers on the node of its prefill that were busy when it was started."""
        self.phase = PREFILLING
        self.pulled_tokens = 0.0
        """Prompt tokens whose KV its decode worker was asked to pull, and has not pulled yet as far as is seen."""
        self.pull_asked_at = 0.0
        self.pull_waits = False
        """It may have waited for a place on its decode worker."""

    def made_tokens(self, now_seconds: float) -> float:
        """Return how many tokens of its answer are made by now, by the predicted steps of its decode worker."""
        answers = self.decode.answers
        answers.advance(now_seconds)
        return answers.steps - self.load.joined_steps

    def served(self, *, ttft_seconds: float | None, tpot_seconds: float | None) -> None:
        """It was served; outliers are found by a sample of all. Leave out what is not known."""
        if ttft_seconds is not None:
            # Its wait at the gateway was not the worker's, and a step more or less makes no outlier.
            own_seconds = max(ttft_seconds - self.waited_seconds, 0.0)
            step_seconds = self.prefill.engine.least_step
            self.prefill.health.record.learn(own_seconds + step_seconds, self.route.ttft_seconds + step_seconds)
        if tpot_seconds is not None:
            self.decode.health.record.learn(tpot_seconds, self.route.tpot_seconds)
