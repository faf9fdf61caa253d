"""A directory bucket of history for tests of the pipeline: real segment objects, manifests and pages, by coldstore's
own writer.

    bucket = HistoryBucket(tmp_path)
    bucket.topic("events", partitions=2)
    bucket.append("events", 0, batches_of([...]), base=0)   # one segment object from whole batches
    bucket.url
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from coldstore.keys import SegmentKey, manifest_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import ObjectStore
from coldstore.segments.segment_object import DecidedTransaction, SegmentFooter, build_footer, entry_from_footer
from coldstore.segments.segment_scanner import SegmentScanner
from coldstore.stores.opening import open_store
from coldstore.url import parse_bucket_url
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.record_batch import read_header, walk
from logformat.records import Record, encode_batch
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.files.syncs import WorkerSyncs
from seams.loop.workers import ThreadWorkers
from seams.net import TcpNet
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.late import must_not_come
from tests.support.store.memory_store import upload_of

T = TypeVar("T")
T0 = 1_700_000_000_000


def records(base: int, count: int, *, value_bytes: int = 40, step_ms: int = 1) -> list[Record]:
    """Records whose content says their offset, a millisecond apart."""
    return [
        Record(n, T0 + n * step_ms, b"k%d" % n, (b"%d." % n).ljust(value_bytes, b"v"))
        for n in range(base, base + count)
    ]


def batch(base: int, count: int, **options: int) -> bytes:
    return encode_batch(records(base, count, **options), base_offset=base, leader_epoch=1)


class HistoryBucket:
    """The bucket in a directory (or behind any URL). Every call is done when it returns."""

    def __init__(self, place: Path | str, *, pages: bool = False) -> None:
        self.url = place if isinstance(place, str) else f"file://{place}/bucket"
        self.path = None if isinstance(place, str) else place / "bucket"
        self._ids: dict[str, UUID] = {}
        self._records: list[dict[str, object]] = []
        self._rng = SeededRng(7)
        self._pending: list[tuple[SegmentKey, bytes, RemoteSegment]] = []
        self._holding = False
        self._page_options = {"page_entries_min": 4, "root_bytes_max": 8192, "pointers_in_root_max": 2} if pages else {}

    def topic(self, name: str, partitions: int = 1, topic_id: UUID | None = None) -> UUID:
        """A topic made as the controller does it: manifests first, then a record in cluster.json."""
        topic_id = topic_id or self._rng.uuid()
        self._ids[name] = topic_id
        for partition in range(partitions):
            self._with(topic_id, partition, lambda opened: opened.create(1, name, {}, 1 << 20))
        self._records.append(
            {
                "t": "topic",
                "topic_id": str(topic_id),
                "name": name,
                "rows": [[[1], 1, 1, 1, [1], 1, [], -1, True]] * partitions,
                "configs": {},
                "internal": False,
            }
        )
        self._write_cluster()
        return topic_id

    def delete(self, name: str) -> None:
        """As the controller does it: the name is free, the objects are still there."""
        self._records.append({"t": "deleted", "topic_id": str(self._ids.pop(name))})
        self._write_cluster()

    def append(
        self,
        topic: str,
        partition: int,
        batches: Sequence[bytes],
        *,
        interval: int = 500,
        transactions: Sequence[DecidedTransaction] = (),
        damage: bytes | None = None,
    ) -> SegmentKey:
        """One segment object that holds `batches`, behind the partition's remote end. `damage`: log bytes instead."""
        log = b"".join(batches)
        base = read_header(log).base_offset
        end = [header.next_offset for _, header in walk(log)][-1]
        topic_id = self._ids[topic]
        key = SegmentKey(topic_id, partition, base, 1, self._rng.uuid())
        scanner = SegmentScanner(base, len(log), chunk_bytes=4096, index_interval_bytes=interval)
        scanner.feed(log)
        lineage = LeaderEpochs((EpochStart(1, 0),))
        footer = build_footer(
            key,
            topic,
            scanner.finish(end),
            lineage=lineage,
            producers=ProducerState(end, ()),
            transactions=transactions,
        )
        entry = entry_from_footer(SegmentFooter.parse(footer, len(log) + len(footer)), key)
        data = (log if damage is None else damage) + footer

        self._pending.append((key, data, entry))
        if not self._holding:
            self._flush(topic, partition)
        return key

    def _flush(self, topic: str, partition: int) -> None:
        pending, self._pending = self._pending, []

        async def add(store: ObjectStore, opened: ManifestStore) -> None:
            await opened.claim(1, topic, {})
            for key, data, entry in pending:
                await store.put_segment(str(key), upload_of(data))
                await opened.commit(lambda manifest, entry=entry: manifest.add(entry))

        self._run(self._ids[topic], partition, add)

    def fill(
        self,
        topic: str,
        partition: int,
        segments: Sequence[Sequence[int]],
        *,
        base: int = 0,
        interval: int = 500,
        **options: int,
    ) -> list[SegmentKey]:
        """One segment for each list of batch sizes (records in each)."""
        keys = []
        self._holding = True
        for sizes in segments:
            made = []
            for size in sizes:
                made.append(batch(base, size, **options))
                base += size
            keys.append(self.append(topic, partition, made, interval=interval))
        self._holding = False
        self._flush(topic, partition)
        return keys

    def edit(self, topic: str, partition: int, edit: Any) -> Manifest:
        """Commit an edit of the manifest."""

        async def commit(store: ObjectStore, opened: ManifestStore) -> Manifest:
            await opened.claim(1, topic, {})
            return await opened.commit(edit)

        return self._run(self._ids[topic], partition, commit)

    def expire(self, topic: str, partition: int, log_start: int) -> None:
        """Retention: log start, objects, cursor, in this order."""
        self.edit(topic, partition, lambda manifest: manifest.set_log_start(log_start))

        async def finish(store: ObjectStore, opened: ManifestStore) -> None:
            await opened.claim(1, topic, {})
            dead = [segment async for segment in opened.segments() if segment.end_offset <= log_start]
            await store.delete([str(segment.key(self._ids[topic], partition)) for segment in dead])
            await opened.commit(lambda manifest: manifest.expire(dead))

        self._run(self._ids[topic], partition, finish)

    def segments(self, topic: str, partition: int) -> list[RemoteSegment]:
        async def all_of(store: ObjectStore, opened: ManifestStore) -> list[RemoteSegment]:
            await opened.load()
            return [segment async for segment in opened.segments()]

        return self._run(self._ids[topic], partition, all_of)

    def object_path(self, key: SegmentKey) -> Path:
        assert self.path is not None
        return self.path / str(key)

    def manifest_path(self, topic: str, partition: int) -> Path:
        assert self.path is not None
        return self.path / manifest_key(self._ids[topic], partition)

    def flip(self, key: SegmentKey, position: int, mask: int = 0x40) -> None:
        """One bit of the object, as rot does it."""
        path = self.object_path(key)
        data = bytearray(path.read_bytes())
        data[position] ^= mask
        path.write_bytes(data)

    # ── plumbing ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _with(self, topic_id: UUID, partition: int, use: Any) -> Any:
        async def with_store(_: ObjectStore, opened: ManifestStore) -> Any:
            return await use(opened)

        return self._run(topic_id, partition, with_store)

    def _run(self, topic_id: UUID, partition: int, use: Any) -> Any:
        async def run(store: ObjectStore) -> Any:
            opened = ManifestStore(store, topic_id, partition, self._rng, SystemClock(), **self._page_options)
            return await use(store, opened)

        return self._on_store(run)

    def _on_store(self, use: Any) -> Any:
        async def run() -> Any:
            workers = ThreadWorkers()
            store = open_store(
                parse_bucket_url(self.url),
                World(
                    PosixDisk(),
                    workers,
                    WorkerSyncs(workers),
                    SystemClock(),
                    self._rng,
                    TcpNet(),
                    late_effect=must_not_come,
                ),
            )
            try:
                return await use(store)
            finally:
                await store.close()
                workers.close()

        return asyncio.run(run())

    def _write_cluster(self) -> None:
        node = {"t": "node", "node_id": 1, "broker_epoch": 1, "directory_id": "d", "incarnation": "i", "boot_id": "b"}
        content = {
            "cluster_id": "eVGDrcSeSvinoZwBGM8ODg",
            "controller": {"node_id": 1, "incarnation": "i", "looks": 0},
            "page": None,
            "folded": 0,
            "records": [node | {"listeners": [], "rack": None, "active": True}, *self._records],
        }
        root = {"format_version": 2, "version": 1, "epoch": 1, "ring": [[1, "0" * 32]], "content": content}
        data = msgspec.json.encode(root, order="sorted")

        async def put(store: ObjectStore) -> None:
            from coldstore.object_store import ObjectMissing

            try:
                etag = (await store.get("cluster.json")).etag
            except ObjectMissing:
                etag = None
            await store.put_root("cluster.json", data, etag)

        self._on_store(put)
