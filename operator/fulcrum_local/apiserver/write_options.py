"""How an object is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from fulcrum_local.apiserver.authentication import User


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Which client writes, and how; `warnings` collects what goes into Warning headers."""

    user: User
    manager: str
    dry_run: bool = False
    field_validation: str = "Warn"
    duplicates: tuple[str, ...] = ()
    """Paths of keys that the body has twice."""
    patched: bool = False
    """The object is what a patch made of the one that is there."""
    warnings: list[str] = field(default_factory=list, compare=False)
