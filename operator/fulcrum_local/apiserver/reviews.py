"""Questions that are answered and not stored: who am I, may I, is this token good; and tokens for ServiceAccounts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from aiohttp import web

from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.authentication import AUDIENCES, MASTERS, Authenticator, User
from fulcrum_local.apiserver.authorization import Attributes, Authorizer
from fulcrum_local.apiserver.bodies import checked
from fulcrum_local.apiserver.call import Call, answer
from fulcrum_local.apiserver.errors import Json, cause
from fulcrum_local.apiserver.presentation import encode
from fulcrum_local.apiserver.store import Store
from fulcrum_local.apiserver.times import now_text, time_text

_SHORTEST_TOKEN_SECONDS = 600


class _Access(msgspec.Struct):
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class _Bound(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    user: str = ""
    groups: list[str] | None = None
    namespace: str = ""
    token: str = ""
    resource_attributes: _Access | None = None
    non_resource_attributes: _Access | None = None
    expiration_seconds: int | None = None
    audiences: list[str] | None = None
    bound_object_ref: _Bound | None = None


class _Review(msgspec.Struct):
    """What the bodies of all reviews can have."""

    metadata: dict[str, Any] | None = None
    spec: _Spec | None = None


class Reviews:
    """The authentication and authorization APIs."""

    def __init__(self, store: Store, authenticator: Authenticator, authorizer: Authorizer) -> None:
        self._store, self._authenticator, self._authorizer = store, authenticator, authorizer

    def answer(self, call: Call) -> web.Response:
        """Answer a review of any kind."""
        body = checked(call.body(), _Review)
        spec: Json = body.get("spec") or {}
        match call.kind.kind:
            case "SelfSubjectReview":
                status: Json = {"userInfo": call.user.info()}
            case "TokenReview":
                status = self._token_status(spec)
            case "SelfSubjectAccessReview":
                status = self._access_status(call.user, spec)
            case "SelfSubjectRulesReview":
                status = self._rules_status(call.user, spec.get("namespace", ""))
            case _:
                user = User(name=spec.get("user", ""), groups=tuple(spec.get("groups") or ()))
                status = self._access_status(user, spec)
        metadata = {"creationTimestamp": None, **(body.get("metadata") or {})}
        review = {"kind": call.kind.kind, "apiVersion": call.kind.api_version, "metadata": metadata}
        return answer(call, encode({**review, "spec": spec, "status": status}), 201)

    async def token(self, call: Call) -> web.StreamResponse:
        """`serviceaccounts/token`: a new token."""
        target = call.target
        stored = self._store.get("serviceaccounts", target.namespace, target.name)
        if stored is None:
            raise errors.not_found("", "serviceaccounts", target.name)
        body = checked(call.body(), _Review)
        spec: Json = body.get("spec") or {}
        seconds = spec.get("expirationSeconds")
        if seconds is not None and seconds < _SHORTEST_TOKEN_SECONDS:
            text = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            causes = [cause("spec.expirationSeconds", "FieldValueInvalid", text)]
            raise errors.invalid("authentication.k8s.io", "TokenRequest", target.name, causes)
        token, expires = self._authenticator.issue(stored.obj, spec)
        moment = dt.datetime.fromtimestamp(expires, dt.UTC)
        return answer(call, encode({
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": target.name, "namespace": target.namespace, "creationTimestamp": now_text()},
            "spec": {"audiences": AUDIENCES, "expirationSeconds": 3600, "boundObjectRef": None, **spec},
            "status": {"token": token, "expirationTimestamp": time_text(moment)},
        }), 201)  # fmt: skip

    def _token_status(self, spec: Json) -> Json:
        user = self._authenticator.user_of_token(spec.get("token", ""))
        if user is None:
            return {"authenticated": False, "error": "token is not valid", "user": {}}
        return {"authenticated": True, "user": user.info(), "audiences": AUDIENCES}

    def _access_status(self, user: User, spec: Json) -> Json:
        resource: Any = spec.get("resourceAttributes")
        path: Any = spec.get("nonResourceAttributes")
        if resource:
            access = Attributes(
                verb=resource.get("verb", ""),
                group=resource.get("group", ""),
                resource=resource.get("resource", ""),
                subresource=resource.get("subresource", ""),
                namespace=resource.get("namespace", ""),
                name=resource.get("name", ""),
            )
        elif path:
            access = Attributes(verb=path.get("verb", ""), path=path.get("path", ""))
        else:
            raise errors.bad_request("exactly one of resourceAttributes or nonResourceAttributes must be set")
        allowed = self._authorizer.allows(user, access)
        return {"allowed": allowed} | ({} if allowed else {"reason": ""})

    def _rules_status(self, user: User, namespace: str) -> Json:
        rules = list(self._authorizer.rules(user, namespace))
        if MASTERS in user.groups:
            rules.append({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
        return {
            "resourceRules": [rule for rule in rules if rule.get("resources")],
            "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
            "incomplete": False,
        }
