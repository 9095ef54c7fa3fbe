"""The corpus of InferenceClusters: what an API server must accept, with defaults, or refuse, with its message.

Files of `corpus/accept` may begin with lines `# expect-default: <JSON pointer>=<JSON>`; those of `corpus/reject` begin
with `# expect: <part of the message>`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parent / "corpus"
_EXPECT = "# expect: "
_EXPECT_DEFAULT = "# expect-default: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A document that must be accepted."""

    name: str
    path: Path
    document: dict[str, Any]
    defaults: dict[str, Any]
    """Value that must stand at each JSON pointer once defaults are filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A document that must be refused."""

    name: str
    path: Path
    document: dict[str, Any]
    message: str
    """Part of what the API server, or strict field validation, must answer."""


def accepted() -> list[Accepted]:
    """Every file of `corpus/accept`, by name."""
    return [
        Accepted(
            name=path.stem,
            path=path,
            document=_document(path),
            defaults={
                pointer: json.loads(value)
                for pointer, _, value in (text.partition("=") for text in _comments(path, _EXPECT_DEFAULT))
            },
        )
        for path in _files("accept")
    ]


def rejected() -> list[Rejected]:
    """Every file of `corpus/reject`, by name."""
    cases = []
    for path in _files("reject"):
        (message,) = _comments(path, _EXPECT)
        cases.append(Rejected(name=path.stem, path=path, document=_document(path), message=message))
    return cases


def value_at(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer; KeyError or IndexError if there is none."""
    for step in pointer.split("/")[1:]:
        document = document[int(step) if isinstance(document, list) else step]
    return document


def _files(folder: str) -> list[Path]:
    files = sorted((_ROOT / folder).glob("*.yaml"))
    assert files, f"no files in {_ROOT / folder}"
    return files


def _comments(path: Path, prefix: str) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def _document(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document
