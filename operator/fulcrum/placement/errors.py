"""What makes a placement impossible. Each error says what is missing."""

from __future__ import annotations


class PlacementError(ValueError):
    """There is no placement. The message names the cause and the smallest change that would help."""


class InventoryError(PlacementError):
    """The inventory cannot be read. `field` is the path to the wrong value (`nodes[2].gpus`)."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}" if field else f"{problem}; {fix}")
        self.field = field


class DoesNotFitError(PlacementError):
    """No worker of the model fits on any node. Says the smallest inventory that would hold it."""


class TooSlowError(PlacementError):
    """No worker can keep the promise even without load. Says the best that this hardware can do."""


class DisconnectedError(PlacementError):
    """Prefill and decode workers fit, but no link joins them."""


class TargetTooHighError(PlacementError):
    """The wanted rate is above what the inventory can carry. Says the most that it can."""
