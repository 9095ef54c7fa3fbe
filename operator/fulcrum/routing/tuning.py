"""What is tuned in routing, each entry with its unit, why it has this value, and what it buys (`ablation.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTuning:
    """Entries of the room. A neutral value for each that is a rule is in `benchmarks/contests/ablations.py`."""

    # Scores.
    miss_weight: float = 10.0
    """Seconds that a second beyond a promise counts for: a path that keeps it is taken if there is one."""

    # Estimates.
    estimate_share: float = 0.8
    """Share of a limit that an estimate may fill, as it can be wrong by the rest: of a promise (what one worker
    of a pair may take, and from where an outcome tells how good a margin is), of a worker's time (prompts; batch
    requests), of a KV cache (prefixes; above it a pull of KV may have to wait for room), and of a limit that a refused
    request finds the worker below on return."""
    most_wrong: float = 3.0
    """Actual over predicted latency beyond which it is no error of a prediction: a worker that is so much later than
    its like is an outlier, no margin is wider, and idle workers serve a request that is predicted so late."""

    # What is on a worker.
    memory_seconds: float = 10.0
    """Memory of a worker: of reports, that it was slow, and of the rates of its work unless answers take longer."""
    least_left: float = 0.5
    """Share of the expected output that is left of a running request at least: the long ones still run."""
    recent_requests: int = 50
    """Requests that means, estimates and margins are learned from. Below half of them no worker is an outlier; after as
    many rejections in a row a margin narrows, as no request tells it that it is too wide."""
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
    """No pause is longer, no trial request is waited for longer, and no slow-down by busy neighbours is believed for
    longer: what recovers is used again soon."""
    outlier_share: float = 1 / 3
    """Share of failed requests above which it is one whatever the others do; and most of its like that are ejected."""

    def pause_seconds(self, failures: int) -> float:
        """Return how long to leave alone what failed so many times in a row."""
        return min(self.first_pause_seconds * 2.0 ** min(failures - 1, 30), self.longest_pause_seconds)

    def equally_full(self, load: float, other: float) -> bool:
        """Report whether a worker is emptier than another one, or fuller by less than estimates can tell."""
        return load < other + 1 - self.estimate_share

    def clearly_fuller(self, load: float, other: float) -> bool:
        """Report whether a worker is fuller than another one by more than estimates can be wrong."""
        return load > other + 1 - self.estimate_share


TUNING: Final = RoutingTuning()
