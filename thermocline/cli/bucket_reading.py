"""A bucket opened for reading with no broker: the store behind a URL, and what lies in it by topic.

Owns the real seams of `bucket …` and the finding of partitions by a topic's name. Always true: names come from the
manifests themselves, so a bucket without `cluster.json` can be read; a topic id works where a name does, since deleted
and created again a name stands for two. Must not know how results are printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from coldstore.audit import GcPlan, Named, gc_plan
from coldstore.bucket_inspection import BucketInspector, PartitionView
from coldstore.keys import METADATA_PREFIX
from coldstore.object_store import ObjectMissing, ObjectStore
from coldstore.root import RootStore
from coldstore.url import open_store, parse_bucket_url
from seams.clock import SystemClock
from seams.disk import PosixDisk
from seams.net import TcpNet
from seams.rng import SystemRng
from seams.workers import ThreadWorkers
from seams.world import World
from thermocline.cli.outcome import CommandFailed
from thermocline.cli.tier_status import ColdPartition, Partition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bucket:
    """An open bucket."""

    store: ObjectStore
    world: World
    inspector: BucketInspector

    async def views(self, topic: str | None = None, partition: int | None = None) -> AsyncIterator[PartitionView]:
        """Partitions that have a root, by topic id and index; of the topic with this name or id, of this index."""
        for topic_id, index in await self.inspector.partitions():
            if partition is not None and index != partition:
                continue
            view = await self.inspector.view(topic_id, index)
            if view is not None and (topic is None or topic in (view.manifest.topic, str(topic_id))):
                yield view

    async def one_view(self, topic: str, partition: int) -> PartitionView:
        """CommandFailed when there is none, or when a name stands for several topics."""
        found = [view async for view in self.views(topic, partition)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise CommandFailed(f"{self.store.url} has no manifest of {topic}-{partition}; see `thermocline bucket ls`")
        ids = ", ".join(str(view.manifest.topic_id) for view in found)
        raise CommandFailed(f"{topic} was deleted and created again: give one of the ids {ids} as --topic")

    async def partitions(self, topic: str | None) -> list[tuple[UUID, int, str | None]]:
        """Topic id, index and name (None: no root) of everything below `topics/`, also where no root is."""
        found = []
        for topic_id, index in await self.inspector.partitions():
            name = await self._name(topic_id, index)
            if topic is None or topic in (name, str(topic_id)):
                found.append((topic_id, index, name))
        return found

    async def _name(self, topic_id: UUID, index: int) -> str | None:
        from coldstore.manifest_store import ManifestStore
        from logformat.errors import Corrupt

        opened = ManifestStore(self.store, topic_id, index, self.world.rng, self.world.clock)
        try:
            manifest = await opened.load()
        except Corrupt:
            return None  # whoever looks closer reports it
        return None if manifest is None else manifest.topic

    async def plan_metadata_gc(self) -> GcPlan:
        """Pages of the cluster's metadata that `cluster.json`, read after the listing, does not name."""
        from broker.metadata.cluster_store import ClusterContent
        from coldstore.keys import cluster_key

        listing = [info async for info in self.store.list(METADATA_PREFIX)]
        root = await RootStore(self.store, cluster_key(), ClusterContent, self.world.rng, self.world.clock).load()
        if root is None:
            return gc_plan(listing, None)
        snapshot = root.content.snapshot
        return gc_plan(listing, Named(root.epoch, frozenset(() if snapshot is None else (snapshot.key,))))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bucket]:
    """The bucket behind `url`. InvalidRequest for a bad URL."""
    workers = ThreadWorkers()
    world = World(PosixDisk(), workers, SystemClock(), SystemRng(), TcpNet())
    store = open_store(parse_bucket_url(url), world)
    try:
        yield Bucket(store, world, BucketInspector(store, world.rng, world.clock, workers))
    finally:
        await store.close()
        workers.close()


def with_bucket(url: str, use: Callable[[Bucket], Awaitable[T]]) -> T:
    """Run `use` on the open bucket, in an event loop of its own."""

    async def run() -> T:
        async with opened(url) as bucket:
            try:
                return await use(bucket)
            except ObjectMissing as missing:
                raise CommandFailed(f"{bucket.store.url}: {missing}") from missing

    return asyncio.run(run())


def cold_partitions(url: str, topic: str | None) -> dict[Partition, ColdPartition]:
    """What the manifests say of each partition: for `tier status --bucket`."""

    async def read(bucket: Bucket) -> dict[Partition, ColdPartition]:
        return {
            (view.manifest.topic, view.manifest.partition): ColdPartition(
                view.manifest.live.log_bytes, tuple(gap for segment in view.live for gap in segment.gaps)
            )
            async for view in bucket.views(topic)
        }

    return with_bucket(url, read)
