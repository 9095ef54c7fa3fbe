"""What a call to the Kubernetes API raises."""

from __future__ import annotations


class ApiFailure(Exception):  # noqa: N818 - base of a refusal and of no answer at all
    """The API server refused a call or gave no answer."""


class ApiError(ApiFailure):
    """The API server refused a call; `code` is the HTTP status, `reason` that of the Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message or f"HTTP {code}")
        self.code = code
        self.reason = reason


class Unreachable(ApiFailure):
    """The API server gave no (whole) answer in time; try again later."""


class ConfigError(ApiFailure):
    """No call can be made: there is no usable configuration: neither a kubeconfig nor the service account of a Pod."""
