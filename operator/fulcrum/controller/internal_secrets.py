"""The token of each cluster: made where there is none, read where there is one."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from fulcrum.api.internal_token import SECRET_KEY, internal_secret_name
from fulcrum.controller.child_sync import NameTakenError, why_taken
from fulcrum.controller.children import Manifest, Owner
from fulcrum.controller.children.internal_secret import internal_secret, record_secret, token_of
from fulcrum.controller.kube import SECRET, ApiFailure, Kube
from fulcrum.controller.observed import is_owned
from fulcrum.kube import ApiError

logger = logging.getLogger(__name__)

_TOKEN_BYTES: Final = 32
"""Of randomness: as much as a 256-bit key."""


class NoTokenError(Exception):
    """The Secret is there and holds no token; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    uid: str
    """Of the InferenceCluster."""
    token: str = field(repr=False)
    read_at: float


class InternalSecrets:
    """Makes and reads the Secrets. Remembers tokens: one whose Secret is deleted is written again, so that all goes on.

    Where the operator was restarted meanwhile the new token is another one, and Pods with the one before are replaced.
    """

    def __init__(self, kube: Kube, *, resync_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}

    def forget(self, namespace: str, name: str) -> None:
        """The cluster is gone."""
        self._known.pop((namespace, name), None)

    async def token(self, owner: Owner, *, may_make: bool) -> str | None:
        """Return the cluster's token; None where there is no Secret and none may be made.

        The Secret is looked at now and then. Errors: ApiFailure, NameTakenError and NoTokenError.
        """
        key, now = (owner.namespace, owner.name), self._clock()
        known = self._known.get(key)
        if known is not None and known.uid != owner.uid:
            known = None
        if known is not None and now - known.read_at < self._resync_seconds:
            return known.token
        try:
            token = await self._read(owner)
            if token is None and may_make:
                token = await self._make(owner, known.token if known is not None else _new_token())
        except ApiFailure as error:
            if known is not None:
                return known.token  # what it was a while ago
            if isinstance(error, ApiError) and error.code == HTTPStatus.FORBIDDEN:
                raise NoTokenError(
                    f"The operator may not keep the cluster's token ({error}): apply the roles of this release "
                    "(docs/operations/security.md)."
                ) from error
            raise
        if token is not None:
            if may_make:
                await self._keep_record_secret(owner, token)
            self._known[key] = _Known(uid=owner.uid, token=token, read_at=now)
        return token

    async def _read(self, owner: Owner) -> str | None:
        live = await self._kube.get(SECRET, owner.namespace, internal_secret_name(owner.name))
        if live is None:
            return None
        if not is_owned(live["metadata"], owner.uid):
            raise NameTakenError(why_taken(live, internal_secret(owner, "")))
        return _checked(live)

    async def _make(self, owner: Owner, token: str) -> str | None:
        created = await self._kube.create(SECRET, internal_secret(owner, token))
        if created is None:  # another operator was quicker
            return await self._read(owner)
        logger.info("internal_secret_created namespace=%s cluster=%s", owner.namespace, owner.name)
        return token

    async def _keep_record_secret(self, owner: Owner, token: str) -> None:
        """Make the Secret of `fulcrum record`. Nothing but that command needs it, so no failure stops anything else."""
        wanted = record_secret(owner, token)
        name = wanted["metadata"]["name"]
        try:
            live = await self._kube.get(SECRET, owner.namespace, name)
            if live is None:
                await self._kube.create(SECRET, wanted)
                return
        except ApiFailure as error:
            logger.warning("record_secret_unknown namespace=%s secret=%s error=%s", owner.namespace, name, error)
            return
        if not is_owned(live["metadata"], owner.uid) or token_of(live) != token_of(wanted):
            logger.warning(
                "record_secret_is_another_one namespace=%s secret=%s: fulcrum record cannot read this cluster. Delete "
                "the Secret (kubectl delete secret -n %s %s), and it is made anew.",
                owner.namespace, name, owner.namespace, name,
            )  # fmt: skip


def _new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def _checked(secret: Manifest) -> str:
    token = token_of(secret)
    if token is None:
        name = secret["metadata"]["name"]
        raise NoTokenError(
            f"Secret {name} has no usable key {SECRET_KEY}: delete it (kubectl delete secret {name}), and it is made "
            "anew."
        )
    return token
