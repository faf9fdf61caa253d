"""An encrypted bucket through pyarrow's file systems: `ArrowStore`, with handles that decrypt (ADR 35).

When an object is opened, its end is read. This read gets the trailer, and in most cases also the footer or the whole of
a small object, so encryption costs no further request. Decryption runs in the thread that reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from coldstore.encryption.envelope import (
    CHUNK_BYTES,
    STORED_CHUNK_BYTES,
    Sealed,
    describe,
    plain_size,
    stored_range,
)
from coldstore.encryption.keys import KeyRing
from coldstore.encryption.marker import TRAILER_BYTES
from coldstore.object_store import ObjectInfo, ObjectMissing
from logformat.errors import Corrupt
from thermocline.pipeline.arrow_store import ArrowStore

_TAIL_BYTES: Final = 2 * STORED_CHUNK_BYTES + TRAILER_BYTES  # a root, or the footer of a segment of 128 MiB


class EncryptedArrowStore(ArrowStore):
    """`ArrowStore` over objects that are encrypted with the keys of `ring`."""

    def __init__(self, filesystem: fs.FileSystem, root: str, url: str, ring: KeyRing) -> None:
        super().__init__(filesystem, root, url)
        self._ring = ring

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix):
            size = plain_size(info.size)
            if size is not None and self._ring.accepts_plain:
                try:
                    size = self._opened(info.key).size()
                except ObjectMissing:  # deleted meanwhile
                    continue
                except Corrupt:  # the object exists; reading it raises the error
                    pass
            yield info if size is None else ObjectInfo(info.key, size, info.etag)

    def announce(self, key: str, start: int, length: int) -> None:
        with self._lock:
            handle = self._handles.get(key)
        if isinstance(handle, _DecryptedFile):
            _, start, length = stored_range(start, length, handle.size())
        super().announce(key, start, length)

    def _opened(self, key: str) -> pa.NativeFile:
        handle = super()._opened(key)
        stored = handle.size()
        wanted = min(stored, _TAIL_BYTES)
        tail = self._read_at(key, handle, stored - wanted, wanted)
        sealed = describe(key, tail, stored, self._ring)
        return handle if sealed is None else _DecryptedFile(handle, key, sealed, stored - wanted, tail)


class _DecryptedFile:
    """The part of `pa.NativeFile` that `ArrowStore` uses, for the plaintext. Any thread may read. `tail`: its last
    bytes in the store, from `tail_at` on."""

    def __init__(self, handle: pa.NativeFile, key: str, sealed: Sealed, tail_at: int, tail: bytes) -> None:
        self._handle = handle
        self._key = key
        self._sealed = sealed
        self._tail_at = tail_at
        self._tail = memoryview(tail)

    def size(self) -> int:
        return self._sealed.size

    def metadata(self) -> dict[str, Any]:
        return self._handle.metadata()  # type: ignore[no-any-return]

    def fileno(self) -> int:
        return self._handle.fileno()  # type: ignore[no-any-return]

    def read_at(self, length: int, start: int) -> bytes:
        return bytes(self._read(start, length))

    def get_stream(self, start: int, length: int) -> _Range:
        return _Range(self, start, length)

    def _read(self, start: int, length: int) -> memoryview:
        """At most `length` bytes of plaintext. Raises Corrupt, OSError, ArrowException."""
        length = min(length, self._sealed.size - start)
        first, position, count = stored_range(start, length, self._sealed.size)
        if position >= self._tail_at:
            stored = self._tail[position - self._tail_at : position - self._tail_at + count]
        else:
            stored = memoryview(self._handle.get_stream(position, count).read_buffer(count))
        if len(stored) < count:
            return memoryview(b"")  # the caller reports an answer that is too short
        room = pa.allocate_buffer(count)  # from Arrow's pool, which reuses pages
        plain = self._sealed.key.open(first, stored, self._sealed.size, self._key, memoryview(room).cast("B"))
        at = start - first * CHUNK_BYTES
        return plain[at : at + length]


class _Range:
    """A stream of one range, read in one piece."""

    def __init__(self, file: _DecryptedFile, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self._length = length

    def read_buffer(self, _length: int) -> pa.Buffer:
        return pa.py_buffer(self._file._read(self._start, self._length))
