"""Contract between operator, gateways, agents and engines of one cluster: the token that they know each other by.

The operator keeps it in a Secret; every other process gets it as an environment variable from there. It is sent as
`Authorization: Bearer TOKEN`. A worker without a token (one that an operator of release 0.1 made) asks for none.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from fulcrum.api.names import GROUP

SECRET_KEY: Final = "token"  # noqa: S105 (the name of one)
"""Key of the Secret's data."""
ENV_GATEWAY: Final = "FULCRUM_INTERNAL_TOKEN"
ENV_WORKER: Final = "VLLM_API_KEY"
"""vLLM reads the key that it asks for from it; the agent asks for the same."""
ANNOTATION_TOKEN: Final = f"{GROUP}/internal-token"
"""On Pods that were made with a token: its fingerprint."""
HEADER: Final = "Authorization"
_SCHEME: Final = "Bearer "
_FINGERPRINT_DIGITS: Final = 16


def internal_secret_name(cluster: str) -> str:
    """Name of the Secret with a cluster's token."""
    return f"{cluster}-internal"


def record_secret_name(cluster: str) -> str:
    """Name of the Secret with what reads the rings of a cluster's gateways, and is good for nothing else."""
    return f"{cluster}-record"


def record_token(token: str) -> str:
    """Return what gateways take for the last requests alone. It is made from the token, and does not tell it."""
    return hmac.digest(token.encode(), b"record", "sha256").hex()


def authorization(token: str) -> str:
    """Return the value of the header that carries a token."""
    return f"{_SCHEME}{token}"


def is_authorized(header: str | None, token: str) -> bool:
    """Report whether a header carries the token; how long this takes does not depend on where the two differ."""
    given = header or ""
    scheme, secret = given[: len(_SCHEME)], given[len(_SCHEME) :]
    same = hmac.compare_digest(secret.encode(errors="surrogateescape"), token.encode())
    return same and scheme.lower() == _SCHEME.lower()


def fingerprint(token: str) -> str:
    """Return what tells tokens apart and says nothing about them: they are random, so a hash cannot be guessed back."""
    return hashlib.sha256(token.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def derived_number(token: str, purpose: str) -> int:
    """Return 64 bits that every holder of the token can make, and that do not tell it; each `purpose` has its own."""
    return int.from_bytes(hmac.digest(token.encode(), purpose.encode(), "sha256")[:8])
