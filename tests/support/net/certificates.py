"""Certificates for tests: authorities, and what they sign. P-256 keys: a tenth of a millisecond each."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Signed:
    """A certificate with its key and what is above it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def chain_pem(self) -> str:
        return "".join(one.public_bytes(Encoding.PEM).decode() for one in (self.certificate, *self.above))

    def key_pem(self, password: str = "") -> str:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def pem(self, password: str = "") -> str:
        """One file with key and chain, as Kafka's PEM key stores."""
        return self.key_pem(password) + self.chain_pem

    def pkcs12(self, password: str) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"broker", self.key, self.certificate, self.above, encryption)

    def write(self, path: Path) -> str:
        path.write_text(self.pem())
        return str(path)


@dataclass
class Authority:
    """A CA; `below`: the CA that signed it, else itself."""

    name: str = "Test CA"
    below: Authority | None = None
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        issuer = self if self.below is None else self.below
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(issuer.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(issuer.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, path: Path) -> str:
        path.write_text(self.pem)
        return str(path)

    def sign(
        self,
        name: str = "broker",
        names: Sequence[str] = LOCAL,
        *,
        subject: x509.Name | None = None,
        begins: timedelta = timedelta(days=-1),
        lasts: timedelta = timedelta(days=90),
    ) -> Signed:
        """`names`: hosts and addresses that it stands for; `begins` from now, and `lasts` from now."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        signed = (
            x509.CertificateBuilder()
            .subject_name(subject or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + lasts)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )
        if names:
            signed = signed.add_extension(x509.SubjectAlternativeName([_general(one) for one in names]), critical=False)
        above = () if self.below is None else (self.certificate,)
        return Signed(key, signed.sign(self.key, hashes.SHA256()), above)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
