"""A store wrapper that refuses every write.

Reads pass unchanged. A write raises AccessRefused before any request is sent. It is counted, because it is a bug of
this program.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from coldstore.object_store import AccessRefused, Got, ObjectInfo, ObjectStore, Upload
from seams.files.disk import File


class ReadOnlyStore:
    """An `ObjectStore` over `store`. `refused`: number of refused writes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.refused = 0

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        return await self._store.get(key, start, length)

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        return await self._store.get_if_changed(key, etag)

    async def head(self, key: str) -> ObjectInfo:
        return await self._store.head(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)

    def open_local(self, key: str) -> File | None:
        return self._store.open_local(key)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        raise self._refusal("PUT", key)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        raise self._refusal("PUT", key)

    async def delete(self, keys: Sequence[str]) -> None:
        raise self._refusal("DELETE", ", ".join(keys[:3]))

    async def close(self) -> None:
        await self._store.close()

    def _refusal(self, operation: str, key: str) -> AccessRefused:
        self.refused += 1
        return AccessRefused(f"{operation} {key}: {self.url} is only read here (serve --read-only); nothing was sent")
