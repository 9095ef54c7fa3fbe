"""The string formats that a structural schema may ask for; one that is not listed is not checked."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import ipaddress
import re
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from fulcrum.api.schema.cel_values import duration, timestamp

_HOSTNAME = re.compile(r"^([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?\.?$")
_EMAIL = re.compile(r"^[^@\s]+@[^@\s]+$")
_MAC = re.compile(r"^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}$")
_DATE_TIME = re.compile(r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$")


def _uri(text: str) -> None:
    parts = urlsplit(text)
    if not parts.scheme:
        raise ValueError(text)


def _cidr(text: str) -> None:
    if "/" not in text:
        raise ValueError(text)
    ipaddress.ip_network(text, strict=False)


def _like(pattern: re.Pattern[str]) -> Callable[[str], object]:
    def parse(text: str) -> None:
        if not pattern.match(text):
            raise ValueError(text)

    return parse


def _byte(text: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error


def _date_time(text: str) -> None:
    _like(_DATE_TIME)(text)
    timestamp(text.upper())


_PARSERS: dict[str, Callable[[str], object]] = {
    "byte": _byte,
    "cidr": _cidr,
    "date": dt.date.fromisoformat,
    "date-time": _date_time,
    "duration": duration,
    "email": _like(_EMAIL),
    "hostname": _like(_HOSTNAME),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "mac": _like(_MAC),
    "uri": _uri,
    "uuid": uuid.UUID,
}


def matches(name: str, text: str) -> bool:
    """Whether `text` is of the format `name`."""
    parse = _PARSERS.get(name)
    if parse is None:
        return True
    try:
        parse(text)
    except ValueError:
        return False
    return True
