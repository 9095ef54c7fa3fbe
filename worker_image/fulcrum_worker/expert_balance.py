"""How evenly tokens go to the GPUs that share experts, as vLLM logs it where it evens them out (EPLB)."""

from __future__ import annotations

import re
from typing import Final

_LOGGED: Final = re.compile(r"EPLB step: \d+ for model .*, balancedness=(\d+\.\d+),")


def balance_after(line: str, balance: float | None) -> float | None:
    """The balance once vLLM has logged `line`: tokens of a GPU on average over those of the busiest one, 0 to 1.

    A step without tokens says nothing of it.
    """
    found = _LOGGED.search(line)
    return balance if found is None else float(found[1]) or balance
