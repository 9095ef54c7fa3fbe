"""How a Prometheus server is authenticated to, and how it is trusted."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Session
    from requests.adapters import HTTPAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAccess:
    """Bearer token and CA, both optional. Neither is ever printed."""

    token: str | None = None
    ca_pem: str | None = None
    """The only CA that is trusted; None: those of the system."""

    def __repr__(self) -> str:
        return f"PrometheusAccess(token={self.token is not None}, ca_pem={self.ca_pem is not None})"

    @property
    def headers(self) -> dict[str, str] | None:
        """Headers of each request."""
        return None if self.token is None else {"Authorization": f"Bearer {self.token}"}


def session_for(access: PrometheusAccess) -> tuple[Session, HTTPAdapter]:
    """Return an HTTP session that follows no redirects, and an adapter that retries nothing and trusts `access`.

    Raises ssl.SSLError for a CA that is none.
    """
    from requests import Session
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    context = None if access.ca_pem is None else ssl.create_default_context(cadata=access.ca_pem)

    class Adapter(HTTPAdapter):
        """Trusts one CA, from memory: the operator's file system is read-only."""

        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            if context is not None:
                options["ssl_context"] = context
            super().init_poolmanager(*args, **options)

        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
            if context is None:
                super().cert_verify(conn, url, verify, cert)

    session = Session()
    # Neither proxies nor .netrc of the operator's environment belong to a user's server.
    session.trust_env = False
    session.max_redirects = 0
    # A retry would only spend the deadline; the next tick asks again.
    return session, Adapter(max_retries=Retry(total=0))
