"""`RetryingStore`: retries calls that fail within 2 s, up to 5 tries.

It serves a start, which makes many calls in a row. Only repeatable calls are retried: reads, deletions, and writes of
immutable objects (after a check whether the first try succeeded). Conditional writes are not retried, because the
caller needs their outcome. Slow failures are not retried, so a store that hangs costs one time-out. Without retries, a
store that fails every fourth request would rarely pass the probe of 25 requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from coldstore.object_store import Got, ObjectInfo, ObjectMissing, ObjectStore, StoreUnavailable, Upload
from seams.files.disk import File

T = TypeVar("T")

TRIES: Final = 5
_WAIT_S: Final = 0.2  # wait after the first try; doubled each time, 3 s in all
_AT_ONCE_S: Final = 2.0  # a slower failure is that of an absent store, not of a busy one


async def tries() -> AsyncIterator[int]:
    """Up to `TRIES` tries with growing waits. Yields the number of remaining tries."""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(_WAIT_S * 2 ** (attempt - 1))
        yield TRIES - 1 - attempt


class RetryingStore:
    """An `ObjectStore` over `store` that is used only during a start; `tiering.work_queue` retries copies. `refused`
    gets each failure that is retried. The caller gets the last one."""

    def __init__(self, store: ObjectStore, refused: Callable[[StoreUnavailable], None]) -> None:
        self._store = store
        self._refused = refused

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        return await self._retry(lambda: self._store.get(key, start, length))

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        return await self._retry(lambda: self._store.get_if_changed(key, etag))

    async def head(self, key: str) -> ObjectInfo:
        return await self._retry(lambda: self._store.head(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def all_of() -> list[ObjectInfo]:
            return [info async for info in self._store.list(prefix)]

        for info in await self._retry(all_of):
            yield info

    def open_local(self, key: str) -> File | None:
        return self._store.open_local(key)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        is_first = True

        async def put() -> ObjectInfo:
            nonlocal is_first
            if not is_first:
                with suppress(ObjectMissing):
                    return await self._store.head(key)
            is_first = False
            return await self._store.put_segment(key, body)

        return await self._retry(put)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        return await self._store.put_root(key, data, if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._retry(lambda: self._store.delete(keys))

    async def close(self) -> None:
        await self._store.close()

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call `ask` until it succeeds. Raises its last StoreUnavailable. A slow failure and any other error are raised
        at once."""
        loop = asyncio.get_running_loop()
        failure: StoreUnavailable | None = None
        async for left in tries():
            began_s = loop.time()
            try:
                return await ask()
            except StoreUnavailable as refused:
                failure = refused
                if loop.time() - began_s > _AT_ONCE_S:
                    break
                if left:
                    self._refused(refused)
        assert failure is not None
        raise failure
