"""One request for a resource as the verbs take it, and their answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from fulcrum_local.apiserver.authentication import User
from fulcrum_local.apiserver.bodies import duplicate_fields, parse_body
from fulcrum_local.apiserver.errors import ApiError
from fulcrum_local.apiserver.kinds import Kind
from fulcrum_local.apiserver.presentation import Form, negotiate
from fulcrum_local.apiserver.request import Target
from fulcrum_local.apiserver.write_options import WriteOptions

_LONGEST_MANAGER: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One authorized request for a resource."""

    request: web.BaseRequest
    target: Target
    kind: Kind
    user: User
    raw: bytes
    warnings: list[str] = field(default_factory=list)

    @property
    def query(self) -> Any:
        """Query parameters."""
        return self.request.query

    def body(self) -> Any:
        """The decoded body."""
        return parse_body(self.raw, self.request.headers.get("Content-Type", ""))

    def form(self) -> Form:
        """The form of the answer."""
        return negotiate(self.request.headers.get("Accept", ""), self.query)

    def _manager(self) -> str:
        asked = str(self.query.get("fieldManager") or "")
        if len(asked) > _LONGEST_MANAGER or not asked.isprintable():
            raise ApiError(
                422, f"fieldManager: Invalid value: {asked!r}: at most {_LONGEST_MANAGER} printable characters"
            )
        return asked or default_manager(self.request)

    def write_options(self) -> WriteOptions:
        """How to write; 400 for parameters that are not known."""
        dry_run = self.query.getall("dryRun", [])
        if any(value not in ("All", "") for value in dry_run):
            raise ApiError(422, f"dryRun: Unsupported value: {dry_run!r}: supported values: All")
        validation = self.query.get("fieldValidation", "Warn") or "Warn"
        if validation not in ("Ignore", "Warn", "Strict"):
            text = 'supported values: "Ignore", "Strict", "Warn"'
            raise ApiError(422, f'fieldValidation: Unsupported value: "{validation}": {text}')
        return WriteOptions(
            user=self.user,
            manager=self._manager(),
            dry_run=bool(dry_run and dry_run != [""]),
            field_validation=validation,
            duplicates=() if validation == "Ignore" else tuple(duplicate_fields(self.raw)),
            warnings=self.warnings,
        )


def default_manager(request: web.BaseRequest) -> str:
    """Field manager of a client that names none: the start of its user agent."""
    return request.headers.get("User-Agent", "unknown").partition("/")[0][:_LONGEST_MANAGER]


def answer(call: Call, body: bytes, code: int = 200) -> web.Response:
    """JSON with the warnings that came up."""
    response = web.Response(body=body, status=code, content_type="application/json")
    for warning in dict.fromkeys(call.warnings):
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response
