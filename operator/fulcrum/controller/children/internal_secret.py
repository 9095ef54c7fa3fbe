"""The Secret with the token by which the parts of a cluster know each other."""

from __future__ import annotations

import base64
import binascii

from fulcrum.api.internal_token import SECRET_KEY, internal_secret_name, record_secret_name, record_token
from fulcrum.api.names import COMPONENT_GATEWAY
from fulcrum.controller.children.owner import Manifest, Owner


def internal_secret(owner: Owner, token: str) -> Manifest:
    """Return the Secret. It cannot be changed: whatever runs holds the token that it was started with."""
    return _secret(owner, internal_secret_name(owner.name), token)


def record_secret(owner: Owner, token: str) -> Manifest:
    """Return the Secret of `fulcrum record`: a right to read it is the right to the last requests, and to no engine."""
    return _secret(owner, record_secret_name(owner.name), record_token(token))


def _secret(owner: Owner, name: str, token: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owner.metadata(name, COMPONENT_GATEWAY),
        "type": "Opaque",
        "immutable": True,
        "data": {SECRET_KEY: base64.b64encode(token.encode()).decode()},
    }


def token_of(secret: Manifest) -> str | None:
    """Return the token that a Secret holds; None when it holds none that can be sent in a header."""
    try:
        token = base64.b64decode((secret.get("data") or {}).get(SECRET_KEY, ""), validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return token if token and token.isprintable() and " " not in token else None


def token_env(variable: str, cluster: str) -> Manifest:
    """Return the environment variable that gives a container its cluster's token."""
    reference = {"name": internal_secret_name(cluster), "key": SECRET_KEY}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}
