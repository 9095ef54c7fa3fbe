"""Making certificates: the API server's, signed by an authority of its own, and a kubelet's, which signs itself."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import Any, Final

_TEN_YEARS: Final = dt.timedelta(days=3650)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS context for a listening socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


def self_signed(common_name: str, address: str) -> bytes:
    """Key and certificate of a server at an IP address, in one PEM file. It is its own authority, as a kubelet's is."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = name(common_name)
    built = (
        builder(subject, subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return key_bytes(key) + certificate_bytes(built, key)


def name(common_name: str) -> Any:
    """An X.509 name."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def builder(subject: Any, issuer: Any, public_key: Any) -> Any:
    """A certificate of ten years, yet without extensions."""
    from cryptography import x509

    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _TEN_YEARS)
    )


def key_bytes(key: Any) -> bytes:
    """PEM of a private key."""
    from cryptography.hazmat.primitives import serialization as s

    return bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))


def certificate_bytes(built: Any, key: Any) -> bytes:
    """PEM of the certificate, signed by `key`."""
    from cryptography.hazmat.primitives import hashes, serialization

    return bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
