"""What is tuned in routing, each entry with its unit, why it has this value, and what it buys (`ablation.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTuning:
    """Entries of the room. A neutral value for each that is a rule is in `simulation.ablations`."""

    # Scores.
    miss_weight: float = 10.0
    """Seconds that a second beyond a promise counts for: a path that keeps it is taken if there is one."""
    disturbing: float = 0.2
    """Share of its prefill time that a prompt rather waits longer than hold up an answer on a prefill worker."""
    early: float = 0.7
    """Share of a promise within which a prediction leaves room: for a prompt that steps aside or loads to save compute,
    and for a request that comes back. One beyond it is near the limit, and tells how good the limit is."""

    # Estimates.
    trusted: float = 0.8
    """Share of a limit that an estimate may fill: the TPOT promise on a decode worker that takes a prefill, a worker's
    time with prompts, a KV cache with prefixes (running requests need memory, too), a pool with one prompt."""

    most_wrong: float = 3.0
    """Actual over predicted latency beyond which it is no error of a prediction: a worker that is so much later than
    its like is an outlier, no margin is wider, and idle workers serve a request that is predicted so late."""

    # Whole requests beside pairs.
    staying: float = 0.9
    """Share of its TPOT promise that a request must keep to decode on a prefill worker."""
    most_harmed: float = 0.25
    """Expected answers, in requests, that one deflected prefill may make late: it saves one request itself."""
    fuller: float = 0.1
    """Share of a worker, 0 to 1, by which one on the same node, or with the prefix, may be fuller: KV stays there."""

    # What is on a worker.
    memory_seconds: float = 10.0
    """Memory of a worker: of reports, that it was slow, and of the rates of its work unless answers take longer."""
    least_left: float = 0.5
    """Share of the expected output that is left of a running request at least: the long ones still run."""
    mean_rate: float = 0.01
    """Weight of one request in the means of prompt lengths and of TTFT: about the last hundred count."""
    bytes_per_token: float = 4.0
    """Bytes of a prompt for each of its tokens, before any prompt was counted."""

    # Prefixes.
    first_prefix_bytes: int = 512
    """Shortest prefix of a prompt that is compared: about the blocks of an engine."""
    prefixes_per_doubling: int = 8
    """Prefixes compared for each doubling of the length: a match is at most an eighth too short."""
    most_holders: int = 8
    """Holders that a match names, the latest ones: each is predicted in full."""

    # Failures.
    first_pause_seconds: float = 0.5
    """Pause after a first failure of a worker; it doubles with each further one."""
    longest_pause_seconds: float = 30.0
    """No pause is longer, and no trial request is waited for longer: what recovers is used again soon."""
    outlier_requests: int = 20
    """Requests without which no worker is an outlier, and memory of its means."""
    outlier_share: float = 1 / 3
    """Share of failed requests above which it is one whatever the others do; and most of its like that are ejected."""

    def pause_seconds(self, failures: int) -> float:
        """Return how long to leave alone what failed so many times in a row."""
        return min(self.first_pause_seconds * 2.0 ** min(failures - 1, 30), self.longest_pause_seconds)


TUNING: Final = RoutingTuning()
