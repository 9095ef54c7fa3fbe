"""Writes another model into a request's body. Compiled (hatch_build.py)."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.gateway.api_formats.bodies import check_body

_KEY: Final = b'"model"'
_VALUE: Final = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("(?:[^"\\]|\\.)*"|null)')
_LETTER: Final = b"\\u006"
"""Begins an escape that can stand for a letter of `model`."""
_fields: Final = msgspec.json.Decoder(dict[str, Raw])


def with_model(body: bytes | bytearray, name: bytes) -> bytes:
    """`body`, a JSON object that was read, with `name`, a JSON string, as its model. Raises RequestError (400).

    All other bytes stay as they are where the object's model is found without doubt: its key is there once, and cannot
    be there in another spelling. Otherwise the object is written again.
    """
    at = body.find(_KEY)
    if at >= 0 and body.find(_KEY, at + 1) < 0 and body.find(_LETTER) < 0:
        found = _VALUE.match(body, at)
        if found is not None:
            begin, end = found.span(1)
            return b"".join((body[:begin], name, body[end:]))
    for _ in check_body(body):
        pass
    fields = _fields.decode(body)
    fields["model"] = Raw(name)
    return msgspec.json.encode(fields)
