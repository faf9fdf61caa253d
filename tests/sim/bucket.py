"""The bucket as one process reaches it: requests run on the store's side, not on the caller's.

Owns the line between a broker and its store. Always true: a request that was sent goes on when its sender is cancelled,
killed or paused (its effect may come, nobody hears of it); the store itself, with its faults, belongs to no process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextvars import Context
from typing import Any

from coldstore.object_store import Got, ObjectInfo, ObjectStore, Upload
from seams.disk import File


class RemoteBucket:
    """`ObjectStore` over `store`, whose work runs in `outside`, the context of no process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: ObjectStore, outside: Context) -> None:
        self._loop = loop
        self._store = store
        self._outside = outside

    @property
    def url(self) -> str:
        return self._store.url

    async def _ask(self, request: Coroutine[Any, Any, Any]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        async def serve() -> None:
            try:
                result = await request
            except Exception as failure:  # noqa: BLE001 - it travels to the caller
                if not answer.done():
                    answer.set_exception(failure)
                    answer.exception()  # a killed caller never fetches it
            else:
                if not answer.done():
                    answer.set_result(result)

        self._loop.create_task(serve(), context=self._outside)
        return await answer

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        return await self._ask(self._store.get(key, start, length))  # type: ignore[no-any-return]

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        return await self._ask(self._store.get_if_changed(key, etag))  # type: ignore[no-any-return]

    async def head(self, key: str) -> ObjectInfo:
        return await self._ask(self._store.head(key))  # type: ignore[no-any-return]

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        data = b"".join(bytes(piece) for piece in body.open())
        sent = Upload(body.size, body.checksum(), lambda: iter((data,)))
        return await self._ask(self._store.put_segment(key, sent))  # type: ignore[no-any-return]

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        return await self._ask(self._store.put_root(key, data, if_match))  # type: ignore[no-any-return]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._ask(self._store.delete(list(keys)))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def collect() -> list[ObjectInfo]:
            return [info async for info in self._store.list(prefix)]

        for info in await self._ask(collect()):
            yield info

    def open_local(self, key: str) -> File | None:
        return self._store.open_local(key)

    async def close(self) -> None:
        return None
