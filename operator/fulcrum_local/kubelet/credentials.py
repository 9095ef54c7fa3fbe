"""A Pod's own way to the API server: a kubeconfig with a short-lived token of its ServiceAccount."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from fulcrum.kube import Api, ApiFailure
from fulcrum_local.kubelet.processes import write_private

Json = dict[str, Any]
logger = logging.getLogger(__name__)

TOKEN_SECONDS: Final = 24 * 3600
_RENEW_AT: Final = 0.8
"""Share of a token's life after which it is renewed, as the kubelet does."""


def wants_token(pod: Json) -> bool:
    """Whether the Pod wants credentials at all."""
    return pod["spec"].get("automountServiceAccountToken") is not False


class Credentials:
    """Writes and renews one Pod's `kubeconfig` and `token` in `directory`. Errors of `write`: ApiError, Unreachable."""

    def __init__(self, api: Api, pod: Json, directory: Path, on_token: Callable[[str], None]) -> None:
        """`on_token` is called with each new token."""
        self._on_token = on_token
        self._api = api
        self._pod = pod
        self._directory = directory
        self.kubeconfig = directory / "kubeconfig"

    async def write(self) -> float:
        """Fetch a token and write both files; returns the seconds until it should be renewed."""
        metadata = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName") or "default"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {},
            "spec": {
                "expirationSeconds": TOKEN_SECONDS,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        asked_at = time.time()
        answer = await self._api.create(
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token", request
        )
        token = answer["status"]["token"]
        token_file = self._directory / "token"
        write_private(token_file, token)
        self._on_token(token)
        configuration = (await self._api.connect()).configuration
        write_private(self.kubeconfig, yaml.safe_dump(self._document(configuration, token, token_file, account)))
        return _RENEW_AT * _lifetime_seconds(answer, asked_at) * random.uniform(0.95, 1.0)  # noqa: S311 - spreads load

    async def keep(self, renew_in_seconds: float) -> None:
        """Renew for ever. Clients re-read `tokenFile` (or this file) when they get a 401."""
        while True:
            await asyncio.sleep(renew_in_seconds)
            try:
                renew_in_seconds = await self.write()
            except (ApiFailure, OSError) as error:
                logger.warning("token_not_renewed pod=%s error=%s", self._pod["metadata"]["name"], error)
                renew_in_seconds = 30.0

    def _document(self, configuration: Any, token: str, token_file: Path, account: str) -> Json:
        entry: Json = {"server": configuration.host}
        if configuration.ssl_ca_cert:
            authority = Path(configuration.ssl_ca_cert).read_bytes()
            entry["certificate-authority-data"] = base64.b64encode(authority).decode()
        if not configuration.verify_ssl:
            entry["insecure-skip-tls-verify"] = True
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": entry}],
            # Both: clients that know `tokenFile` read it again when the token has been renewed.
            "users": [{"name": account, "user": {"token": token, "tokenFile": str(token_file)}}],
            "contexts": [
                {
                    "name": "pod",
                    "context": {
                        "cluster": "cluster",
                        "user": account,
                        "namespace": self._pod["metadata"]["namespace"],
                    },
                }
            ],
            "current-context": "pod",
        }


def _lifetime_seconds(answer: Json, asked_at: float) -> float:
    """How long the server made the token last (it may shorten or lengthen what was asked for)."""

    stamp = answer["status"].get("expirationTimestamp")
    if not stamp:
        return float(TOKEN_SECONDS)
    expires = dt.datetime.fromisoformat(stamp)
    return max(60.0, expires.timestamp() - asked_at)
