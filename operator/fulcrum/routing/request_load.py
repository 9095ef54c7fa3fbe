"""What a started request puts on its workers: the numbers that their sums are made of."""

from __future__ import annotations


class RequestLoad:
    """The numbers of one request. Workers keep these, and know nothing of its path."""

    def __init__(
        self,
        *,
        qos: int,
        prompt_tokens: float,
        output_tokens: float,
        cached_tokens: float,
        loaded_tokens: float,
        work_seconds: float,
        ttft_seconds: float,
        tight_tpot_seconds: float,
        started_at: float,
        batch: bool,
    ) -> None:
        self.qos = qos
        self.batch = batch
        """It is promised nothing, and makes way for requests that are."""
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = cached_tokens
        """Prompt tokens that its prefill worker need not compute."""
        self.loaded_tokens = loaded_tokens
        """Of these, those that it loads from host memory or the KV pool."""
        self.new_tokens = max(prompt_tokens - cached_tokens, 1.0)
        """Prompt tokens that are to be computed."""
        self.work_seconds = work_seconds
        """Prefill time that it occupies, without waiting."""
        self.ttft_seconds = ttft_seconds
        """Predicted, since it was asked for; admission raises it when a later request is prefilled before it."""
        self.tight_tpot_seconds = tight_tpot_seconds
        """TPOT that it was promised beyond the cluster's; infinite: none."""
        self.started_at = started_at
        self.share = 0.0
        """Part of its decode worker's capacity that it takes, 0 to 1."""
        self.step_share = 0.0
        """Part of its longest decode step that it takes, 0 to 1."""
        self.joined_steps = 0.0
        """Decode steps of its worker at which its own output began."""
