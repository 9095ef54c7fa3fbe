"""Spec, the part about web pages that ask a gateway."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from fulcrum.api.base import ApiStruct, Rules, rule

_MAX_ORIGINS: Final = 32

_Origin = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^(\*|[a-z][a-z0-9+.-]*://[A-Za-z0-9.:\[\]-]+)$")]


class Cors(ApiStruct, frozen=True, kw_only=True):
    """Web pages that may ask (CORS)."""

    allowed_origins: Annotated[
        tuple[_Origin, ...],
        Meta(
            min_length=1,
            max_length=_MAX_ORIGINS,
            description="Origins, such as https://app.example.com; '*' alone: every one.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ]

    rules: ClassVar[Rules] = (
        rule(
            "size(self.allowedOrigins) == 1 || !self.allowedOrigins.exists(o, o == '*')",
            "allowedOrigins: '*' stands alone",
        ),
    )
