"""A Prometheus that asks for a token, over TLS; and servers that are none and must not be repeated or followed."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.sources import SECRET_SECONDS, Sources
from fulcrum.kube import ApiError
from fulcrum.telemetry import ClusterRef, PrometheusAccess, PrometheusSource, Unknown
from fulcrum.telemetry.prometheus_calls import PrometheusCalls

CLUSTER = ClusterRef(namespace="ml", name="chat")
TOKEN = "t0ken-of-a-reader"
EMPTY = '{"status": "success", "data": {"resultType": "vector", "result": []}}'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def self_signed(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A server's context and its certificate, which is its own CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "prometheus")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(pem + private)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return context, pem.decode()


@contextlib.asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", handler)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def reason(source: Any) -> str:
    answer = await source.traffic(CLUSTER, window_seconds=30, now=1000.0)
    assert isinstance(answer, Unknown)
    return answer.reason


async def guarded(request: web.Request) -> web.Response:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return web.Response(status=401, text="token expected by internal-host")
    return web.Response(text=EMPTY, content_type="application/json")


async def test_token_and_ca_open_a_server_and_nothing_else_does(tmp_path: Path) -> None:
    context, ca_pem = self_signed(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = self_signed(tmp_path / "other")
    async with serving(guarded, context) as url, PrometheusCalls() as calls:
        for access, said in (
            (PrometheusAccess(token=TOKEN, ca_pem=ca_pem), "has no series"),
            (PrometheusAccess(token="another", ca_pem=ca_pem), "refused a query (HTTP 401)"),
            (PrometheusAccess(ca_pem=ca_pem), "refused a query (HTTP 401)"),
            (PrometheusAccess(token=TOKEN), "certificate is not trusted"),
            (PrometheusAccess(token=TOKEN, ca_pem=other), "certificate is not trusted"),
            (PrometheusAccess(token=TOKEN, ca_pem="no pem"), "ca.crt of metrics.prometheus.secretName holds no"),
        ):
            told = await reason(PrometheusSource(url, access, calls=calls))
            assert said in told
            assert TOKEN not in told + repr(access)


@pytest.mark.parametrize(
    "token", ["internal\nsecret", "internal\rsecret", "internal secret", "internal\x00", "internal\u20ac"]
)
async def test_a_token_that_is_none_is_not_repeated(token: str) -> None:
    async with PrometheusCalls() as calls:
        told = await reason(PrometheusSource("https://127.0.0.1:1", PrometheusAccess(token=token), calls=calls))
    assert "internal" not in told
    assert "is no bearer token" in told


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, "internal-secret"),
        (500, '{"error": "internal-secret"}'),
        (200, "internal-secret"),
        (200, '{"data": {"result": [{"metric": {}, "value": [1, "internal-secret"]}]}}'),
        (200, '{"data": {"result": [{"metric": {}, "value": "internal-secret"}]}}'),
        (200, '{"internal-secret": 1}'),
        (200, '{"data": {"result": "internal-secret"}}'),
    ],
)
async def test_what_a_foreign_server_answers_is_never_repeated(status: int, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    async with serving(answer) as url, PrometheusCalls() as calls:
        told = await reason(PrometheusSource(url, calls=calls))
    assert "internal" not in told
    assert "metrics.prometheus" in told


async def test_redirects_are_not_followed() -> None:
    followed = []

    async def metadata(request: web.Request) -> web.Response:
        followed.append(request.path)
        return web.Response(text=EMPTY, content_type="application/json")

    async with serving(metadata) as target:

        async def redirect(_: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": f"{target}/latest/meta-data"})

        async with serving(redirect) as url, PrometheusCalls() as calls:
            assert "redirects" in await reason(PrometheusSource(url, calls=calls))
    assert followed == []


def spec_of(url: str, secret: str | None = "prometheus") -> InferenceClusterSpec:
    document = {
        "model": {"name": "m"},
        "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}],
        "metrics": {"prometheus": {"url": url, **({"secretName": secret} if secret else {})}},
    }
    return msgspec.convert(document, InferenceClusterSpec)


class Secrets:
    """Secrets of one namespace."""

    def __init__(self) -> None:
        self.held: dict[str, str] | None = None
        self.refused = False
        self.labels = {"fulcrum.dev/prometheus-access": "true"}
        self.reads: list[tuple[str, str]] = []

    async def read(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.reads.append((namespace, name))
        if self.refused:
            raise ApiError(403, "Forbidden", 'secrets "prometheus" is forbidden')
        if self.held is None:
            return None
        data = {key: base64.b64encode(value.encode()).decode() for key, value in self.held.items()}
        return {"metadata": {"labels": self.labels}, "data": data}


async def test_the_secret_is_read_from_the_clusters_namespace_and_read_again_when_a_token_is_rotated(
    tmp_path: Path,
) -> None:
    context, ca_pem = self_signed(tmp_path)
    secrets, seconds = Secrets(), [0.0]
    async with serving(guarded, context) as url, Sources(secrets.read, clock=lambda: seconds[0]) as sources:
        spec = spec_of(url)
        assert "does not exist" in await reason(await sources.of(spec, "ml"))
        seconds[0] += SECRET_SECONDS
        secrets.refused = True
        assert "let the operator's service account get it" in await reason(await sources.of(spec, "ml"))
        seconds[0] += SECRET_SECONDS
        secrets.refused, secrets.held = False, {"password": "x"}
        assert "neither the key token nor the key ca.crt" in await reason(await sources.of(spec, "ml"))
        seconds[0] += SECRET_SECONDS
        secrets.held = {"token": "yesterday's\n", "ca.crt": ca_pem}
        assert "HTTP 401" in await reason(await sources.of(spec, "ml"))
        secrets.held = {"token": f"{TOKEN}\n", "ca.crt": ca_pem}
        assert "HTTP 401" in await reason(await sources.of(spec, "ml")), "read once a minute"
        seconds[0] += SECRET_SECONDS
        assert "has no series" in await reason(await sources.of(spec, "ml"))
        assert set(secrets.reads) == {("ml", "prometheus")}
        # Another Secret's token goes nowhere.
        seconds[0] += SECRET_SECONDS
        secrets.labels = {}
        told = await reason(await sources.of(spec, "ml"))
        assert "kubectl label secret prometheus fulcrum.dev/prometheus-access=true" in told
        # Another namespace does not get this one's token.
        secrets.held = None
        assert "does not exist" in await reason(await sources.of(spec, "other"))


async def test_no_secret_is_read_where_none_is_named() -> None:
    secrets = Secrets()
    async with Sources(secrets.read) as sources:
        await sources.of(spec_of("http://127.0.0.1:1", None), "ml")
    assert secrets.reads == []
