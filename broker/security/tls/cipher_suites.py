"""Cipher suites: IANA's names, which Kafka uses, and OpenSSL's names. Pure.

Only suites with forward secrecy are served. Before Python 3.15 the suites of TLS 1.3 cannot be chosen one by one, and
OpenSSL prefers them in the order of `TLS_1_3`. Of these, a list must therefore have the first, the first two, or all
three. A session that agreed on a suite outside the list is ended (`Suites.allows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from broker.config.values import InvalidConfig

TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_KEYS: Final = ("ECDHE-ECDSA", "ECDHE-RSA", "DHE-RSA")
_BULK: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}
_OPENSSL: Final = {
    f"TLS_{keys.replace('-', '_')}_WITH_{iana}": f"{keys}-{openssl}"
    for keys in _KEYS
    for iana, openssl in _BULK.items()
    if keys == "DHE-RSA" or iana != "AES_256_CBC_SHA256"
    if keys != "DHE-RSA" or iana != "AES_256_CBC_SHA384"
}
"""Suites of TLS 1.2: IANA's name → OpenSSL's name."""
DEFAULT_1_2: Final = tuple(name for name in _OPENSSL.values() if "GCM" in name or "CHACHA20" in name)
"""Suites of TLS 1.2 when the configs name none. CBC is not among them, because its padding was attacked repeatedly
(Lucky 13); every client of this decade has one of these suites. A configured list may name CBC.
"""


class Suites(msgspec.Struct, frozen=True):
    """The suites that a listener allows. If both fields are empty, these are `DEFAULT_1_2` and all suites of TLS
    1.3."""

    tls_1_2: tuple[str, ...]  # OpenSSL's names
    tls_1_3: tuple[str, ...]

    @property
    def are_default(self) -> bool:
        return not self.tls_1_2 and not self.tls_1_3

    def versions_of(self, versions: Sequence[str], where: str) -> tuple[str, ...]:
        """The protocol versions that have an allowed suite, as in Java. Raises InvalidConfig if no version has one."""
        if self.are_default:
            return tuple(versions)
        having = {"TLSv1.2": self.tls_1_2, "TLSv1.3": self.tls_1_3}
        found = tuple(version for version in versions if having[version])
        if not found:
            raise InvalidConfig(
                f"ssl.cipher.suites ({where}) has no suite of {' or '.join(versions)}: no client could connect"
            )
        return found

    def allows(self, name: str) -> bool:
        """Whether a session may use the suite that both sides agreed on (OpenSSL's name)."""
        return self.are_default or name in self.tls_1_3 or name in self.tls_1_2


def suites_of(names: Sequence[str], where: str) -> Suites:
    """The suites of a configured list. Raises InvalidConfig for a suite that is not served."""
    old, new = [], []
    openssl = frozenset(_OPENSSL.values())
    for name in names:
        if name in TLS_1_3:
            new.append(name)
        elif name in _OPENSSL or name in openssl:
            old.append(_OPENSSL.get(name, name))
        else:
            raise InvalidConfig(
                f"Invalid value {name} for configuration ssl.cipher.suites ({where}): it is unknown, or without "
                f"forward secrecy; served are {', '.join((*TLS_1_3, *_OPENSSL))}, and OpenSSL's names of these"
            )
    if new and set(new) != set(TLS_1_3[: len(set(new))]):
        raise InvalidConfig(
            f"ssl.cipher.suites ({where}): the TLS 1.3 suites {', '.join(sorted(set(new)))} cannot be chosen without "
            f"the others; list {TLS_1_3[0]}, {TLS_1_3[0]} and {TLS_1_3[1]}, or all three"
        )
    return Suites(tuple(dict.fromkeys(old)), tuple(dict.fromkeys(new)))
