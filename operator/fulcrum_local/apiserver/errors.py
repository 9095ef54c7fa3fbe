"""API errors as Kubernetes Status objects, with the texts that users know from kubectl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]

_HTTP_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """A request that is answered with a Status of `code`; `reason` is what client libraries switch on."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = _HTTP_REASONS.get(code, "") if reason is None else reason
        self.details = dict(details or {})
        self.retry_after_seconds = retry_after_seconds

    def status(self) -> Json:
        """The Status object that goes over the wire."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
        }
        if self.retry_after_seconds is not None:
            self.details["retryAfterSeconds"] = self.retry_after_seconds
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


def qualified(plural: str, group: str) -> str:
    """`deployments.apps`, or `pods` for the core group: how Kubernetes writes a resource in a message."""
    return f"{plural}.{group}" if group else plural


def details(group: str, plural: str, name: str = "", uid: str = "", causes: Sequence[Json] = ()) -> Json:
    """`details` of a Status; empty fields are left out as a real server does."""
    fields = {"name": name, "group": group, "kind": plural, "uid": uid, "causes": list(causes)}
    return {key: value for key, value in fields.items() if value}


def bad_request(message: str) -> ApiError:
    """400: the request itself is malformed."""
    return ApiError(400, message)


def unauthorized() -> ApiError:
    """401: no or unknown credentials."""
    return ApiError(401, "Unauthorized")


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[Json] = ()) -> ApiError:
    """403: known, but not allowed."""
    what = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return ApiError(403, f"{what} is forbidden: {why}", details=details(group, plural, name, causes=causes))


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404 for one object."""
    return ApiError(404, f'{qualified(plural, group)} "{name}" not found', details=details(group, plural, name))


def no_such_path() -> ApiError:
    """404 for a path that no API serves."""
    return ApiError(404, "the server could not find the requested resource", details={})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """409 for a name that is taken."""
    return ApiError(
        409,
        f'{qualified(plural, group)} "{name}" already exists',
        reason="AlreadyExists",
        details=details(group, plural, name),
    )


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """409: the object is not what the writer thought it was."""
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}',
        details=details(group, plural, name),
    )


OBJECT_MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(group: str, kind: str, name: str, causes: Sequence[Json]) -> ApiError:
    """422: `causes` are `{reason, message, field}`, one for each wrong field."""
    texts = [f"{cause['field']}: {cause['message']}" if cause.get("field") else cause["message"] for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    what = f"{kind}.{group}" if group else kind
    return ApiError(422, f'{what} "{name}" is invalid: {text}', details=details(group, kind, name, causes=list(causes)))


def cause(field: str, reason: str, message: str) -> Json:
    """One wrong field of an `invalid` error."""
    return {"reason": reason, "message": message, "field": field}


def invalid_value(field: str, value: object, message: str) -> Json:
    """Cause `Invalid value`, with the value as a real server prints it."""
    shown = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else str(value)
    return cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {message}")


def required_value(field: str, message: str = "") -> Json:
    """Cause `Required value`."""
    return cause(field, "FieldValueRequired", f"Required value{': ' + message if message else ''}")


def not_supported(field: str, value: object, allowed: Sequence[str]) -> Json:
    """Cause `Unsupported value`, with what is supported in the order of the real server."""
    listed = ", ".join(f'"{name}"' for name in allowed)
    return cause(field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}')


def forbidden_field(field: str, message: str) -> Json:
    """Cause `Forbidden`: the field must not be there, or not be changed."""
    return cause(field, "FieldValueForbidden", f"Forbidden: {message}")


def duplicate(field: str, value: str) -> Json:
    """Cause `Duplicate value`."""
    return cause(field, "FieldValueDuplicate", f'Duplicate value: "{value}"')


def not_found_value(field: str, value: str) -> Json:
    """Cause `Not found`: the field names something that is not there."""
    return cause(field, "FieldValueNotFound", f'Not found: "{value}"')


def expired(message: str) -> ApiError:
    """410: the asked-for resourceVersion is no longer there; clients list again."""
    return ApiError(410, message)


def too_large_resource_version(asked: int, current: int) -> ApiError:
    """504: a resourceVersion from the future."""
    return ApiError(
        504,
        f"Too large resource version: {asked}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


def method_not_allowed() -> ApiError:
    """405: the resource does not support the verb."""
    return ApiError(405, "the server does not allow this method on the requested resource")


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """415: a body in a format that is not read."""
    return ApiError(
        415,
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted),
    )
