"""The bucket as one process reaches it: requests run on the store's side, not on the caller's.

Owns the line between a broker and its store. Always true: a request that was sent goes on when its sender is cancelled,
killed or paused (its effect may come, nobody hears of it); one that waits before a cut link while its sender goes may
still arrive once the link is healed, or not; one that is answered 403 has no effect; the store itself, with its
faults, belongs to no process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from coldstore.object_store import AccessRefused, Got, ObjectInfo, ObjectStore, StoreUnavailable, Upload
from coldstore.stores.operations import Operation
from seams.files.disk import File
from seams.rng import SeededRng
from tests.sim.world.late import Late
from tests.sim.world.links import STORE, Links

REFUSING_S = 0.01


@dataclass(slots=True)
class Rights:
    """What the bucket lets those at one place do, whoever runs there: `denies` is answered 403, `denied` counts."""

    denies: Collection[Operation] = ()
    denied: int = 0


@dataclass(frozen=True, slots=True)
class WayToStore:
    """The links between a place and the store; `rng` decides what becomes of requests whose sender is gone."""

    links: Links
    place: str
    rng: SeededRng

    async def there(self, answer: asyncio.Future[Any]) -> bool:
        """Wait until a request arrives; False: it never does, its sender is gone."""
        if self.links.up(self.place, STORE):
            return True
        await self.links.until_up((self.place, STORE))
        return not answer.done() or self.rng.randrange(2) == 0

    async def back(self) -> None:
        await self.links.until_up((STORE, self.place))


class RemoteBucket:
    """`ObjectStore` over `store`, whose work runs in `outside`, the context of no process. While `down`, requests from
    here are refused at once; `refused` counts them. `rights`: of its place, when they arrive there; `denied` counts
    those of this process that were answered 403. `late`: requests that arrive late, or are answered late, if any."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: ObjectStore,
        outside: Context,
        way: WayToStore | None = None,
        rights: Rights | None = None,
        late: Late | None = None,
    ) -> None:
        self._loop = loop
        self._store = store
        self._outside = outside
        self._way = way
        self._late = late
        self.down = False
        self.refused = 0
        self.rights = rights or Rights()
        self.denied = 0

    @property
    def url(self) -> str:
        return self._store.url

    async def _ask(self, operation: Operation, request: Coroutine[Any, Any, Any]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        way, late = self._way, self._late

        async def serve() -> None:
            result, failure = None, None
            if way is not None and not await way.there(answer):
                request.close()
                return
            if late is not None:
                await late.pause("store begins")
            try:
                if operation in self.rights.denies:
                    request.close()
                    await self._deny(operation)
                result = await request
            except Exception as refused:  # noqa: BLE001 - it travels to the caller
                failure = refused
            if late is not None:
                await late.pause("store is heard")
            if way is not None:
                await way.back()
            if answer.done():
                return
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)
                answer.exception()  # a killed caller never fetches it

        if self.down:
            self.refused += 1
            request.close()
            raise StoreUnavailable("no way to the store from here: made up")
        self._loop.create_task(serve(), context=self._outside)
        return await answer

    async def _deny(self, operation: Operation) -> None:
        self.denied += 1
        self.rights.denied += 1
        await asyncio.sleep(REFUSING_S)
        raise AccessRefused(f"{operation.value}: made up (403 for one)")

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        return await self._ask(Operation.GET, self._store.get(key, start, length))  # type: ignore[no-any-return]

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        return await self._ask(Operation.GET_IF_CHANGED, self._store.get_if_changed(key, etag))  # type: ignore[no-any-return]

    async def head(self, key: str) -> ObjectInfo:
        return await self._ask(Operation.HEAD, self._store.head(key))  # type: ignore[no-any-return]

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        data = b"".join(bytes(piece) for piece in body.open())
        sent = Upload(body.size, body.checksum(), lambda: iter((data,)))
        return await self._ask(Operation.PUT_SEGMENT, self._store.put_segment(key, sent))  # type: ignore[no-any-return]

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        return await self._ask(Operation.PUT_ROOT, self._store.put_root(key, data, if_match))  # type: ignore[no-any-return]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._ask(Operation.DELETE, self._store.delete(list(keys)))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def collect() -> list[ObjectInfo]:
            return [info async for info in self._store.list(prefix)]

        for info in await self._ask(Operation.LIST, collect()):
            yield info

    def open_local(self, key: str) -> File | None:
        return self._store.open_local(key)

    async def close(self) -> None:
        return None
