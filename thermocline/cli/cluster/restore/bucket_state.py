"""Input of a restore: the cluster by its `cluster.json`, and the bucket's state of each partition.

Reads only; needs no broker. An unreadable manifest affects its own partition only. Manifests are read `_READ_AT_ONCE`
at a time; a few hundred bytes per partition stay in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from crc32c import crc32c

from broker.groups.records import OffsetRecord, parse
from broker.internal_topics.batches import batches_in
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage
from broker.observe.cluster_status import BrokerRow, PartitionRow, broker_row, partition_row
from coldstore.keys import CLUSTER_KEY
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.object_store import ObjectMissing
from logformat.errors import Corrupt
from logformat.values import NewerFormat
from thermocline.cli.clients.statuses import Partition
from thermocline.cli.cluster.restore.plan import StoredPartition
from thermocline.cli.terminal.outcome import CommandFailed

if TYPE_CHECKING:
    from thermocline.cli.bucket.reading import Bucket

_READ_AT_ONCE: Final = 32
_OFFSETS_TOPIC: Final = "__consumer_offsets"
MISSING: Final = "it has no manifest.json; restore it from an earlier version of the object"


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """`cluster.json` at one moment."""

    cluster_id: str
    image: ClusterImage
    brokers: Sequence[BrokerRow]
    partitions: Sequence[PartitionRow]

    def ids(self) -> dict[Partition, UUID]:
        return {
            (topic.name, index): UUID(topic.topic_id)
            for topic in self.image.topics.values()
            for index in range(topic.partitions)
        }


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group with committed offsets in the bucket. `newest_ms`: time of the newest commit."""

    group: str
    positions: int
    newest_ms: int


class BucketState:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        world = bucket.world
        self._root = ClusterRoot(bucket.store, world.rng, world.clock, world.workers)

    async def read(self) -> ClusterSnapshot:
        """The cluster now. Raises CommandFailed when `cluster.json` is missing or damaged, NewerFormat."""
        url = self._bucket.store.url
        try:
            found = await (self._root.poll() if self._root.known is not None else self._root.load())
        except NewerFormat:
            raise
        except Corrupt as damaged:
            raise CommandFailed(f"{url}: {damaged}; {_REBUILD}") from damaged
        if found is None:
            is_ours = await self._bucket.inspector.partitions()
            raise CommandFailed(
                f"{url} has no {CLUSTER_KEY}; {_REBUILD}"
                if is_ours
                else f"{url} holds no objects of Thermocline; check the bucket's name and the prefix"
            )
        image = found.image
        brokers = [broker_row(node) for _, node in sorted(image.nodes.items())]
        topics = sorted(image.topics.values(), key=lambda topic: topic.name)
        partitions = [partition_row(topic, index, image) for topic in topics for index in range(topic.partitions)]
        return ClusterSnapshot(found.cluster_id, image, brokers, partitions)

    async def manifests(
        self, ids: dict[Partition, UUID], progress: Callable[[int], None] = lambda _: None
    ) -> dict[Partition, Manifest | str]:
        """The manifest of each partition, or why it cannot be read. Raises StoreError, NewerFormat."""
        found: dict[Partition, Manifest | str] = {}

        async def one(place: Partition) -> None:
            found[place] = await self._manifest(ids[place], place[1])
            progress(len(found))

        await _some_at_once([lambda place=place: one(place) for place in ids])  # type: ignore[misc]
        return found

    async def _manifest(self, topic_id: UUID, index: int) -> Manifest | str:
        try:
            manifest = await ManifestReader(self._bucket.store, topic_id, index).load()
        except NewerFormat:
            raise
        except Corrupt as damaged:
            return str(damaged)
        return MISSING if manifest is None else manifest

    async def groups(self, manifests: Iterable[Manifest]) -> list[StoredGroup]:
        """Groups with offsets in the snapshots of `manifests`. Unreadable snapshots are left out; loading the
        partition reports them.
        """
        newest: dict[str, StoredGroup] = {}
        for manifest in manifests:
            if manifest.topic == _OFFSETS_TOPIC and manifest.snapshot is not None:
                for group, at_ms in _positions(await self._snapshot(manifest)):
                    known = newest.get(group, StoredGroup(group, 0, -1))
                    newest[group] = StoredGroup(group, known.positions + 1, max(known.newest_ms, at_ms))
        return [held for _, held in sorted(newest.items())]

    async def _snapshot(self, manifest: Manifest) -> bytes:
        pointer = manifest.snapshot
        assert pointer is not None
        try:
            data = (await self._bucket.store.get(str(pointer.key(manifest.topic_id, manifest.partition)))).data
        except ObjectMissing:
            return b""
        return data if (len(data), crc32c(data)) == (pointer.length, pointer.crc32c) else b""


_REBUILD: Final = (
    "restore it from an earlier version of the object where the bucket keeps versions, else `thermocline cluster "
    "rebuild` creates it again from the manifests"
)


def stored_partition(manifest: Manifest | str) -> StoredPartition:
    """The values of a manifest, or its damage."""
    if isinstance(manifest, str):
        return StoredPartition(damage=manifest)
    return StoredPartition(
        manifest.log_start_offset,
        manifest.remote_end_offset,
        manifest.bucket_end_offset,
        manifest.reserved_end_offset,
        manifest.live.log_bytes,
    )


def _positions(data: bytes) -> list[tuple[str, int]]:
    found = []
    for batch in batches_in(data):
        for record in batch.records:
            parsed = parse(record.key, record.value)
            if record.producer is None and isinstance(parsed, OffsetRecord) and parsed.value is not None:
                found.append((parsed.key.group_id, parsed.value.committed_at_ms))
    return found


async def _some_at_once(work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    waiting = iter(work)

    async def worker() -> None:
        for each in waiting:
            await each()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_READ_AT_ONCE, len(work))):
                group.create_task(worker())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed  # an ExceptionGroup has no exit code
