"""Fields of a Hugging Face `config.json`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, overload


class ModelConfigError(ValueError):
    """A config.json that cannot be used. Says which field, and what it must be."""

    def __init__(self, field: str, fix: str) -> None:
        super().__init__(f"config.json: {field}: {fix}")
        self.field = field
        self.fix = fix


class Fields:
    """Reads positive integers under any of a field's names."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    @overload
    def integer(self, *names: str, default: int) -> int: ...
    @overload
    def integer(self, *names: str, default: None = None, optional: Literal[True]) -> int | None: ...
    @overload
    def integer(self, *names: str) -> int: ...
    def integer(self, *names: str, default: int | None = None, optional: bool = False) -> int | None:
        for name in names:
            found = self._document.get(name)
            if found is None:
                continue
            if isinstance(found, bool) or not isinstance(found, int) or found < 0 or (found == 0 and default != 0):
                raise ModelConfigError(name, f"is {found!r}, must be a positive integer")
            return found
        if default is not None or optional:
            return default
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ModelConfigError(names[0], f"is missing; add it as a positive integer{others}")

    def get(self, name: str, default: Any = None) -> Any:
        return self._document.get(name, default)
