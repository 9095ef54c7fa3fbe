"""Functions of Kubernetes' CEL libraries: lists, regex, URL, IP, format, quantity and optional.

Each raises ValueError with cel-go's text when an argument does not fit.
Source: https://kubernetes.io/docs/reference/using-api/cel/#cel-options-language-features-and-libraries
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import cel

from fulcrum.api.quantities import parse_quantity

_DNS_1123_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ALPHANUMERIC = "must consist of lower case alphanumeric characters"
_FORMATS: dict[str, tuple[str, int, str]] = {
    "dns1123Label": (_DNS_1123_LABEL, 63, f"a lowercase RFC 1123 label {_ALPHANUMERIC} or '-'"),
    "dns1123Subdomain": (
        rf"{_DNS_1123_LABEL}(\.{_DNS_1123_LABEL})*",
        253,
        f"a lowercase RFC 1123 subdomain {_ALPHANUMERIC}, '-' or '.'",
    ),
    "dns1035Label": (r"[a-z]([-a-z0-9]*[a-z0-9])?", 63, f"a DNS-1035 label {_ALPHANUMERIC} or '-'"),
    "labelValue": (
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
        63,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'",
    ),
}
"""Pattern, longest length in characters, and what is said of a text that does not match."""
_URL_KEY, _IP_KEY, _QUANTITY_KEY, _FORMAT_KEY = "@url", "@ip", "@quantity", "@format"
"""The engine has no opaque values, so a typed value travels as a map with one key that no object has."""


def _quantity(text: str) -> dict[str, str]:
    return {_QUANTITY_KEY: format(parse_quantity(text).normalize(), "f")}


def _is_valid(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


def _number(value: Any) -> Decimal:
    if isinstance(value, dict) and _QUANTITY_KEY in value:
        return Decimal(value[_QUANTITY_KEY])
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise ValueError("no such overload")


def _compare(left: Any, right: Any) -> int:
    return int(_number(left).compare(_number(right)))


def _as_quantity(value: Decimal) -> dict[str, str]:
    return {_QUANTITY_KEY: format(value.normalize(), "f")}


def _as_integer(value: Any) -> int:
    number = _number(value)
    if number != number.to_integral_value():
        raise ValueError("cannot convert value to integer")
    return int(number)


def _is_sorted(items: list[Any]) -> bool:
    return all(left <= right for left, right in itertools.pairwise(items))


def _index_of(value: Any, wanted: Any, offset: int = 0) -> int:
    if isinstance(value, list):
        return value.index(wanted) if wanted in value else -1
    return int(value.find(wanted, offset))


def _last_index_of(value: Any, wanted: Any, offset: int | None = None) -> int:
    if isinstance(value, list):
        return len(value) - 1 - value[::-1].index(wanted) if wanted in value else -1
    return int(value.rfind(wanted) if offset is None else value.rfind(wanted, 0, offset + len(wanted)))


def _extreme(choose: Callable[[list[Any]], Any], name: str) -> Callable[[list[Any]], Any]:
    def extreme(items: list[Any]) -> Any:
        if not items:
            raise ValueError(f"{name} called on empty list")
        return choose(items)

    return extreme


def _find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [match[0] for match in re.finditer(pattern, text)]
    return found if limit < 0 else found[:limit]


def _format(template: str, arguments: list[Any]) -> str:
    remaining = iter(arguments)

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        argument = next(remaining, None)
        if isinstance(argument, bool):
            argument = str(argument).lower()
        if match["verb"] == "f":
            return f"{float(str(argument)):.{match['precision'] or 6}f}"
        return str(argument)

    return re.sub(r"%%|%(?:\.(?P<precision>\d+))?(?P<verb>[sdfexXob])", one, template)


def _parse_url(text: str) -> dict[str, str]:
    parts = urlsplit(text)
    if not (text.startswith("/") or (parts.scheme and (parts.netloc or parts.path))):
        raise ValueError(f"URL parse error during conversion from string: parse {text!r}: invalid URI for request")
    return {_URL_KEY: text}


def _of_url(read: Callable[[Any], Any]) -> Callable[[dict[str, str]], Any]:
    return lambda value: read(urlsplit(value[_URL_KEY]))


def _parse_ip(text: str) -> dict[str, str]:
    try:
        return {_IP_KEY: str(ipaddress.ip_address(text))}
    except ValueError as error:
        raise ValueError(f"IP Address {text!r} parse error during conversion from string") from error


def _of_ip(read: Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], Any]) -> Callable[[dict[str, str]], Any]:
    return lambda value: read(ipaddress.ip_address(value[_IP_KEY]))


def _validate_format(form: dict[str, str], text: str) -> Any:
    pattern, longest, message = _FORMATS[form[_FORMAT_KEY]]
    problems = [] if re.fullmatch(pattern, text) else [message]
    if len(text) > longest:
        problems.append(f"must be no more than {longest} characters")
    return cel.OptionalValue.of(problems) if problems else cel.OptionalValue.none()


def _optional_select(value: Any, key: Any) -> Any:
    if isinstance(value, cel.OptionalValue):
        if not value.has_value():
            return value
        value = value.value()
    if isinstance(value, dict):
        return cel.OptionalValue.of(value[key]) if key in value else cel.OptionalValue.none()
    if isinstance(value, list) and isinstance(key, int):
        return cel.OptionalValue.of(value[key]) if 0 <= key < len(value) else cel.OptionalValue.none()
    raise ValueError("no such overload")


KUBERNETES_FUNCTIONS: dict[str, Callable[..., Any]] = {
    # lists
    "isSorted": _is_sorted,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "min": _extreme(min, "min"),
    "max": _extreme(max, "max"),
    # regex and strings
    "find": _find,
    "findAll": _find_all,
    "format": _format,
    # quantity
    "quantity": _quantity,
    "isQuantity": _is_valid(_quantity),
    "compareTo": _compare,
    "isGreaterThan": lambda left, right: _compare(left, right) > 0,
    "isLessThan": lambda left, right: _compare(left, right) < 0,
    "isInteger": lambda value: _number(value) == _number(value).to_integral_value(),
    "asInteger": _as_integer,
    "asApproximateFloat": lambda value: float(_number(value)),
    "sign": lambda value: _compare(value, 0),
    "add": lambda left, right: _as_quantity(_number(left) + _number(right)),
    "sub": lambda left, right: _as_quantity(_number(left) - _number(right)),
    # URL
    "url": _parse_url,
    "isURL": _is_valid(_parse_url),
    "getScheme": _of_url(lambda url: url.scheme),
    "getHost": _of_url(lambda url: url.netloc.rpartition("@")[2]),
    "getHostname": _of_url(lambda url: url.hostname or ""),
    "getPort": _of_url(lambda url: str(url.port or "")),
    "getEscapedPath": _of_url(lambda url: url.path),
    "getQuery": _of_url(lambda url: parse_qs(url.query, keep_blank_values=True)),
    # IP
    "ip": _parse_ip,
    "isIP": _is_valid(_parse_ip),
    "family": _of_ip(lambda address: address.version),
    "isLoopback": _of_ip(lambda address: address.is_loopback),
    "isUnspecified": _of_ip(lambda address: address.is_unspecified),
    # format
    **{f"format.{name}": (lambda name=name: {_FORMAT_KEY: name}) for name in _FORMATS},
    "validate": _validate_format,
    # optional
    "optSelect": _optional_select,
}
