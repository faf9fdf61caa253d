"""Key-encryption keys: each wraps the data keys of many objects.

A key has an id and a check value, which distinguish a wrong key from a damaged object. A ring has any number of keys.
Its active key wraps new data keys. A ring without an active key leaves new objects unencrypted, which is the first step
of switching encryption on in a cluster. No message and no `repr` has a key's bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coldstore.encryption.marker import KeyRefused
from logformat.errors import InvalidRequest

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
CHECK_BYTES: Final = 8
KEY_ID_BYTES_MAX: Final = 32
_KEY_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{KEY_ID_BYTES_MAX - 1}}}", re.ASCII)


class WrappingKey:
    """One key-encryption key: AES-256-GCM with random nonces, for at most 2^32 objects."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        """Raises InvalidRequest for an id or a secret that is not valid."""
        if not _KEY_ID.fullmatch(key_id):
            raise InvalidRequest(
                f"key id {key_id!r}: write 1 to {KEY_ID_BYTES_MAX} letters, digits, dots, dashes and underscores"
            )
        if len(secret) != KEY_BYTES:
            raise InvalidRequest(f"key {key_id}: {len(secret)} bytes; an AES-256 key has {KEY_BYTES}")
        self.key_id = key_id
        self.check = hmac.digest(secret, b"thermocline key check v1", hashlib.sha256)[:CHECK_BYTES]
        self._cipher = AESGCM(secret)

    def __repr__(self) -> str:
        return f"WrappingKey({self.key_id})"

    def wrap(self, nonce: bytes, payload: bytes, bound: bytes) -> bytes:
        """`payload`, encrypted and bound to `bound`. `nonce` is random and must never be used again."""
        return self._cipher.encrypt(nonce, payload, bound)

    def unwrap(self, nonce: bytes, wrapped: bytes, bound: bytes) -> bytes | None:
        """The wrapped payload; None if any of the three arguments differs from those of `wrap`."""
        try:
            return self._cipher.decrypt(nonce, wrapped, bound)
        except InvalidTag:
            return None


def check_active(active: str | None, ids: Collection[str], source: str, *, accepts_plain: bool) -> None:
    """Raise InvalidRequest if the active key is not among `ids`, or is missing although one is needed."""
    if active is not None and active not in ids:
        raise InvalidRequest(f"{source}: the active key {active!r} is not among its keys ({', '.join(ids) or 'none'})")
    if active is None and not accepts_plain:
        raise InvalidRequest(
            f"{source}: without an active key new objects are not encrypted; accept plain objects, or name an active "
            "key"
        )


class KeyRing:
    """The keys of one bucket. `source` names the origin of the keys in messages."""

    def __init__(
        self, keys: Iterable[WrappingKey], active: str | None, *, accepts_plain: bool = False, source: str = "the keys"
    ) -> None:
        """`accepts_plain`: objects that are not encrypted may be read. Raises InvalidRequest for a ring that
        contradicts itself."""
        self._keys: dict[str, WrappingKey] = {}
        for key in keys:
            if key.key_id in self._keys:
                raise InvalidRequest(f"{source}: key {key.key_id} is listed twice")
            self._keys[key.key_id] = key
        check_active(active, self._keys, source, accepts_plain=accepts_plain)
        self.active = None if active is None else self._keys[active]
        self.accepts_plain = accepts_plain
        self.source = source

    def is_same(self, other: KeyRing) -> bool:
        """Whether both have the same keys, active key and policy."""
        return self._facts() == other._facts()

    def _facts(self) -> tuple[dict[str, bytes], str | None, bool]:
        active = None if self.active is None else self.active.key_id
        return {key_id: key.check for key_id, key in self._keys.items()}, active, self.accepts_plain

    def replaced(self, other: KeyRing) -> tuple[str, ...]:
        """The ids that have another key in `other`."""
        return tuple(key_id for key_id, key in other._keys.items() if self._is_other(key_id, key.check))

    def _is_other(self, key_id: str, check: bytes) -> bool:
        known = self._keys.get(key_id)
        return known is not None and not hmac.compare_digest(known.check, check)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    @property
    def keys(self) -> Iterable[WrappingKey]:
        return self._keys.values()

    def find(self, key_id: str, check: bytes, name: str) -> WrappingKey:
        """The key that wrapped the data key of object `name`. Raises KeyRefused."""
        key = self._keys.get(key_id)
        if key is None:
            raise KeyRefused(
                f"object {name} is encrypted under key {key_id!r}, which is not in {self.source} (its keys: "
                f"{', '.join(self.ids) or 'none'}); add that key; nothing was changed",
                key_id,
            )
        if not hmac.compare_digest(key.check, check):
            raise KeyRefused(
                f"object {name} is encrypted under a key with the id {key_id!r}, but {self.source} holds another key "
                "under that id; use the key file of this bucket's brokers; nothing was changed",
                key_id,
            )
        return key
