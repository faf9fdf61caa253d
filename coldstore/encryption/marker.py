"""The marker at the end of an encrypted object, for readers without keys. This module does not load the cryptography
library."""

from __future__ import annotations

from typing import Final

from coldstore.object_store import AccessRefused
from seams.files.disk import Buffer

MAGIC: Final = b"THERMENC"
TRAILER_BYTES: Final = 128


class KeyRefused(AccessRefused):
    """The object needs a key that this process does not have. The remedy is to add the key to the key file. Nothing was
    changed. `key_id`: the id of that key; empty if the remedy is another one."""

    def __init__(self, message: str, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id


def is_encrypted(tail: Buffer) -> bool:
    """Whether the object that ends with `tail` has the marker of an encrypted object."""
    return len(tail) >= TRAILER_BYTES and bytes(tail[-len(MAGIC) :]) == MAGIC


def refuse_encrypted(name: str, tail: Buffer) -> None:
    """Raise KeyRefused for an encrypted object in a parser of plaintext, because this process has no key file."""
    if is_encrypted(tail):
        raise KeyRefused(
            f"object {name} is encrypted and no key file was given: set thermocline.encryption.key.file, the variable "
            "THERMOCLINE_ENCRYPTION_KEY_FILE, or key_file in the bucket's URL; nothing was changed"
        )
