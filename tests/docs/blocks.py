"""Fenced code blocks of every page, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?\n(.*?)\n\1\n", re.DOTALL)
_OPERATORS = frozenset(("|", "||", "&&", "&", ";", "(", ")"))
_REDIRECTIONS = frozenset((">", ">>", "<", "2>"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A code block: where it is, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page that people read, in the site and beside it."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("charts/*/README.md"),
        ROOT / "examples/README.md",
    ]
    return sorted(found)


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of these languages; all blocks where none is named."""
    found = []
    for page in pages():
        text = page.read_text()
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            block = Block(page=str(page.relative_to(ROOT)), line=line, language=match[2].strip(), text=match[3])
            if not languages or block.language in languages:
                found.append(block)
    return found


def here_documents(text: str) -> list[str]:
    """Return what a shell text passes on as here-documents."""
    return [match[2] for match in _HERE_DOCUMENT.finditer(text + "\n")]


def commands(text: str) -> list[list[str]]:
    """Return the simple commands of a shell text, as words, without assignments, redirections and here-documents.

    A command in `$(...)` comes after the one that holds it. Errors: ValueError where a quote is not closed.
    """
    text = _HERE_DOCUMENT.sub("\n", text + "\n").replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        for inner in re.findall(r"\$\(([^()]*)\)", line):
            found += commands(inner)
        found += _split(re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line))
    return found


def _split(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skipped = False
    for token in lexer:
        if token in _REDIRECTIONS:
            skipped = True
        elif skipped:
            skipped = False
        elif token in _OPERATORS:
            yield from ([words] if words else [])
            words = []
        elif words or not _ASSIGNMENT.fullmatch(token):
            words.append(token)
    yield from ([words] if words else [])


def typed(text: str) -> list[str]:
    """Return the commands of a `console` text, each with its continuation lines."""
    found: list[str] = []
    goes_on = False
    for line in text.splitlines():
        if goes_on:
            found[-1] += f"\n{line}"
        elif line.startswith("$ "):
            found.append(line.removeprefix("$ "))
        goes_on = (goes_on or line.startswith("$ ")) and line.endswith("\\")
    return found


def shell_texts(block: Block) -> str:
    """Return what a person types: of a `console` block the lines with a prompt, with their continuations."""
    if block.language != "console":
        return block.text
    return "\n".join(typed(block.text))
