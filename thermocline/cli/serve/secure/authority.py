"""A certificate authority of one cluster, and the certificates of its brokers. Keys are ECDSA P-256.

The authority signs only certificates of brokers. The brokers' listener accepts every certificate that it signed: a
subject of exactly `CN=broker-N` is a broker, any other one a client with the rights of its ACLs. Pure except for random
numbers; the caller gives the time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Thermocline cluster CA")])
AUTHORITY_DAYS: Final = 3650
BROKER_DAYS: Final = 397
"""The longest validity of a server certificate that TLS clients accept (CA/Browser Forum, 2020)."""

RENEW_BEFORE_DAYS: Final = 30
_BACKDATED: Final = timedelta(minutes=5)  # margin for clocks that are slow


class AuthorityError(ValueError):
    """A certificate or key of the authority cannot be used."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority: its certificate, and its key if brokers may be added or certificates renewed."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, now: datetime) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _AUTHORITY_NAME
        building = (
            _dated(name, name, key.public_key(), now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        return cls(building.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate_pem: bytes, key_pem: bytes) -> Authority:
        """Raises AuthorityError."""
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            key = load_pem_private_key(key_pem, password=None)
        except (ValueError, TypeError) as unreadable:
            raise AuthorityError("not a certificate and a key in PEM") from unreadable
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise AuthorityError("the key does not belong to the certificate")
        return cls(certificate, key)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self.key)

    def issue(self, name: str, hosts: Iterable[str], now: datetime) -> bytes:
        """Key and certificate, as one PEM text, of a broker named `name` that is reached at `hosts` (names or
        addresses)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _dated(subject, self.certificate.subject, key.public_key(), now, BROKER_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return _key_pem(key) + certificate.public_bytes(Encoding.PEM) + self.certificate_pem


def flaw(pem: bytes, authority: x509.Certificate, hosts: Iterable[str], now: datetime) -> str | None:
    """The reason why the first certificate of `pem` cannot serve `hosts` now; None if it can: it is signed by
    `authority`, names all hosts and has not expired."""
    try:
        certificate = x509.load_pem_x509_certificates(pem)[0]
    except ValueError:
        return "has no certificate in PEM"
    try:
        certificate.verify_directly_issued_by(authority)
        named = set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return "is not signed by this cluster's CA"
    if certificate.not_valid_after_utc <= now:
        return f"ended on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if lacking := [host for host in dict.fromkeys(hosts) if _general(host) not in named]:
        return f"lacks host {', '.join(lacking)}"
    return None


def is_of_another_cluster(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the certificate is signed by a cluster's CA other than `authority`. A certificate that an operator's own
    CA signed proves nothing."""
    if certificate.issuer != _AUTHORITY_NAME:
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return True
    return False


def due(expires: datetime, now: datetime) -> bool:
    """Whether a certificate that expires then is to be renewed."""
    return expires - now <= timedelta(days=RENEW_BEFORE_DAYS)


def described(pem: bytes) -> tuple[tuple[str, ...], datetime]:
    """The hosts that the first certificate of `pem` names, and when it expires. Raises AuthorityError."""
    try:
        certificate = x509.load_pem_x509_certificates(pem)[0]
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as unreadable:
        raise AuthorityError(
            "no broker's certificate in PEM: restore it, or let a start create it again"
        ) from unreadable
    return tuple(str(name.value) for name in named), certificate.not_valid_after_utc


def _dated(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
