"""What the bucket holds of logs that are lost here, read while this broker waits for the right to lead them.

Owns what was read: a root a partition, and the lineage and producers in the footer of its last object. Always true:
nothing is led, and nothing written, by what was read here alone. It may be stale: whoever led before may commit until a
claim fences him. So a root that was read here is where the claim *starts from*, no more: the claim replaces that very
root (the store compares its ETag), or is refused, and then the root is read again and claimed as it stands (C30); what
the claim returns is what it replaced, in either case. What a footer says is kept by the object's key, which is new for
each upload, and objects never change: it counts where the claimed root names that object as the last one, and is read
again where it names another. What could not be read, or was damaged on its way, is left to whoever opens the log: he
asks again, and says what is wrong. At most `PARTITIONS_MAX` are read, the rest when they are opened. Must not know who
leads, nor why a log is lost.
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
_READERS: Final = 8  # at once: beside them the lease is watched


class ReadAhead:
    """Of one start. `cold` is asked by `state_at`: by key of the object and offset; `pages` is every manifest's of this
    broker, those that were read here too."""

    def __init__(self, store: ObjectStore, world: World, deadline_s: float) -> None:
        self._store = store
        self._world = world
        self._deadline_s = deadline_s
        self.pages: Final = PageCache()
        self._manifests: dict[Key, ManifestStore] = {}
        self.cold: dict[tuple[str, int], ColdStart] = {}

    async def read(self, wanted: Iterable[Key]) -> None:
        """Read what the bucket has for them; may be cancelled, and begun again. Raises nothing of the store's."""
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
            return  # see the module

    def take(self, key: Key) -> ManifestStore | None:
        """What was read of a partition's root, once: for who is to claim it."""
        return self._manifests.pop(key, None)

    def forget(self) -> None:
        """All is open that was to be."""
        self._manifests.clear()
        self.cold.clear()
