"""Reads manifest pages through an LRU cache that partitions may share.

Every cached page passed the checks of `decode_page`. The cache has at most `bytes_max` bytes, or one larger page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar, TypeVarTuple
from uuid import UUID

from coldstore.checked_get import get_range
from coldstore.manifest.manifest_entries import PagePointer
from coldstore.manifest.manifest_pages import PAGE_BYTES_MAX, Page, PointerPage, SegmentPage, decode_page
from coldstore.object_store import ReadStore
from logformat.errors import Corrupt
from seams.loop.workers import Lane, Workers

CACHE_BYTES_MAX: Final = 16 * 1024 * 1024

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class PageCache:
    """Decoded pages by key."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pages: OrderedDict[str, Page] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def get(self, key: str) -> Page | None:
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def put(self, key: str, page: Page) -> None:
        if key in self._pages:
            return
        self._pages[key] = page
        self._bytes += page.nbytes
        while self._bytes > self._bytes_max and len(self._pages) > 1:
            _, dropped = self._pages.popitem(last=False)
            self._bytes -= dropped.nbytes


class PageReader:
    """Reads the pages of one partition."""

    def __init__(
        self, store: ReadStore, topic_id: UUID, partition: int, cache: PageCache, workers: Workers | None
    ) -> None:
        self._store = store
        self._topic_id = topic_id
        self._partition = partition
        self._cache = cache
        self._workers = workers

    async def segments(self, pointer: PagePointer) -> SegmentPage:
        """The page of level 0. Raises Corrupt, NewerFormat, ObjectMissing (it was deleted after the grace; the caller
        loads the root again), StoreError."""
        page = await self._read(pointer)
        assert isinstance(page, SegmentPage), "decode_page checks the level"
        return page

    async def pointers(self, pointer: PagePointer) -> PointerPage:
        """The page of level 1. Raises the errors of `segments`."""
        page = await self._read(pointer)
        assert isinstance(page, PointerPage), "decode_page checks the level"
        return page

    async def leaves(self, pages: Sequence[PagePointer], start: int) -> AsyncIterator[PagePointer]:
        """The level-0 pages that end above `start`, in order: those in `pages` (of a manifest), and those below its
        level-1 pages."""
        for pointer in pages:
            if pointer.end_offset <= start:
                continue
            if not pointer.level:
                yield pointer
                continue
            for leaf in (await self.pointers(pointer)).pointers:
                if leaf.end_offset > start:
                    yield leaf

    def remember(self, pointer: PagePointer, page: Page) -> None:
        self._cache.put(str(pointer.key(self._topic_id, self._partition)), page)

    async def blocking(self, function: Callable[[*Ts], R], *args: *Ts) -> R:
        """Run a blocking call, in a worker if there are workers: parsing takes ms, the first import of pyarrow 0.3
        s."""
        if self._workers is None:
            return function(*args)
        return await self._workers.run(function, *args, lane=Lane.FILES)

    async def _read(self, pointer: PagePointer) -> Page:
        key = str(pointer.key(self._topic_id, self._partition))
        page = self._cache.get(key)
        if page is None:
            if not 0 < pointer.length <= PAGE_BYTES_MAX:
                raise Corrupt(f"manifest page {key}: {pointer.length} bytes, but at most {PAGE_BYTES_MAX} are allowed")
            got = await get_range(self._store, key, 0, pointer.length)
            if got.size != pointer.length:
                raise Corrupt(f"manifest page {key} has {got.size} bytes, but its pointer says {pointer.length}")
            page = await self.blocking(decode_page, got.data, pointer)
            self._cache.put(key, page)
        return page
