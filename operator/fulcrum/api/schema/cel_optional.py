"""The optional field syntax of CEL (`self.?a.b`, `list[?0]`), as calls that the engine can parse."""

from __future__ import annotations

import re

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRING = re.compile(
    r"""[rRbB]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")""",
    re.DOTALL,
)


def without_optional_syntax(source: str) -> str:
    """The expression with `.?name` and `[?index]` as `.optSelect(...)`; a select behind one is optional as well."""
    if ".?" not in source and "[?" not in source:
        return source
    written: list[str] = []
    closers: list[tuple[str, bool]] = []  # (text of the closing bracket, is the chain optional after it)
    in_optional_chain = False
    position = 0
    while position < len(source):
        if string := _STRING.match(source, position):
            written.append(string[0])
            position = string.end()
            in_optional_chain = False
            continue
        rest = source[position : position + 2]
        character = source[position]
        name = _IDENTIFIER.match(source, position + len(rest)) if rest == ".?" else None
        if character == "." and name is None:
            name = _IDENTIFIER.match(source, position + 1) if in_optional_chain else None
            if name is not None and source[name.end() : name.end() + 1] == "(":
                name = None
                in_optional_chain = False
        if name is not None:
            written.append(f'.optSelect("{name[0]}")')
            position = name.end()
            in_optional_chain = True
            continue
        if rest == "[?" or (character == "[" and in_optional_chain):
            written.append(".optSelect(")
            closers.append((")", True))
            position += len(rest) if rest == "[?" else 1
            in_optional_chain = False
            continue
        if character in "([{":
            closers.append(({"(": ")", "[": "]", "{": "}"}[character], False))
            in_optional_chain = False
        elif character in ")]}" and closers:
            closing, in_optional_chain = closers.pop()
            written.append(closing)
            position += 1
            continue
        elif not character.isspace():
            in_optional_chain = False
        written.append(character)
        position += 1
    return "".join(written)
