"""The server's own certificate authority, its serving certificate, and the kubeconfig that trusts them."""

from __future__ import annotations

import base64
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from fulcrum_local.certificates import builder, certificate_bytes, key_bytes, name, server_context


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCertificate:
    """Files of the certificate, its key, and the authority that clients must trust."""

    authority: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """TLS context for the listening socket."""
        return server_context(self.certificate, self.key)


def serving_certificate(state_dir: Path, addresses: tuple[str, ...]) -> ServingCertificate:
    """Certificate for the addresses; the authority is made once, the certificate when it does not fit (any more)."""
    folder = state_dir / "pki"
    folder.mkdir(mode=0o700, exist_ok=True)
    files = ServingCertificate(
        authority=folder / "ca.crt", certificate=folder / "apiserver.crt", key=folder / "apiserver.key"
    )
    authority_key = folder / "ca.key"
    made_for = folder / "addresses"
    if not (authority_key.exists() and files.authority.exists()):
        _make_authority(files.authority, authority_key)
        made_for.unlink(missing_ok=True)
    if not made_for.exists() or made_for.read_text().split() != list(addresses):
        _make_certificate(files, authority_key, addresses)
        made_for.write_text("\n".join(addresses))
    return files


def _make_authority(certificate_file: Path, key_file: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    authority = name("fulcrum-ca")
    built = builder(authority, authority, key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    built = built.add_extension(usage, critical=True).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    _write(key_file, key_bytes(key))
    _write(certificate_file, certificate_bytes(built, key))


def _make_certificate(files: ServingCertificate, authority_key: Path, addresses: tuple[str, ...]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signing_key = load_pem_private_key(authority_key.read_bytes(), password=None)
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(each) for each in ("localhost", "kubernetes", "kubernetes.default")]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
    built = (
        builder(name("kube-apiserver"), authority.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    _write(files.key, key_bytes(key))
    _write(files.certificate, certificate_bytes(built, signing_key))


def _write(file: Path, content: bytes) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(content)


def write_kubeconfig(file: Path, *, url: str, authority: bytes, token: str) -> None:
    """A kubeconfig (mode 0600, replaced in one step) with one context, `fulcrum`."""
    import yaml

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "fulcrum",
                "cluster": {"server": url, "certificate-authority-data": base64.b64encode(authority).decode()},
            }
        ],
        "users": [{"name": "fulcrum-admin", "user": {"token": token}}],
        "contexts": [{"name": "fulcrum", "context": {"cluster": "fulcrum", "user": "fulcrum-admin"}}],
        "current-context": "fulcrum",
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.new")
    _write(draft, yaml.safe_dump(config, sort_keys=False).encode())
    draft.replace(file)
