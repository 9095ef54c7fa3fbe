"""Identity of a caller: bearer tokens of the administrator and of ServiceAccounts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from fulcrum_local.apiserver.errors import Json, bad_request, unauthorized
from fulcrum_local.apiserver.store import Store

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
AUDIENCES: Final = [ISSUER]
MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
ANONYMOUS: Final = "system:anonymous"
_KUBELET_TOKEN_SECONDS: Final = 120
_MOST_VERIFIED: Final = 4096
_HEADER: Final = {"alg": "HS256", "typ": "JWT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated caller (or the anonymous one)."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict, compare=False)

    def info(self) -> Json:
        """`UserInfo` of the authentication API."""
        info: Json = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            info["uid"] = self.uid
        if self.extra:
            info["extra"] = self.extra
        return info


ANONYMOUS_USER: Final = User(name=ANONYMOUS, groups=("system:unauthenticated",))
KUBELET_CLIENT_USER: Final = User(name="kube-apiserver-kubelet-client", groups=(AUTHENTICATED,))
"""This server as kubelets see it: it may use their API, and nothing else."""
ADMIN_USER: Final = User(name="kubernetes-admin", groups=(MASTERS, AUTHENTICATED))


def _secret_file(path: Path) -> str:
    """Content of a file with a random secret, made at the first call, readable by the owner only."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32))
    return path.read_text().strip()


class Authenticator:
    """Turns an Authorization header into a `User`, and issues ServiceAccount tokens."""

    def __init__(self, state_dir: Path, store: Store) -> None:
        self.admin_token = _secret_file(state_dir / "admin-token")
        self._key = _secret_file(state_dir / "service-account-key").encode()
        self._store = store
        self._verified: dict[str, Json] = {}

    def user(self, authorization: str | None) -> User:
        """The caller; anonymous without a header, 401 for a token that is unknown, expired or revoked."""
        if not authorization:
            return ANONYMOUS_USER
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized()
        user = self.user_of_token(token.strip())
        if user is None:
            raise unauthorized()
        return user

    def user_of_token(self, token: str) -> User | None:
        """The user that a token stands for, or None."""
        if hmac.compare_digest(token.encode(), self.admin_token.encode()):
            return ADMIN_USER
        claims = self._claims(token)
        if claims is not None and claims["sub"] == KUBELET_CLIENT_USER.name:
            return KUBELET_CLIENT_USER
        return self._service_account(claims) if claims else None

    def kubelet_token(self) -> str:
        """A token for a request of this server to a kubelet; it ends soon: a process that poses as a node gets it."""
        now = int(time.time())
        claims = {"aud": AUDIENCES, "exp": now + _KUBELET_TOKEN_SECONDS, "iat": now, "nbf": now, "iss": ISSUER}
        return self._signed({**claims, "sub": KUBELET_CLIENT_USER.name})

    def issue(self, account: Json, spec: Json) -> tuple[str, int]:
        """Token of a ServiceAccount for a TokenRequest's `spec`, and when it expires (Unix seconds)."""
        seconds = spec.get("expirationSeconds") or 3600
        now = int(time.time())
        metadata = account["metadata"]
        bound: Json = {
            "namespace": metadata["namespace"],
            "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
        }
        reference = spec.get("boundObjectRef")
        if reference:
            bound["pod"] = self._bound_pod(metadata["namespace"], reference)
        claims = {
            "aud": spec.get("audiences") or AUDIENCES,
            "exp": now + seconds,
            "iat": now,
            "nbf": now,
            "iss": ISSUER,
            "kubernetes.io": bound,
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        }
        return self._signed(claims), now + seconds

    def _signed(self, claims: Json) -> str:
        text = f"{_base64(msgspec.json.encode(_HEADER))}.{_base64(msgspec.json.encode(claims))}"
        return f"{text}.{self._signature(text)}"

    def _bound_pod(self, namespace: str, reference: Json) -> Json:
        if reference.get("kind") != "Pod":
            raise bad_request("cannot bind token to object of kind " + str(reference.get("kind")))
        pod = self._store.get("pods", namespace, reference.get("name", ""))
        if pod is None or reference.get("uid", pod.obj["metadata"]["uid"]) != pod.obj["metadata"]["uid"]:
            raise bad_request(f'pods "{reference.get("name")}" not found')
        return {"name": pod.obj["metadata"]["name"], "uid": pod.obj["metadata"]["uid"]}

    def _claims(self, token: str) -> Json | None:
        claims = self._verified.get(token)
        if claims is None:
            text, _, signature = token.rpartition(".")
            if not text or not hmac.compare_digest(self._signature(text).encode(), signature.encode()):
                return None
            payload = text.partition(".")[2]
            claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            if len(self._verified) >= _MOST_VERIFIED:
                self._verified.clear()
            self._verified[token] = claims
        if claims["exp"] < time.time():
            self._verified.pop(token, None)
            return None
        return claims

    def _service_account(self, claims: Json) -> User | None:
        """Looked up every time, so that a token dies with its ServiceAccount or Pod."""
        bound = claims["kubernetes.io"]
        namespace, reference, pod_reference = bound["namespace"], bound["serviceaccount"], bound.get("pod")
        account = self._store.get("serviceaccounts", namespace, reference["name"])
        if account is None or account.obj["metadata"]["uid"] != reference["uid"]:
            return None
        extra: dict[str, list[str]] = {}
        if pod_reference:
            pod = self._store.get("pods", namespace, pod_reference["name"])
            if pod is None or pod.obj["metadata"]["uid"] != pod_reference["uid"]:
                return None
            extra = {
                "authentication.kubernetes.io/pod-name": [pod_reference["name"]],
                "authentication.kubernetes.io/pod-uid": [pod_reference["uid"]],
            }
        return User(
            name=claims["sub"],
            groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED),
            uid=reference["uid"],
            extra=extra,
        )

    def _signature(self, text: str) -> str:
        return _base64(hmac.new(self._key, text.encode(), hashlib.sha256).digest())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
