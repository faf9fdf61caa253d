"""Bucket access without a broker: opens the store for reading, and finds partitions by topic.

Topic names come from the manifests, so a bucket without `cluster.json` can be read. A topic id works instead of a name,
because a topic that was deleted and created again has two ids.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from crc32c import crc32c

from broker.metadata.cluster_content import CLUSTER_FORMAT, Content
from coldstore.inspection.audit import CLUSTER_GONE, Finding, FindingKind, GcPlan, NamedKeys, gc_plan, orphan_findings
from coldstore.inspection.bucket_inspection import BucketInspector, PartitionView
from coldstore.keys import CLUSTER_KEY, METADATA_PREFIX
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.object_store import ObjectMissing, ObjectStore
from coldstore.roots.root import Root, RootStore
from coldstore.stores.opening import open_store
from coldstore.url import KEY_FILE_VARIABLE, BucketUrl, parse_bucket_url, with_key_file
from logformat.errors import Corrupt
from logformat.values import NewerFormat
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.files.syncs import WorkerSyncs
from seams.loop.workers import ThreadWorkers
from seams.net import TcpNet
from seams.rng import SystemRng
from seams.world import World
from thermocline.cli.clients.statuses import Partition
from thermocline.cli.terminal.outcome import CommandFailed

T = TypeVar("T")

_VERIFY_TRIES = 3  # a broker may commit meanwhile


@dataclass(frozen=True, slots=True)
class ColdPartition:
    """A partition's bytes of log in the bucket, and its declared gaps."""

    cold_bytes: int
    gaps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    store: ObjectStore
    world: World
    inspector: BucketInspector

    async def views(self, topic: str | None = None, partition: int | None = None) -> AsyncIterator[PartitionView]:
        """Partitions that have a root, by topic id and index; optionally of one topic (name or id) or index only."""
        for topic_id, index in await self.inspector.partitions():
            if partition is not None and index != partition:
                continue
            view = await self.inspector.view(topic_id, index)
            if view is not None and (topic is None or topic in (view.manifest.topic, str(topic_id))):
                yield view

    async def is_ours(self) -> bool:
        """Whether a broker ever used this bucket: it has `cluster.json`, or anything below `topics/`."""
        try:
            return await self._cluster_root() is not None or bool(await self.inspector.partitions())
        except Corrupt:
            return True  # a later check reports the damage

    async def one_view(self, topic: str, partition: int) -> PartitionView:
        """The view of one partition. Raises CommandFailed when there is none, or when several topics have the name."""
        found = [view async for view in self.views(topic, partition)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise CommandFailed(f"{self.store.url} has no manifest of {topic}-{partition}; see `thermocline bucket ls`")
        ids = ", ".join(str(view.manifest.topic_id) for view in found)
        raise CommandFailed(f"{topic} was deleted and created again: give one of the ids {ids} as --topic")

    async def partitions(self, topic: str | None) -> list[tuple[UUID, int, str | None]]:
        """Topic id, index and name (None: no root) of everything below `topics/`. Raises NewerFormat."""
        found = []
        for topic_id, index in await self.inspector.partitions():
            name = await self._name(topic_id, index)
            if topic is None or topic in (name, str(topic_id)):
                found.append((topic_id, index, name))
        return found

    async def _name(self, topic_id: UUID, index: int) -> str | None:
        try:
            manifest = await ManifestReader(self.store, topic_id, index).load()
        except NewerFormat:
            raise
        except Corrupt:
            return None  # a later check reports the damage
        return None if manifest is None else manifest.topic

    async def plan_metadata_gc(self) -> GcPlan:
        """Metadata pages that `cluster.json` does not name. `cluster.json` is read after the pages are listed."""
        listing = [info async for info in self.store.list(METADATA_PREFIX)]
        return gc_plan(listing, await self._metadata_named())

    async def verify_metadata(self) -> list[Finding]:
        """Findings about `cluster.json` and the page it names. Raises NewerFormat."""
        try:
            for _ in range(_VERIFY_TRIES):
                plan, named = await self.plan_metadata_gc(), await self._metadata_named()
                damage = await self._metadata_damage(named)
                if not damage or named == await self._metadata_named():  # a live broker may have replaced it
                    break
        except NewerFormat:
            raise
        except Corrupt as broken:
            return [Finding(FindingKind.UNREADABLE, CLUSTER_KEY, None, str(broken))]
        return damage + orphan_findings(plan)

    async def _metadata_damage(self, named: NamedKeys | None) -> list[Finding]:
        if named is None:
            return [CLUSTER_GONE]
        return [found for key in named.keys if (found := await self._page(key))]

    async def _metadata_named(self) -> NamedKeys | None:
        root = await self._cluster_root()
        if root is None:
            return None
        page = root.content.page
        return NamedKeys(root.epoch, frozenset(() if page is None else (page.key,)))

    async def _page(self, key: str) -> Finding | None:
        root = await self._cluster_root()
        if root is None or root.content.page is None or root.content.page.key != key:
            return None
        try:
            data = (await self.store.get(key)).data
        except ObjectMissing as gone:
            return Finding(FindingKind.MISSING, key, None, str(gone))
        if (len(data), crc32c(data)) != (root.content.page.size, root.content.page.crc32c):
            return Finding(
                FindingKind.DAMAGED, key, None, f"its {len(data)} bytes differ from the checksum in cluster.json"
            )
        return None

    async def _cluster_root(self) -> Root[Content] | None:
        return await RootStore(self.store, CLUSTER_KEY, CLUSTER_FORMAT, self.world.rng, self.world.clock).load()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bucket]:
    """The bucket behind `url`. Raises InvalidRequest for a bad URL."""
    workers = ThreadWorkers()
    world = world_of(workers)
    store = open_store(bucket_url_of(url), world)
    try:
        yield Bucket(store, world, BucketInspector(store, workers))
    finally:
        await store.close()
        workers.close()


def world_of(workers: ThreadWorkers) -> World:
    return World(PosixDisk(), workers, WorkerSyncs(workers), SystemClock(), SystemRng(), TcpNet())


def bucket_url_of(url: str) -> BucketUrl:
    """The parsed bucket URL, with the key file that the environment names. Raises InvalidRequest."""
    return with_key_file(parse_bucket_url(url), os.environ.get(KEY_FILE_VARIABLE))


def with_bucket(url: str, use: Callable[[Bucket], Awaitable[T]]) -> T:
    """Run `use` on the open bucket, in its own event loop."""

    async def run() -> T:
        async with opened(url) as bucket:
            try:
                return await use(bucket)
            except ObjectMissing as missing:
                raise CommandFailed(f"{bucket.store.url}: {missing}") from missing

    return asyncio.run(run())


def cold_partitions(url: str, topic: str | None) -> dict[Partition, ColdPartition]:
    """The manifests' values of each partition, for `tier status --bucket`."""

    async def read(bucket: Bucket) -> dict[Partition, ColdPartition]:
        return {
            (view.manifest.topic, view.manifest.partition): ColdPartition(
                view.manifest.live.log_bytes, tuple(gap for segment in view.live for gap in segment.gaps)
            )
            async for view in bucket.views(topic)
        }

    return with_bucket(url, read)
