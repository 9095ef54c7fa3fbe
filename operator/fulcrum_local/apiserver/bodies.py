"""Request bodies: JSON or YAML, with the limits of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from fulcrum_local.apiserver import protobuf
from fulcrum_local.apiserver.errors import ApiError, Json, bad_request, unsupported_media_type

LONGEST_BODY_BYTES: Final = 3 * 1024 * 1024
_ACCEPTED: Final = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)


def parse_body(raw: bytes, content_type: str) -> Any:
    """The decoded body; None when it is empty; 400 when it cannot be read, 415 for another format."""
    if len(raw) > LONGEST_BODY_BYTES:
        raise ApiError(413, f"Request entity too large: limit is {LONGEST_BODY_BYTES}")
    if not raw:
        return None
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode_protobuf(raw)
    if media_type.endswith("yaml"):
        return parse_yaml(raw)
    if media_type.endswith("json") or not media_type or media_type == "application/octet-stream":
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise bad_request(f"the object provided is unrecognized (must be valid JSON): {error}") from None
    raise unsupported_media_type(_ACCEPTED)


def duplicate_fields(raw: bytes) -> list[str]:
    """Paths of keys that an object in a body, JSON or YAML, has twice: decoders keep the last one and do not say so."""
    try:
        whole = json.loads(raw, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        whole = _yaml_pairs(raw)
    return list(dict.fromkeys(_duplicates(whole, "")))


def _yaml_pairs(raw: bytes) -> Any:
    """A YAML body with its mappings as `_Pairs`; None for another format, or one that is refused elsewhere."""
    import yaml

    class _PairsLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    def pairs(loader: Any, node: Any) -> _Pairs:
        return _Pairs(
            (str(loader.construct_object(key)), loader.construct_object(item, deep=True)) for key, item in node.value
        )

    _PairsLoader.add_constructor("tag:yaml.org,2002:map", pairs)
    try:
        return yaml.load(raw, _PairsLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


class _Pairs(list[tuple[str, Any]]):
    """Members of an object, in their order."""


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, item in value:
            below = f"{path}.{key}" if path else key
            if key in seen:
                yield below
            seen.add(key)
            yield from _duplicates(item, below)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _duplicates(item, f"{path}[{number}]")


def parse_yaml(raw: bytes) -> Any:
    """YAML (JSON is YAML, and quicker tried first)."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    import yaml

    try:
        loaded = yaml.load(raw, _loader(yaml))  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    return loaded


def _loader(yaml: Any) -> Any:
    """A safe loader that leaves times as text, because JSON has none."""

    class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [entry for entry in resolvers if entry[0] != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    return _Loader


def checked(body: Any, shape: type[msgspec.Struct]) -> Json:
    """The body as it is (an object; none counts as an empty one); 400 where a field of it is not as `shape` has it."""
    obj = as_object({} if body is None else body)
    try:
        msgspec.convert(obj, shape)
    except msgspec.ValidationError as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from None
    return obj


def as_object(body: Any) -> Json:
    """The body as a JSON object; 400 otherwise."""
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized (must be a JSON object)")
    return body
