"""An `ObjectStore` in memory with S3's semantics, for unit tests and the simulation.

Owns a dict of objects. Always true: every write is one atomic step after one trip through the loop, so racing tasks
interleave as they would over a network; the conditional write is exact; a wrong checksum and a reused segment name are
refused. Tests may read and damage `objects` directly (bit rot, swaps, deletions behind our back). Faults come from
`tests.support.store.faulty_store`, request logs from `coldstore.stores.metered`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
from crc32c import crc32c

from coldstore.object_store import ChecksumRefused, Got, ObjectInfo, ObjectMissing, PreconditionFailed, Upload
from coldstore.stores.limits import check_key, check_range, resolve_range
from logformat.errors import InvalidRequest
from seams.files.disk import File

_PAGE_KEYS = 1000  # what one LIST answers


class StoredObject(msgspec.Struct):
    """One object: its bytes, the ETag given out for them, and the CRC32C of the whole where one was sent."""

    data: bytes
    etag: str
    crc32c: int | None


class MemoryStore:
    """`ObjectStore` over `objects`; `checks_checksums=False` plays a store that ignores what was sent (C12)."""

    def __init__(self, url: str = "memory://bucket", *, checks_checksums: bool = True) -> None:
        self.objects: dict[str, StoredObject] = {}
        self._url = url
        self._checks_checksums = checks_checksums

    @property
    def url(self) -> str:
        return self._url

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        check_range(key, start, length)
        await asyncio.sleep(0)
        found = self._find(key)
        start, given = resolve_range(key, start, length, len(found.data))
        return Got(found.data[start : start + given], found.etag, len(found.data))

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        await asyncio.sleep(0)
        found = self._find(key)
        return None if found.etag == etag else Got(found.data, found.etag, len(found.data))

    async def head(self, key: str) -> ObjectInfo:
        await asyncio.sleep(0)
        found = self._find(key)
        return ObjectInfo(key, len(found.data), found.etag, found.crc32c)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        check_key(key)
        pieces: list[bytes] = []
        for piece in body.open():
            pieces.append(bytes(piece))
            await asyncio.sleep(0)
        data = b"".join(pieces)
        if len(data) != body.size or (self._checks_checksums and crc32c(data) != body.checksum()):
            raise ChecksumRefused(f"PUT {key}: {len(data)} bytes do not match the size or checksum sent with them")
        if key in self.objects:
            raise InvalidRequest(f"PUT {key}: an object of that name exists; immutable objects never reuse a name")
        stored = StoredObject(data, _etag(data), body.checksum() if self._checks_checksums else None)
        self.objects[key] = stored
        return ObjectInfo(key, len(data), stored.etag, stored.crc32c)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        check_key(key)
        await asyncio.sleep(0)
        found = self.objects.get(key)
        if (found.etag if found is not None else None) != if_match:
            raise PreconditionFailed(f"PUT {key}: the condition did not hold")
        stored = StoredObject(bytes(data), _etag(data), crc32c(data))
        self.objects[key] = stored
        return stored.etag

    async def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        found = self._find(key)
        data = b"".join(map(bytes, body.open()))
        await asyncio.sleep(0)
        if self.objects.get(key) is not found or found.etag != if_match:
            raise PreconditionFailed(f"PUT {key}: the condition did not hold")
        if len(data) != body.size or crc32c(data) != body.checksum():
            raise ChecksumRefused(f"PUT {key}: {len(data)} bytes do not match the size or checksum sent with them")
        self.objects[key] = StoredObject(data, _etag(data), crc32c(data))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await asyncio.sleep(0)
        for key in keys:
            self.objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        after = ""
        while True:
            await asyncio.sleep(0)
            names = sorted(key for key in self.objects if key.startswith(prefix) and key > after)[:_PAGE_KEYS]
            page = [ObjectInfo(key, len(self.objects[key].data), self.objects[key].etag) for key in names]
            for info in page:
                yield info
            if len(names) < _PAGE_KEYS:
                return
            after = names[-1]

    def open_local(self, key: str) -> File | None:
        return None

    async def close(self) -> None:
        return None

    def _find(self, key: str) -> StoredObject:
        check_key(key)
        found = self.objects.get(key)
        if found is None:
            raise ObjectMissing(f"{key}: no such object in {self._url}")
        return found


def upload_of(data: bytes, piece: int = 1 << 20) -> Upload:
    """An `Upload` over bytes in memory, in pieces of at most `piece` bytes."""
    view = memoryview(data)
    return Upload(len(data), crc32c(data), lambda: (view[at : at + piece] for at in range(0, len(view), piece)))


def trailed(data: bytes, *, size: int | None = None, checksum: int | None = None, piece: int = 1 << 20) -> Upload:
    """The same, its checksum (a wrong one where `checksum` says so) known only once the last piece was taken. The
    pieces lie in one buffer, which the next one overwrites."""
    taken: list[int] = []

    def pieces() -> Iterator[memoryview]:
        taken.clear()
        buffer = memoryview(bytearray(piece))
        for at in range(0, len(data), piece):
            part = data[at : at + piece]
            buffer[: len(part)] = part
            taken.append(len(part))
            yield buffer[: len(part)]

    def sealed() -> int:
        assert sum(taken) == len(data), "asked before the last piece was taken"
        return crc32c(data) if checksum is None else checksum

    return Upload(len(data) if size is None else size, None, pieces, sealed)


def _etag(data: bytes) -> str:
    return '"' + hashlib.sha256(data).hexdigest()[:32] + '"'
