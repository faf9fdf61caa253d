"""The key file: the key-encryption keys of one bucket, as JSON (docs/formats/encryption.md).

It holds each key in plaintext, or wrapped by a key service (`kms`). The same file serves brokers, the command line and
Spark. Rotation adds a key and makes it active. An old key is removed when no object needs it. `load_file` and
`load_ring` read the file and block. `load_ring` and `ring_of` ask the key service once per process for each wrapped
key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import msgspec

from coldstore.encryption.keys import KEY_BYTES, KeyRing, WrappingKey, check_active
from coldstore.encryption.kms import KeyService, KmsKey, unwrapped_once
from logformat.errors import InvalidRequest
from logformat.values import NewerFormat
from seams.files.private_file import read_private

FORMAT: Final = 1


class KeyFileRefused(InvalidRequest):
    """The key file cannot be used. The message has the file and the remedy, never a key."""


class KeyEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key. Exactly one field is set. `key`: its 32 bytes in base64."""

    key: str | None = None
    aws_kms: KmsKey | None = None


class KeyFile(msgspec.Struct, frozen=True):
    """The content of a key file. If `active` is null, new objects are not encrypted. `accept_plain`: objects that are
    not encrypted may be read."""

    format: int
    active: str | None
    accept_plain: bool
    keys: Mapping[str, KeyEntry]


_DECODER: Final = msgspec.json.Decoder(KeyFile)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def plain_entry(secret: bytes) -> KeyEntry:
    return KeyEntry(key=base64.b64encode(secret).decode())


def encode(file: KeyFile) -> bytes:
    return msgspec.json.format(_ENCODER.encode(file), indent=2) + b"\n"


def decode(data: bytes, path: str) -> KeyFile:
    """Parse the content of a key file. Raises KeyFileRefused."""
    try:
        file = _DECODER.decode(data)
    except msgspec.MsgspecError:
        # The library's message may repeat the input, which may be a key.
        raise KeyFileRefused(
            f"key file {path} is not valid; it has to be JSON as `thermocline key create` writes it"
        ) from None
    if file.format > FORMAT:
        raise NewerFormat(f"key file {path} has format {file.format}, but this program knows {FORMAT}; upgrade")
    return file


def ring_of(file: KeyFile, path: str, service: KeyService | None = None) -> KeyRing:
    """The keys of `file`. `service` replaces the service that an entry names. Raises KeyFileRefused, AccessRefused,
    StoreUnavailable."""
    source = f"key file {path}"
    try:
        keys = [WrappingKey(key_id, _secret(entry, key_id, service)) for key_id, entry in file.keys.items()]
        return KeyRing(keys, file.active, accepts_plain=file.accept_plain, source=source)
    except KeyFileRefused:
        raise
    except InvalidRequest as refused:
        raise KeyFileRefused(str(refused) if source in str(refused) else f"{source}: {refused}") from None


def check(file: KeyFile, path: str) -> None:
    """Raise KeyFileRefused for a file that contradicts itself. No key is unwrapped."""
    try:
        check_active(file.active, file.keys, f"key file {path}", accepts_plain=file.accept_plain)
    except InvalidRequest as refused:
        raise KeyFileRefused(str(refused)) from None


def _secret(entry: KeyEntry, key_id: str, service: KeyService | None) -> bytes:
    if (entry.key is None) == (entry.aws_kms is None):
        raise InvalidRequest(f"key {key_id!r}: give either key or aws_kms")
    if entry.aws_kms is not None:
        return unwrapped_once(entry.aws_kms, key_id, service)
    assert entry.key is not None
    try:
        return base64.b64decode(entry.key, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"key {key_id!r} is not base64 of {KEY_BYTES} bytes") from None


def load_file(path: str) -> KeyFile:
    """Read the file at `path`. Blocking. Raises KeyFileRefused."""
    try:
        return decode(read_private(path), path)
    except OSError as failure:
        raise KeyFileRefused(f"key file {path} cannot be read: {failure.strerror or failure}") from failure


def load_ring(path: str) -> KeyRing:
    """The keys of the file at `path`. Blocking. Raises KeyFileRefused, AccessRefused, StoreUnavailable (the key service
    does not answer)."""
    return ring_of(load_file(path), path)
