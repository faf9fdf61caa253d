"""Key rings and key files of tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coldstore.encryption.key_file import FORMAT, KeyFile, encode, plain_entry
from coldstore.encryption.keys import KeyRing, WrappingKey
from coldstore.encryption.sealed_body import SealedBody
from seams.files.private_file import write_private
from seams.rng import SystemRng
from tests.support.store.memory_store import upload_of


def secret_of(name: str) -> bytes:
    """The same for a name in every run."""
    return hashlib.sha256(f"test key {name}".encode()).digest()


def ring_of(*ids: str, active: str | None = "", accepts_plain: bool = False) -> KeyRing:
    """Keys of these ids; the first one is active, unless `active` says which."""
    keys = [WrappingKey(key_id, secret_of(key_id)) for key_id in ids]
    return KeyRing(keys, ids[0] if active == "" else active, accepts_plain=accepts_plain)


def sealed_bytes(name: str, data: bytes, ring: KeyRing) -> bytes:
    """The object `name` as it lies in the store."""
    assert ring.active is not None
    fresh = SystemRng().random_bytes
    body = SealedBody(name, upload_of(data), fresh(32), ring.active, fresh(12))
    return b"".join(map(bytes, body.upload().open()))


def write_key_file(
    path: Path, *ids: str, active: str | None = "", accept_plain: bool = False, secrets: dict[str, bytes] | None = None
) -> str:
    """A key file with keys of these ids, and its path; `secrets`: other keys than `secret_of` their ids."""
    entries = {key_id: plain_entry((secrets or {}).get(key_id, secret_of(key_id))) for key_id in ids}
    file = KeyFile(FORMAT, ids[0] if active == "" else active, accept_plain, entries)
    write_private(str(path), encode(file), replace=True)
    return str(path)
