"""Kafka's `ssl.*` configs of one listener as validated, typed values. Pure: no file is read."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from broker.config.sources import Explicit
from broker.config.values import InvalidConfig
from broker.security.tls.cipher_suites import Suites, suites_of

_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class ClientAuth(Enum):
    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class Store(msgspec.Struct, frozen=True):
    """A key store or trust store: a file of type `kind`, or `inline` PEM. `of`: the prefix of the store's configs."""

    of: str  # ssl.keystore or ssl.truststore
    kind: str  # PEM, PKCS12 or JKS, as configured; if empty, the content decides
    location: str
    password: str
    inline: str  # PEM text; for a key store the certificate chain
    inline_key: str = ""


class TlsSettings(msgspec.Struct, frozen=True):
    """The settings of one listener. `where`: the listener's name, for messages. `keys` is None if there is no own
    certificate; only a client may have none."""

    where: str
    keys: Store | None
    key_password: str
    trust: Store | None
    client_auth: ClientAuth
    versions: tuple[str, ...]
    suites: Suites
    checks_names: bool  # ssl.endpoint.identification.algorithm, for connections to other brokers


def read_settings(values: Explicit, where: str) -> TlsSettings:
    """The settings from a listener's configs `values` (`Explicit.of_listener`). Raises InvalidConfig."""
    _refuse_engines(values)
    versions = tuple(dict.fromkeys(values.texts("ssl.enabled.protocols"))) or _VERSIONS
    for version in versions:
        if version not in _VERSIONS:
            raise InvalidConfig(
                f"Invalid value {version} for configuration ssl.enabled.protocols ({where}): TLSv1.2 and TLSv1.3 are "
                "served; older versions are not secure"
            )
    protocol = values.text("ssl.protocol")
    if protocol not in ("TLS", *_VERSIONS):
        raise InvalidConfig(f"Invalid value {protocol} for configuration ssl.protocol ({where}): TLSv1.3 or TLSv1.2")
    if protocol == "TLSv1.2":  # as in Java, a context of TLSv1.2 has no newer version
        versions = tuple(version for version in versions if version == protocol)
    suites = suites_of(values.texts("ssl.cipher.suites"), where)
    algorithm = values.text("ssl.endpoint.identification.algorithm").strip().lower()
    if algorithm not in ("", "https"):
        raise InvalidConfig(
            f"Invalid value {algorithm} for configuration ssl.endpoint.identification.algorithm ({where}): "
            "write https, or leave it empty to accept any name"
        )
    return TlsSettings(
        where=where,
        keys=_store(values, "ssl.keystore", values.text("ssl.keystore.certificate.chain"), where),
        key_password=values.text("ssl.key.password"),
        trust=_store(values, "ssl.truststore", values.text("ssl.truststore.certificates"), where),
        client_auth=ClientAuth(values.text("ssl.client.auth") or "none"),
        versions=suites.versions_of(versions, where),
        suites=suites,
        checks_names=algorithm == "https",
    )


def _refuse_engines(values: Explicit) -> None:
    for name in ("ssl.engine.factory.class", "ssl.provider"):
        if text := values.text(name):
            raise InvalidConfig(f"Invalid value {text} for configuration {name}: Java classes are not run here")


def _store(values: Explicit, of: str, inline: str, where: str) -> Store | None:
    location = values.text(f"{of}.location")
    key = values.text("ssl.keystore.key") if of == "ssl.keystore" else ""
    if not location and not inline and not key:
        return None
    kind = values.text(f"{of}.type").upper() if f"{of}.type" in values.configured else ""
    if kind not in ("", "JKS", "PEM", "PKCS12"):
        raise InvalidConfig(f"Invalid value {kind} for configuration {of}.type ({where}): PEM or PKCS12")
    if (inline or key) and location:
        raise InvalidConfig(f"{of}.location and inline certificates are both set ({where}): leave one of them out")
    if (inline or key) and kind not in ("", "PEM"):
        raise InvalidConfig(f"{of}: inline certificates must be PEM ({where}): set {of}.type=PEM")
    if of == "ssl.keystore" and not location and not (inline and key):
        raise InvalidConfig(f"ssl.keystore.certificate.chain and ssl.keystore.key belong together ({where}): set both")
    return Store(of, kind, location, values.text(f"{of}.password"), inline, key)
