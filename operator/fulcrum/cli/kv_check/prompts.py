"""The prompts of `fulcrum kv-check`, written for it: prose, code, numbers, a dialogue, and two long lists.

Answers about a list depend on the keys of single entries.
"""

from __future__ import annotations

from typing import Final

_GOODS: Final = ("copper", "tea", "wool", "salt", "timber", "glass", "rope", "tin", "coal")
_PORTS: Final = ("Bergen", "Lisbon", "Genoa", "Riga", "Cork", "Havana", "Boston")
_BERTHS: Final = 56
_ASKED_BERTH: Final = 23
_ROOMS: Final = 48
_ASKED_ROOM: Final = 31


def _ledger() -> str:
    lines = [
        f"Berth {place}: {_GOODS[place * 4 % len(_GOODS)]} for {_PORTS[place * 3 % len(_PORTS)]}, {place * 37 % 90} t."
        for place in range(1, _BERTHS + 1)
    ]
    return "\n".join(
        ("The harbour's ledger of this week:", *lines, "", f"As the ledger says, berth {_ASKED_BERTH} has")
    )


def _readings() -> str:
    lines = [f"room {number:02d} | {15 + number * 7 % 13} C | {30 + number * 11 % 45} %" for number in range(1, _ROOMS)]
    return "\n".join(
        ("room | temperature | humidity", *lines, "", f"Again the line of room {_ASKED_ROOM}:", f"room {_ASKED_ROOM} |")
    )


PROMPTS: Final[tuple[str, ...]] = (
    "Explain to a new colleague why long bridges have expansion joints, and what becomes of one that has none.",
    'def longest_run(numbers: list[int]) -> int:\n    """Return the length of the longest run of equal numbers."""\n',
    "Squares: 1, 4, 9, 16, 25, 36, 49, 64. Cubes: 1, 8, 27, 64, 125. Powers of two: 1, 2, 4, 8,",
    "Q: Which planet is nearest to the sun?\nA: Mercury.\nQ: Which is the largest of them?\nA: Jupiter.\nQ: Which one "
    "has the most visible rings, and what are they made of?\nA:",
    "English: The ferry leaves at seven, and nobody waits for late passengers.\nFrench:",
    "The letter had lain under the stairs for thirty years. When Marta opened it, she read the first line twice. Then",
    _ledger(),
    _readings(),
)
