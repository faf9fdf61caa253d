"""The bytes of an encrypted object: encrypted chunks, then a trailer of fixed size (docs/formats/encryption.md).

Every object has a separate data key, so a chunk's nonce is its index plus a flag for the last chunk. The trailer has
the data key, wrapped by a key-encryption key and bound to the object's name and size. A chunk that was changed, moved,
removed or taken from another object is thus refused. A truncated or renamed object is also refused. The plaintext's
size and the stored size can be computed from each other without the key. Pure: no I/O.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coldstore.encryption.keys import (
    CHECK_BYTES,
    KEY_BYTES,
    KEY_ID_BYTES_MAX,
    NONCE_BYTES,
    TAG_BYTES,
    KeyRing,
    WrappingKey,
)
from coldstore.encryption.marker import MAGIC, TRAILER_BYTES, KeyRefused, is_encrypted
from logformat.errors import Corrupt
from logformat.values import NewerFormat
from seams.files.disk import Buffer

VERSION: Final = 1
CHUNK_BYTES: Final = 64 * 1024
"""Plaintext bytes of a chunk. The size divides the chunks of the cold cache (4 MiB). AES-GCM takes 7 µs for a chunk and
holds Python's lock meanwhile. A tail read fetches at most this many unneeded bytes.
"""
STORED_CHUNK_BYTES: Final = CHUNK_BYTES + TAG_BYTES

_HEAD: Final = struct.Struct(">BBH8s32sQI")  # version, log2 of the chunk, reserved, key check, key id, size, body CRC
_PAYLOAD: Final = struct.Struct(">32sI")  # data key, CRC32C of the plaintext
_TRAILER: Final = struct.Struct(f">{_HEAD.size}s{NONCE_BYTES}s{_PAYLOAD.size + TAG_BYTES}s{len(MAGIC)}s")
_PLAIN_ROOT: Final = b"{"
_CHUNK_LOG2: Final = CHUNK_BYTES.bit_length() - 1
assert _TRAILER.size == TRAILER_BYTES and (CHECK_BYTES, KEY_ID_BYTES_MAX, KEY_BYTES) == (8, 32, 32)


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def chunk_count(size: int) -> int:
    """Number of chunks of `size` bytes of plaintext. An empty object has one empty chunk."""
    return max(1, -(-size // CHUNK_BYTES))


def stored_size(size: int) -> int:
    """Stored size of an object with `size` bytes of plaintext."""
    return size + TAG_BYTES * chunk_count(size) + TRAILER_BYTES


def plain_size(stored: int) -> int | None:
    """Size of the plaintext of an object with `stored` bytes in the store. None if no encrypted object has that stored
    size."""
    body = stored - TRAILER_BYTES
    count = max(1, -(-body // STORED_CHUNK_BYTES))
    size = body - TAG_BYTES * count
    return size if size >= 0 and chunk_count(size) == count else None


def stored_range(start: int, length: int, size: int) -> tuple[int, int, int]:
    """The stored chunks of plaintext `[start, start + length)` in an object of `size`: index of the first chunk,
    position and length in the store."""
    first, last = start // CHUNK_BYTES, max(start, start + length - 1) // CHUNK_BYTES
    end = min((last + 1) * STORED_CHUNK_BYTES, stored_size(size) - TRAILER_BYTES)
    return first, first * STORED_CHUNK_BYTES, end - first * STORED_CHUNK_BYTES


def stored_tail(length: int) -> int:
    """Number of stored bytes at the end that contain the trailer and the last `length` bytes of plaintext, for an
    object of any size.
    """
    return length + CHUNK_BYTES + TAG_BYTES * (length // CHUNK_BYTES + 2) + TRAILER_BYTES


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class DataKey:
    """The key of one object, for its chunks."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(secret)

    def __repr__(self) -> str:
        return "DataKey()"

    def seal(self, index: int, plain: Buffer, target: memoryview, *, last: bool) -> int:
        """Encrypt chunk `index` into the beginning of `target`. Returns the number of bytes written. A key must encrypt
        only one plaintext at each index."""
        return self._cipher.encrypt_into(_nonce(index, last=last), plain, None, target[: len(plain) + TAG_BYTES])

    def open(self, first: int, stored: Buffer, size: int, name: str, target: memoryview | None = None) -> memoryview:
        """The plaintext of complete chunks of the object `name` of `size` bytes; `first` is the index of the first
        chunk. Raises Corrupt.

        `target`: a buffer for the plaintext of at least `len(stored)` bytes. To allocate 4 MiB takes five times as long
        as to decrypt them (1.0 s a GB)."""
        source = memoryview(stored)
        count, chunks = -(-len(source) // STORED_CHUNK_BYTES), chunk_count(size)
        length = len(source) - TAG_BYTES * count
        plain = memoryview(bytearray(length)) if target is None else target[:length]
        for number in range(count):
            index = first + number
            chunk = source[number * STORED_CHUNK_BYTES : (number + 1) * STORED_CHUNK_BYTES]
            target = plain[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            try:
                self._cipher.decrypt_into(_nonce(index, last=index == chunks - 1), chunk, None, target)
            except InvalidTag:
                raise Corrupt(
                    f"chunk {index} of encrypted object {name} (plain bytes from {index * CHUNK_BYTES}) fails its "
                    "authentication: it was damaged or changed after it was written"
                ) from None
        return plain


def _nonce(index: int, *, last: bool) -> bytes:
    return struct.pack(">QHBB", index, 0, 0, last)


# ── the trailer ──────────────────────────────────────────────────────────────────────────────────────────────────────
class Sealed(msgspec.Struct, frozen=True):
    """An encrypted object as its authenticated trailer describes it. `body_crc32c`: CRC of all stored bytes before the
    trailer. `crc32c`: CRC of the plaintext."""

    key: DataKey
    key_id: str
    size: int
    body_crc32c: int
    crc32c: int
    trailer: bytes

    @property
    def stored(self) -> int:
        return stored_size(self.size)


def make_trailer(
    name: str, data_key: bytes, wrapping: WrappingKey, nonce: bytes, size: int, body_crc32c: int, plain_crc32c: int
) -> bytes:
    """The trailer of object `name`. `nonce`: random bytes."""
    head = _HEAD.pack(VERSION, _CHUNK_LOG2, 0, wrapping.check, wrapping.key_id.encode(), size, body_crc32c)
    wrapped = wrapping.wrap(nonce, _PAYLOAD.pack(data_key, plain_crc32c), head + name.encode())
    return _TRAILER.pack(head, nonce, wrapped, MAGIC)


def read_trailer(name: str, tail: Buffer, stored: int, ring: KeyRing) -> Sealed:
    """The trailer of the encrypted object `name` of `stored` bytes, which end with `tail`. Raises Corrupt, NewerFormat,
    KeyRefused."""
    payload, (_, _, _, _, key_id, size, body_crc32c) = _unwrapped(name, tail, stored, ring)
    secret, plain_crc32c = _PAYLOAD.unpack(payload)
    return Sealed(DataKey(secret), _text(key_id), size, body_crc32c, plain_crc32c, bytes(tail[-TRAILER_BYTES:]))


def key_id_of(tail: Buffer) -> str | None:
    """The key id in the trailer of the object that ends with `tail`. The id is not authenticated. None: the object is
    not encrypted."""
    if not is_encrypted(tail):
        return None
    head, *_ = _TRAILER.unpack(tail[-TRAILER_BYTES:])
    _, _, _, _, key_id, _, _ = _HEAD.unpack(head)
    return _text(key_id)


def is_plain(name: str, tail: Buffer, ring: KeyRing) -> bool:
    """Whether the object `name`, which ends with `tail`, is not encrypted, as far as the keys of `ring` can tell."""
    return not is_encrypted(tail) and not _was_wrapped(name, tail, ring)


def describe(name: str, tail: Buffer, stored: int, ring: KeyRing) -> Sealed | None:
    """The trailer of the object `name` of `stored` bytes, which end with `tail`. None for a plain object that may be
    read.

    Raises KeyRefused, Corrupt, NewerFormat. A plain root that may not be read raises KeyRefused, because an operator
    has to decide.
    """
    if is_encrypted(tail):
        return read_trailer(name, tail, stored, ring)
    if _was_wrapped(name, tail, ring):
        raise Corrupt(f"object {name}: the end of its trailer is damaged")
    if ring.accepts_plain:
        return None
    refusal = (
        f"object {name} is not encrypted, and {ring.source} accepts no plain objects; if the bucket had objects "
        "before encryption was switched on, accept plain objects (docs/encryption.md); otherwise the object was "
        "replaced or cut off"
    )
    raise (KeyRefused if bytes(tail[:1]) == _PLAIN_ROOT and len(tail) == stored else Corrupt)(refusal)


def rewrapped(name: str, tail: Buffer, stored: int, ring: KeyRing, wrapping: WrappingKey, nonce: bytes) -> bytes:
    """The trailer of object `name` with its data key wrapped by `wrapping`. Raises the errors of `read_trailer`."""
    payload, (*_, size, body_crc32c) = _unwrapped(name, tail, stored, ring)
    secret, plain_crc32c = _PAYLOAD.unpack(payload)
    return make_trailer(name, secret, wrapping, nonce, size, body_crc32c, plain_crc32c)


def _unwrapped(
    name: str, tail: Buffer, stored: int, ring: KeyRing
) -> tuple[bytes, tuple[int, int, int, bytes, bytes, int, int]]:
    if not is_encrypted(tail):
        raise Corrupt(f"object {name} of {stored} bytes does not end with the trailer of an encrypted object")
    head, nonce, wrapped, _ = _TRAILER.unpack(tail[-TRAILER_BYTES:])
    fields = _HEAD.unpack(head)
    version, log2, reserved, check, key_id, size, _ = fields
    if version > VERSION:
        if _was_wrapped(name, tail, ring):
            raise Corrupt(f"object {name}: the format in its trailer is damaged")
        raise NewerFormat(f"object {name} is encrypted in format {version}, but this program knows {VERSION}; upgrade")
    if version < 1 or log2 != _CHUNK_LOG2 or reserved:
        raise Corrupt(
            f"object {name}: its trailer says format {version} with chunks of 2^{log2} bytes, which no version writes"
        )
    if size > stored or stored_size(size) != stored:
        raise Corrupt(
            f"object {name} has {stored} bytes, but its trailer says {size} of plaintext; it was cut off or extended"
        )
    try:
        wrapping = ring.find(_text(key_id), check, name)
    except KeyRefused:
        if _was_wrapped(name, tail, ring):
            raise Corrupt(f"object {name}: the key's name in its trailer is damaged") from None
        raise
    payload = wrapping.unwrap(nonce, wrapped, head + name.encode())
    if payload is None:
        raise Corrupt(
            f"object {name}: its trailer fails its authentication: it was damaged or changed, or it belongs to "
            "another object"
        )
    return payload, fields


def _was_wrapped(name: str, tail: Buffer, ring: KeyRing) -> bool:
    """Whether a key of the ring wrapped the data key in the last bytes. This does not depend on the format, key id and
    magic there. If True, those fields are damaged, perhaps in transit. Without this check one flipped bit would look
    like a missing key, which ends a broker's start.
    """
    if len(tail) < TRAILER_BYTES:
        return False
    head, nonce, wrapped, _ = _TRAILER.unpack(tail[-TRAILER_BYTES:])
    *_, size, body_crc32c = _HEAD.unpack(head)
    for key in ring.keys:
        written = _HEAD.pack(VERSION, _CHUNK_LOG2, 0, key.check, key.key_id.encode(), size, body_crc32c)
        if key.unwrap(nonce, wrapped, written + name.encode()) is not None:
            return True
    return False


def _text(key_id: bytes) -> str:
    return key_id.rstrip(b"\0").decode("ascii", "backslashreplace")
