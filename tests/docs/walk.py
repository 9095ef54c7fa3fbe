"""The page docs/concepts/walk.md against the calls that really happen."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.docs.blocks import ROOT

import fulcrum

PAGE = ROOT / "docs/concepts/walk.md"
MOST_CALLS = 25
_PACKAGE = str(Path(fulcrum.__file__).parent) + "/"
_ROW = re.compile(r"^\| \d+ \| `([\w.]+)` \| `([\w/]+\.py)` \| ", re.MULTILINE)

Call = tuple[str, str]
"""Qualified name and file below operator/fulcrum."""


@dataclass
class Trace:
    """What was called, in order."""

    calls: list[Call] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    """Files of the calls that were handed an instance of the followed class; calls in a row within a file are one."""

    @property
    def returns(self) -> int:
        """How often the followed class came back to a file that it had left."""
        return returns(self.stays)


def stays_of(listed: Iterable[Call]) -> list[str]:
    """Return the files of a list of calls; calls in a row within a file are one."""
    return [file for file, _ in itertools.groupby(file for _, file in listed)]


def returns(stays: Sequence[str]) -> int:
    """Return how often one comes back to a file that was left."""
    return len(stays) - len(set(stays))


def calls_on_page(heading: str, page: str) -> list[Call]:
    """Return the rows of the table below a heading."""
    section = page.partition(f"\n## {heading}\n")[2].split("\n## ")[0]
    return _ROW.findall(section)


def misplaced(listed: Sequence[Call], happened: Sequence[Call]) -> list[str]:
    """Return what is wrong with a list of calls: those that did not happen so, and those that began earlier."""
    first = {call: index for index, call in reversed(list(enumerate(happened)))}
    problems = [f"{name} of {file} is not called" for name, file in listed if (name, file) not in first]
    known = [call for call in listed if call in first]
    problems += [
        f"{later[0]} is called before {earlier[0]}"
        for earlier, later in itertools.pairwise(known)
        if first[later] <= first[earlier]
    ]
    return problems


@contextlib.contextmanager
def traced(followed: type | None = None) -> Iterator[Trace]:
    """Trace Fulcrum's own functions in this thread; instances of `followed` are followed from call to call."""
    trace = Trace()

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        file = code.co_filename.removeprefix(_PACKAGE)
        trace.calls.append((code.co_qualname, file))
        if followed is None:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(isinstance(frame.f_locals.get(name), followed) for name in names) and trace.stays[-1:] != [file]:
            trace.stays.append(file)

    sys.setprofile(on_event)
    try:
        yield trace
    finally:
        sys.setprofile(None)
