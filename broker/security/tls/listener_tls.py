"""The current TLS contexts of one listener: created at the start and again when files or configs change.

New sessions use the newest contexts, and open sessions keep their own. Tickets of older contexts are refused. If new
files cannot be used, the old contexts stay.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec
from cryptography import x509

from broker.config.sources import Explicit
from broker.net.dispatch import ANONYMOUS
from broker.net.tls.session import PeerRefused
from broker.security.tls.contexts import Contexts, make_contexts
from broker.security.tls.distinguished_name import MalformedName, subject_of
from broker.security.tls.principal_mapping import NoRuleMatches, PrincipalMapping
from broker.security.tls.settings import TlsSettings, read_settings
from broker.security.tls.stores import BadStore, KeyPair, ReadFile

log = logging.getLogger(__name__)


class _Made(msgspec.Struct, frozen=True):
    """Contexts from one reading of configs and files. `digests`: digests of the files, by path."""

    settings: TlsSettings
    mapping: PrincipalMapping
    contexts: Contexts
    rules: str
    digests: Mapping[str, bytes]


class ListenerTls:
    """The TLS contexts of the listener `where`. `values` returns the listener's current configs. The constructor
    blocks, and raises InvalidConfig if the certificates cannot be used."""

    def __init__(self, where: str, values: Callable[[], Explicit], read: ReadFile, now_ms: Callable[[], int]) -> None:
        self.where = where
        self._values = values
        self._read = read
        self._now_ms = now_ms
        self._made = self._make()

    @property
    def expires(self) -> datetime:
        """Earliest expiry of the certificates in the chain."""
        return self._made.contexts.expires

    @property
    def says(self) -> str:
        return f"certificate valid to {self.expires:%Y-%m-%d %H:%M} UTC"

    def context(self) -> ssl.SSLContext:
        return self._made.contexts.server

    def client_context(self) -> ssl.SSLContext:
        """The context of this broker's connections to other brokers."""
        return self._made.contexts.client

    def principal(self, certificate: bytes | None, suite: str) -> str:
        """See `ServerTls`."""
        made = self._made
        if not made.settings.suites.allows(suite):
            raise PeerRefused(f"the only suite in common is {suite}, which ssl.cipher.suites does not list")
        if certificate is None:
            return ANONYMOUS
        try:
            return f"User:{made.mapping.name_of(subject_of(certificate))}"
        except (MalformedName, NoRuleMatches) as refused:
            raise PeerRefused(str(refused)) from refused

    def reload(self) -> bool:
        """Create new contexts if configs or files changed. Returns whether they changed. Blocking. If this raises
        InvalidConfig, the old contexts stay."""
        old, made = self._made, self._make()
        if (made.settings, made.rules, made.digests) == (old.settings, old.rules, old.digests):
            return False
        _check_same_name(self._values(), old.contexts.keys, made.contexts.keys, self.where)
        self._made = made
        log.info("%s: new certificate or trust, valid to %s; open connections keep theirs", self.where, self.expires)
        return True

    def _make(self) -> _Made:
        values = self._values()
        digests: dict[str, bytes] = {}

        def read(path: str) -> bytes:
            data = self._read(path)
            digests[path] = hashlib.sha256(data).digest()
            return data

        rules = values.text("ssl.principal.mapping.rules")
        settings, mapping = read_settings(values, self.where), PrincipalMapping(rules)
        return _Made(settings, mapping, make_contexts(settings, read, self._now_ms()), rules, digests)


def _check_same_name(values: Explicit, old: KeyPair, new: KeyPair, where: str) -> None:
    """Raise BadStore if the new certificate is for another name. That is probably a mistake, as in Kafka (KIP-978)."""
    before, after = old.chain[0], new.chain[0]
    if before.subject != after.subject and not values.flag("ssl.allow.dn.changes"):
        raise BadStore(
            f"{where}: the new certificate has the subject {after.subject.rfc4514_string()}, but the old one has "
            f"{before.subject.rfc4514_string()}; if this change is intended, set ssl.allow.dn.changes=true, or restart"
        )
    if not _names(before) <= _names(after) and not values.flag("ssl.allow.san.changes"):
        lost = ", ".join(sorted(_names(before) - _names(after)))
        raise BadStore(
            f"{where}: the new certificate lacks the names {lost}; if this change is intended, set "
            "ssl.allow.san.changes=true, or restart"
        )


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(getattr(name, "value", name)) for name in found)
