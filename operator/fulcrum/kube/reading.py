"""Objects out of answers, each by itself: one that cannot be read costs nothing but itself.

Decoders and everything after them recurse, and an author decides how deep an object is nested. What is nested too deep,
or has fields of the wrong types, becomes a stub: who it is, its status, and why it was not read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from fulcrum.kube.resources import Json

T = TypeVar("T")

MAX_DEPTH: Final = 100
"""Levels of an object that is read. Pod templates have 20 at most; Python and its decoders stop near 1,000."""
UNREADABLE: Final = "unreadable"
"""Field of a stub that says, for people, why the object was not read."""
_UNREADABLE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_BRACKET: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_IDENTITY: Final = {
    "name": str, "namespace": str, "uid": str, "resourceVersion": str, "generation": int, "creationTimestamp": str,
    "deletionTimestamp": str, "labels": dict[str, str], "annotations": dict[str, str],
}  # fmt: skip
"""Members of `metadata` that a stub keeps, and their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An object that was not read."""

    stub: Json


class TooDeepError(ValueError):
    """A value has more than `MAX_DEPTH` levels."""


@functools.cache
def decoder_of(type_: Any) -> msgspec.json.Decoder[Any]:
    """Return the one decoder of a type."""
    return msgspec.json.Decoder(type_)


class ObjectReader(Generic[T]):
    """Reads objects as `type_`; `dict[str, Any]` keeps everything."""

    def __init__(self, type_: type[T]) -> None:
        self._decoder = decoder_of(cast("Any", type_))

    def read(self, raw: bytes | msgspec.Raw) -> T | Unreadable | None:
        """Return the object, or what is known of one that cannot be read; None when not even its name is."""
        try:
            found = self._decoder.decode(raw)
            check_depth(raw, found)
        except _UNREADABLE_ERRORS as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        except TooDeepError as error:
            why = str(error)
        else:
            return cast("T", found)
        stub = stub_of(bytes(raw), why)
        return None if stub is None else Unreadable(stub=stub)


def check_depth(raw: bytes | msgspec.Raw, found: Any) -> None:
    """Raise TooDeepError unless what was decoded from `raw` has at most MAX_DEPTH levels."""
    content = bytes(raw)
    if content.count(b"{") + content.count(b"[") <= MAX_DEPTH:
        return  # the usual case, and quick
    level = [found]
    for _ in range(MAX_DEPTH + 1):
        level = [below for each in level for below in _below(each)]
        if not level:
            return
    raise TooDeepError(f"it is nested more than {MAX_DEPTH} levels deep")


def _below(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        values: Any = value.values()
    elif isinstance(value, list | tuple):
        values = value
    elif isinstance(value, msgspec.Struct):
        values = (getattr(value, name) for name in value.__struct_fields__)
    else:
        return
    yield from (each for each in values if isinstance(each, dict | list | tuple | msgspec.Struct))


def stub_of(raw: bytes, why: str) -> Json | None:
    """Return identity and status of an object that cannot be read as a whole; None when it has none."""
    parts = members(raw)
    metadata: Json = {}
    for name, content in members(parts.get("metadata", b"")).items():
        if name in _IDENTITY and (value := _value(content, _IDENTITY[name])) is not None:
            metadata[name] = value
    if not {"name", "uid", "resourceVersion"} <= metadata.keys() or not metadata["resourceVersion"].isdecimal():
        return None
    stub: Json = {"metadata": metadata, UNREADABLE: why}
    for name, type_ in (("apiVersion", str), ("kind", str), ("status", dict[str, Any])):
        if name in parts and (value := _value(parts[name], type_)) is not None:
            stub[name] = value
    return stub


def _value(content: bytes, type_: Any) -> Any:
    try:
        found = decoder_of(type_).decode(content)
        check_depth(content, found)
    except (*_UNREADABLE_ERRORS, TooDeepError):
        return None
    return found


def members(content: bytes) -> dict[str, bytes]:
    """Return the members of a JSON object, undecoded, at any depth below; empty for what is none."""
    found: dict[str, bytes] = {}
    key = b""
    for begin, end, is_key in _parts(content, ord("{")):
        if is_key:
            key = content[begin:end]
        else:
            found[str(msgspec.json.decode(key))] = content[begin:end].strip(b" \t\r\n,:")
    return found


def elements(content: bytes) -> list[bytes]:
    """Return the objects and arrays of a JSON array, undecoded, at any depth below; empty for what is none."""
    return [content[begin:end] for begin, end, _ in _parts(content, ord("["))]


def _parts(content: bytes, kind: int) -> Iterator[tuple[int, int, bool]]:
    """Yield where the parts of an object or array are, and whether a part is a key. No recursion."""
    content_kind = content.lstrip()[:1]
    if content_kind != bytes((kind,)):
        return
    depth, begin, is_object = 0, 0, kind == ord("{")
    value_from: int | None = None
    for token in _BRACKET.finditer(content):
        what = content[token.start()]
        if what == ord('"'):
            if depth == 1 and is_object and content[token.end() : token.end() + 20].lstrip()[:1] == b":":
                if value_from is not None:
                    yield value_from, token.start(), False
                yield token.start(), token.end(), True
                value_from = token.end()
            continue
        if what in b"{[":
            depth += 1
            if depth == 2:
                begin = token.start()
            continue
        depth -= 1
        if depth == 1 and not is_object:
            yield begin, token.end(), False
        if depth == 0 and value_from is not None:
            yield value_from, token.start(), False
