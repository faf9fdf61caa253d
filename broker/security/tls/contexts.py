"""OpenSSL's contexts from settings. Blocking: files are read.

All contexts have TLS 1.2 or newer, no compression, no renegotiation, and session tickets. A context is never changed
after it was made; a reload makes a new one.
"""

from __future__ import annotations

import ssl
from datetime import datetime

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from broker.config.values import InvalidConfig
from broker.security.tls.cipher_suites import DEFAULT_1_2
from broker.security.tls.settings import ClientAuth, TlsSettings
from broker.security.tls.stores import BadStore, KeyPair, ReadFile, check_valid, read_keys, read_trust
from seams.files.nameless import nameless_file

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


class Contexts(msgspec.Struct, frozen=True):
    """TLS contexts of one listener: for accepted connections, and for this broker's connections to other brokers.
    `expires`: the earliest expiry of the listener's certificates."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    expires: datetime
    keys: KeyPair


def make_contexts(settings: TlsSettings, read: ReadFile, now_ms: int) -> Contexts:
    """The contexts of one listener. Raises InvalidConfig for missing configs, BadStore for files that cannot be
    used."""
    if settings.keys is None:
        raise InvalidConfig(
            f"{settings.where} speaks TLS and has no certificate: set ssl.keystore.location (one PEM file with private "
            "key and certificate chain, or PKCS12), or ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    if settings.client_auth is not ClientAuth.NONE and settings.trust is None:
        raise InvalidConfig(
            f"ssl.client.auth={settings.client_auth.value} ({settings.where}) needs ssl.truststore.location or "
            "ssl.truststore.certificates: without them a certificate of any public CA would be "
            "accepted"
        )
    keys = read_keys(settings.keys, settings.key_password, settings.where, read)
    check_valid(keys, settings.keys, settings.where, now_ms)
    trust = None if settings.trust is None else read_trust(settings.trust, settings.where, read)
    return Contexts(_server(settings, keys, trust), client_context(settings, keys, trust), keys.expires, keys)


def _server(settings: TlsSettings, keys: KeyPair, trust: tuple[x509.Certificate, ...] | None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _limit(made, settings)
    _load(made, keys, settings.where)
    if trust is not None and settings.client_auth is not ClientAuth.NONE:
        _trust(made, trust)
    made.verify_mode = _VERIFY[settings.client_auth]
    return made


def client_context(
    settings: TlsSettings, keys: KeyPair | None, trust: tuple[x509.Certificate, ...] | None
) -> ssl.SSLContext:
    """A client context. It always verifies the server's certificate. It verifies the server's name if `settings`
    require that. Without a trust store it uses the system's CAs."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit(made, settings)
    made.check_hostname = settings.checks_names
    made.verify_mode = ssl.CERT_REQUIRED
    if trust is None:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(made, trust)
    if keys is not None:
        _load(made, keys, settings.where)
    return made


def _limit(made: ssl.SSLContext, settings: TlsSettings) -> None:
    made.options |= ssl.OP_NO_COMPRESSION
    made.minimum_version = min(_VERSIONS[version] for version in settings.versions)
    made.maximum_version = max(_VERSIONS[version] for version in settings.versions)
    made.set_ciphers(":".join(settings.suites.tls_1_2 or DEFAULT_1_2))


def _load(made: ssl.SSLContext, keys: KeyPair, where: str) -> None:
    """Load the keys into a context. Python's ssl reads keys only from files, so they are written to an anonymous file,
    which is closed at once."""
    with nameless_file(keys.key_pem + keys.chain_pem) as path:
        try:
            made.load_cert_chain(path)
        except ssl.SSLError as refused:
            raise BadStore(f"{where}: OpenSSL refuses key or certificate: {refused.reason or refused}") from None


def _trust(made: ssl.SSLContext, certificates: tuple[x509.Certificate, ...]) -> None:
    """Trust the certificates of the store. As in Java, a certificate in a trust store is trusted even if it is not a
    root (a partial chain).
    """
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    made.load_verify_locations(cadata="".join(one.public_bytes(Encoding.PEM).decode() for one in certificates))
