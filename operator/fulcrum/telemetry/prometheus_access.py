"""How a Prometheus server is authenticated to, and how it is trusted."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAccess:
    """Bearer token and CA, both optional. Neither is ever printed."""

    token: str | None = None
    ca_pem: str | None = None
    """The only CA that is trusted; None: those of the system."""

    def __repr__(self) -> str:
        return f"PrometheusAccess(token={self.token is not None}, ca_pem={self.ca_pem is not None})"

    @property
    def usable(self) -> bool:
        """Whether the token can stand in a header: visible ASCII without blanks (RFC 6750)."""
        token = self.token
        return token is None or (token.isascii() and token.isprintable() and " " not in token)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


@functools.lru_cache(maxsize=32)
def tls_context(ca_pem: str | None) -> ssl.SSLContext:
    """Return the context that trusts this CA alone, or (None) those of the system. Raises ssl.SSLError for no CA."""
    return ssl.create_default_context(cadata=ca_pem)
