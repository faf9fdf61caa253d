"""Prefetches the bucket's data of lost logs, while this broker waits to become their leader.

It reads each partition's root, and the epochs and producers in its last object's footer. Prefetched data alone is not
used to lead or write, because an earlier leader may commit until a claim fences it. The claim replaces exactly the
prefetched root (by ETag). If the root has changed, the claim reads it again and replaces the new one (C30). A footer
counts only if the claimed root names its object as the last object. That is safe, because each upload has a new key and
objects never change. Errors are ignored here; the opening of the log reads again. At most `PARTITIONS_MAX` partitions
are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Final
from uuid import UUID

from coldstore.manifest.manifest_store import ManifestStore
from coldstore.manifest.page_reader import PageCache
from coldstore.object_store import ObjectStore
from logformat.errors import ThermoclineError
from seams.world import World
from tiering.opening.cold_start import ColdStart, state_at

Key = tuple[UUID, int]

PARTITIONS_MAX: Final = 2_000  # roots of up to 64 KiB each, which stay in memory while they are led
_READERS: Final = 8  # reads at once; the lease is watched at the same time


class ReadAhead:
    """Prefetched data for one start. `cold`: contents of footers by object key and offset, for `state_at`; `pages`: the
    page cache of all manifests of this broker."""

    def __init__(self, store: ObjectStore, world: World, deadline_s: float) -> None:
        self._store = store
        self._world = world
        self._deadline_s = deadline_s
        self.pages: Final = PageCache()
        self._manifests: dict[Key, ManifestStore] = {}
        self.cold: dict[tuple[str, int], ColdStart] = {}

    async def read(self, wanted: Iterable[Key]) -> None:
        """Read the bucket's data for these partitions. It may be cancelled and started again. Raises no error of the
        store."""
        left = (key for key in islice(wanted, PARTITIONS_MAX) if key not in self._manifests)

        async def reader() -> None:
            for key in left:
                await self._read(key)

        async with asyncio.TaskGroup() as group:
            for _ in range(_READERS):
                group.create_task(reader())

    async def _read(self, key: Key) -> None:
        world = self._world
        manifests = ManifestStore(
            self._store,
            *key,
            world.rng,
            world.clock,
            workers=world.workers,
            page_cache=self.pages,
            deadline_s=self._deadline_s,
        )
        try:
            async with asyncio.timeout(self._deadline_s):
                manifest = await manifests.load()
                if manifest is None:
                    return
                self._manifests[key] = manifests
                end = manifest.remote_end_offset
                last = await manifests.find(end - 1) if end else None
                if last is not None:
                    found = await state_at(self._store, manifests, key, end, self._deadline_s)
                    self.cold[str(last.key(*key)), end] = found._replace(producers=tuple(found.producers))
        except (ThermoclineError, TimeoutError):
            return  # the opening of the log reads again and reports it

    def take(self, key: Key) -> ManifestStore | None:
        """The manifests read for a partition, once, for its claim."""
        return self._manifests.pop(key, None)

    def forget(self) -> None:
        """Drop all prefetched data, because all logs are open."""
        self._manifests.clear()
        self.cold.clear()
