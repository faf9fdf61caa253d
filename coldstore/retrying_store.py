"""A store whose refusals that come at once are asked about again: for a start, which asks many things in a row.

Owns the second tries. Always true: only what may be repeated is: reads, deletions, and objects of a name that is used
once, after a look whether the first try did it; a conditional write goes through as it is, for its outcome decides
something; an answer that took long is not waited for twice, so that a store that hangs costs one time-out and no more.
Must not know what is asked. Of a store that fails every fourth request the probe's 25 hardly ever pass in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from coldstore.object_store import Got, ObjectInfo, ObjectMissing, ObjectStore, StoreUnavailable, Upload
from seams.disk import File

T = TypeVar("T")

TRIES: Final = 5
_WAIT_S: Final = 0.2  # after the first try, doubled each time: 3 s in all
_AT_ONCE_S: Final = 2.0  # an answer that takes longer comes from no busy store, but from none


async def tries() -> AsyncIterator[int]:
    """Turns with growing waits between them: how many follow."""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(_WAIT_S * 2 ** (attempt - 1))
        yield TRIES - 1 - attempt


class RetryingStore:
    """`ObjectStore` over `store`. `refused` hears at once of each refusal that another try follows; of the last one the
    caller hears."""

    def __init__(self, store: ObjectStore, refused: Callable[[StoreUnavailable], None] = lambda _: None) -> None:
        self._store = store
        self._refused = refused

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        return await self._again(lambda: self._store.get(key, start, length))

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        return await self._again(lambda: self._store.get_if_changed(key, etag))

    async def head(self, key: str) -> ObjectInfo:
        return await self._again(lambda: self._store.head(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def all_of() -> list[ObjectInfo]:
            return [info async for info in self._store.list(prefix)]

        for info in await self._again(all_of):
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

        return await self._again(put)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        return await self._store.put_root(key, data, if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._again(lambda: self._store.delete(keys))

    async def close(self) -> None:
        await self._store.close()

    async def _again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Raises as `ask`: its last StoreUnavailable, or at once what is none, or took long."""
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
