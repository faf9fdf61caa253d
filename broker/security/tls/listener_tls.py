"""The current TLS contexts of one listener: made at the start, made anew when files or configs change.

New sessions use the newest contexts, present ones keep theirs. When new files cannot be used, the old contexts stay and
`trouble` says why.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from broker.config.sources import Explicit
from broker.net.tls_session import PeerRefused
from broker.security.tls.contexts import Contexts, make_contexts
from broker.security.tls.distinguished_name import MalformedName, subject_of
from broker.security.tls.principal_mapping import NoRuleMatches, PrincipalMapping
from broker.security.tls.settings import TlsSettings, read_settings
from broker.security.tls.stores import ReadFile

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's name of a client without a certificate."""


class ListenerTls:
    """`values` gives the broker's configs as they are now."""

    def __init__(self, name: str, values: Callable[[], Explicit], read: ReadFile, now_ms: Callable[[], int]) -> None:
        self.name = name
        self._values = values
        self._read = read
        self._now_ms = now_ms
        self.trouble = ""
        self._settings: TlsSettings
        self._mapping: PrincipalMapping
        self._contexts: Contexts
        self._make()

    def context(self) -> ssl.SSLContext:
        return self._contexts.server

    def client_context(self) -> ssl.SSLContext:
        """For this broker's connections to others."""
        return self._contexts.client

    def principal(self, certificate: bytes | None, suite: str) -> str:
        """See `ServerTls`."""
        settings = self._settings
        if not settings.suites.allows(suite):
            raise PeerRefused(f"its only common cipher suite is {suite}, which ssl.cipher.suites does not list")
        if certificate is None:
            return ANONYMOUS
        try:
            return f"User:{self._mapping.name_of(subject_of(certificate))}"
        except (MalformedName, NoRuleMatches) as refused:
            raise PeerRefused(str(refused)) from refused

    def _make(self) -> None:
        values = self._values().of_listener(self.name)
        settings = read_settings(values, f"listener {self.name}")
        mapping = PrincipalMapping(values.text("ssl.principal.mapping.rules"))
        contexts = make_contexts(settings, self._read, self._now_ms())
        self._settings, self._mapping, self._contexts = settings, mapping, contexts
