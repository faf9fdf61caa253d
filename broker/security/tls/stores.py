"""Reads key stores and trust stores: PEM and PKCS12, from files or inline. Blocking.

`BadStore` names the file, the fault and the remedy. Its text never has a password or key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from broker.config.values import InvalidConfig
from broker.security.tls.settings import Store

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE: Final = b"\x30"
"""The first byte of every PKCS12 file."""
_TIME: Final = "%Y-%m-%d %H:%M UTC"

ReadFile = Callable[[str], bytes]
"""The whole file of a path. Raises OSError."""


class BadStore(InvalidConfig):
    """A key store or trust store cannot be used."""


class KeyPair(msgspec.Struct, frozen=True):
    """A private key in unencrypted PEM, and its certificate chain, which begins with the key's own certificate."""

    key_pem: bytes
    chain: tuple[x509.Certificate, ...]

    @property
    def chain_pem(self) -> bytes:
        return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.chain)

    @property
    def expires(self) -> datetime:
        """Earliest expiry of the certificates in the chain."""
        return min(certificate.not_valid_after_utc for certificate in self.chain)


def read_keys(store: Store, key_password: str, where: str, read: ReadFile) -> KeyPair:
    """The key pair of a key store. Raises BadStore."""
    if store.location:
        data = _file(store, where, read)
        name = store.location
    else:
        data, name = f"{store.inline_key}\n{store.inline}".encode(), "ssl.keystore.key"
    if _is_pem(data):
        return _checked(_pem_key(data, key_password, name), _pem_certificates(data, name), name)
    try:
        key, own, others = pkcs12.load_key_and_certificates(data, store.password.encode() or None)
    except ValueError as refused:
        raise BadStore(_unreadable(store, refused, where)) from None
    if key is None or own is None:
        raise BadStore(f"{store.of}.location={name} ({where}) has no private key with its certificate")
    return _checked(key, _in_order(own, others), name)


def read_trust(store: Store, where: str, read: ReadFile) -> tuple[x509.Certificate, ...]:
    """Certificates of the CAs. Raises BadStore."""
    data = _file(store, where, read) if store.location else store.inline.encode()
    name = store.location or f"{store.of}.certificates"
    if _is_pem(data):
        found = _pem_certificates(data, name)
    else:
        try:
            held = pkcs12.load_pkcs12(data, store.password.encode() or None)
        except ValueError as refused:
            raise BadStore(_unreadable(store, refused, where)) from None
        own = () if held.cert is None else (held.cert.certificate,)
        found = (*own, *(one.certificate for one in held.additional_certs))
    if not found:
        raise BadStore(
            f"{name} ({where}) has no certificate: add the certificates of the CAs that sign the peers' certificates"
        )
    return found


def check_valid(keys: KeyPair, store: Store, where: str, now_ms: int) -> None:
    """Raise BadStore if the certificate, which is of `store`, is not valid now."""
    name = f"{store.of}.location={store.location} ({where})" if store.location else where
    own = keys.chain[0]
    if own.not_valid_after_utc.timestamp() * 1000 <= now_ms:
        raise BadStore(
            f"{name}: its certificate {_subject(own)} expired at {own.not_valid_after_utc:{_TIME}}: renew it "
            "(of serve --secure: `thermocline certificate renew --data-dir DIR`)"
        )
    if own.not_valid_before_utc.timestamp() * 1000 > now_ms:
        raise BadStore(
            f"{name}: its certificate {_subject(own)} is not valid before {own.not_valid_before_utc:{_TIME}}: check "
            "this machine's clock"
        )


def _file(store: Store, where: str, read: ReadFile) -> bytes:
    name = f"{store.of}.location={store.location} ({where})"
    try:
        data = read(store.location)
    except OSError as failed:
        raise BadStore(f"{name} cannot be read: {failed.strerror}; name a file that this process may read") from failed
    if data.startswith(_JKS_MAGIC):
        raise BadStore(
            f"{name} is in Java's own format (JKS), which is not read here: convert it with `keytool -importkeystore "
            f"-srckeystore {store.location} -destkeystore NEW.p12 -deststoretype PKCS12` and set {store.of}.type=PKCS12"
        )
    is_pem = _is_pem(data)
    if store.kind in ("PKCS12", "JKS") and is_pem:
        raise BadStore(f"{name} is PEM: set {store.of}.type=PEM")
    if not is_pem and not data.startswith(_DER_SEQUENCE):
        raise BadStore(f"{name} is neither PEM nor PKCS12: restore the file, or create it again")
    if store.kind == "PEM" and not is_pem:
        raise BadStore(f"{name} is not PEM: if it is PKCS12, set {store.of}.type=PKCS12")
    return data


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data[:65536]


def _unreadable(store: Store, refused: ValueError, where: str) -> str:
    return (
        f"{store.of}.location={store.location} ({where}) cannot be read as PKCS12: {refused}; check {store.of}.password"
    )


def _pem_key(data: bytes, password: str, name: str) -> PrivateKeyTypes:
    begin = data.find(b"-----BEGIN ")
    while begin >= 0:
        end_line = data.find(b"\n", begin)
        if b"PRIVATE KEY" in data[begin : end_line if end_line > 0 else None]:
            break
        begin = data.find(b"-----BEGIN ", begin + 1)
    if begin < 0:
        raise BadStore(f"{name} has no private key: put it in the same PEM file as its certificate chain")
    end = data.find(b"-----END ", begin)
    stop = data.find(b"\n", end)
    block = data[begin : stop if stop > 0 else None]
    is_encrypted = b"ENCRYPTED" in block[:200]
    if is_encrypted and not password:
        raise BadStore(f"{name}: the private key is encrypted: set ssl.key.password")
    try:
        return load_pem_private_key(block, password.encode() if is_encrypted else None)
    except (ValueError, TypeError) as refused:
        advice = "check ssl.key.password" if is_encrypted else "write it in PEM, as PKCS#8"
        raise BadStore(f"{name}: the private key cannot be read: {refused}; {advice}") from None


def _pem_certificates(data: bytes, name: str) -> tuple[x509.Certificate, ...]:
    if b"-----BEGIN CERTIFICATE" not in data:
        return ()
    try:
        return tuple(x509.load_pem_x509_certificates(data))
    except ValueError as refused:
        raise BadStore(f"{name}: a certificate cannot be read: {refused}") from None


def _checked(key: PrivateKeyTypes, chain: tuple[x509.Certificate, ...], name: str) -> KeyPair:
    if not chain:
        raise BadStore(
            f"{name} has a private key and no certificate: put the certificate chain after the key, and in it the "
            "certificate of the key first"
        )
    if key.public_key() != chain[0].public_key():
        raise BadStore(f"{name}: the private key is not that of the first certificate ({_subject(chain[0])})")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(pem, chain)


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "no name"


def _in_order(own: x509.Certificate, others: list[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """The certificate chain that begins with `own`. Its other certificates are taken from `others`."""
    chain, left = [own], list(others)
    while left and chain[-1].issuer != chain[-1].subject:
        above = next((one for one in left if one.subject == chain[-1].issuer), None)
        if above is None:
            break
        left.remove(above)
        chain.append(above)
    return tuple(chain)
