"""QoS classes: which one a request is of, how they rank, and what is kept for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fulcrum.api.serving_types import ClassKind, QosClass

DEFAULT_CLASS: Final = "default"


class ClassTable:
    """The classes of a cluster, by index; an empty specification is one class for everything."""

    def __init__(self, classes: Sequence[QosClass] = ()) -> None:
        classes = classes or (QosClass(name=DEFAULT_CLASS, priority=0),)
        self.names = tuple(one.name for one in classes)
        self.priorities = tuple(one.priority for one in classes)
        self.reserved = tuple(one.reserved for one in classes)
        self.batch = tuple(one.kind is ClassKind.BATCH for one in classes)
        """By class: it is promised nothing, and gets what is idle."""
        descending = sorted({-priority for priority in self.priorities})
        self.output_caps = tuple(None if one.degrade is None else one.degrade.max_output_tokens for one in classes)
        """Most output tokens of each class while the cluster is saturated; None: the class is not degraded."""
        self.ranks = tuple(descending.index(-priority) for priority in self.priorities)
        """In which order engines serve the classes: 0 comes first; equal priorities share a rank."""
        rest = [index for index, one in enumerate(classes) if one.match is None]
        lowest = min(range(len(classes)), key=lambda index: self.priorities[index])
        self.rest = rest[0] if rest else lowest
        """The class of requests that match no other."""
        ranked = sorted(range(len(classes)), key=lambda index: -self.priorities[index])
        self._matches = tuple(
            (match.header.lower(), match.value, index)
            for index in ranked
            if (match := classes[index].match) is not None
        )
        self.headers: frozenset[str] = frozenset(header for header, _, _ in self._matches)
        """Names of the headers that select a class, in lower case."""
        self._indices = {name: index for index, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int | None:
        """Index of the class called `name`, as an API key may state it; None: there is none."""
        return self._indices.get(name)

    def match(self, headers: Mapping[str, str]) -> int:
        """Class of a request by its headers (names in lower case); of several, the one of highest priority."""
        if headers:
            for header, value, index in self._matches:
                if headers.get(header) == value:
                    return index
        return self.rest
