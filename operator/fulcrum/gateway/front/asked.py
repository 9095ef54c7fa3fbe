"""What a front reads of a request's body: the model, and how the conversation opens. The rest is passed on unread."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from fulcrum.front.conversation import Conversation, conversation_of, named_conversation
from fulcrum.gateway.errors import RequestError, bad_request

CONVERSATION_HEADER: Final = "x-fulcrum-conversation"
"""A client's own name for a conversation."""
BYTES_PER_TOKEN: Final = 4
"""Bytes of a body for each token, until the answer says how many there were: English text has about four."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a body."""

    model: str | None = None
    messages: Raw = Raw(b"")
    input: Raw = Raw(b"")
    """The messages of the Responses API."""


_decoder: Final = msgspec.json.Decoder(Asked)


def read_asked(body: bytes | bytearray) -> Asked:
    """What a body asks for. Raises RequestError (400)."""
    try:
        return _decoder.decode(body)
    except UnicodeDecodeError:
        raise bad_request("The body is not valid UTF-8.", code="invalid_json") from None
    except msgspec.ValidationError as error:
        at_model = "$.model" in str(error)
        raise (
            bad_request("`model` must be a string.", param="model")
            if at_model
            else bad_request("The body must be a JSON object.", code="invalid_json")
        ) from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_json") from None


def conversation(asked: Asked, headers: Mapping[str, str], key: bytes) -> Conversation | None:
    """The conversation of a request; None: it is part of none that can be recognised."""
    name = headers.get(CONVERSATION_HEADER)
    if name:
        return named_conversation(name, key)
    messages = bytes(asked.messages) or bytes(asked.input)
    return conversation_of(messages, key) if messages.startswith(b"[") else None


def hash_key(namespace: str, name: str) -> bytes:
    """The key of all digests of a front: the same on each of its replicas, another one for another front."""
    return hashlib.blake2b(f"{namespace}/{name}".encode(), digest_size=16).digest()


def no_model(known: list[str]) -> RequestError:
    """400 for a request that names no model."""
    shown = ", ".join(known[:8])
    return bad_request(f"`model` is required; it is one of: {shown}.", param="model", code="missing_required_parameter")
