"""Lives of a broker's tiering on a disk that forgets and a bucket in memory, for tests.

A `House` is what outlives a process: disk, bucket, boot id. A `Life` is one process: it opens partitions through
`TierService` as the broker does, and ends cleanly, by kill, or by power cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID

from msgspec.structs import replace

from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.keys import manifest_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import ObjectStore
from hotstore.cleaning.engine import LocalEngine
from hotstore.flush.flusher import Flusher
from hotstore.host.data_dir import DataDir
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Retryable
from logformat.record_batch import walk
from logformat.records import Record, encode_batch, iter_records
from logformat.values import TopicPartition
from seams.files.syncs import WorkerSyncs
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from seams.world import World
from tests.support.brokers.machine import Machine
from tests.support.disk.hotstore_kit import batches_of
from tests.support.disk.late import must_not_come
from tests.support.fast_loop import FastClock
from tests.support.workers import LoopWorkers
from tiering.opening.read_ahead import ReadAhead
from tiering.partition_tier import PartitionTier
from tiering.service import TierService
from tiering.tier_config import Lead, TierConfig, TierLimits

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TOPIC = "orders"
TOPIC_ID = UUID("0190a8c0-0000-7000-8000-0000000000aa")
DATA = "/data"
BLOCK = 1000

LIMITS = TierLimits(
    copy_backoff_ms=100,
    copy_backoff_ms_max=1000,
    interval_ms_max=1000,
    retention_check_interval_ms=1000,
    gc_grace_ms=5000,
    reservation_offsets=BLOCK,
    store_timeout_s=10.0,
    upload_timeout_s=20.0,
    verify_by_head=True,
    one_pass=True,
    local_bytes_max=1 << 40,
)
LOG = LogConfig(segment_bytes=2000, tiered=True, local_retention_ms=-1, retention_ms=-1)
TIER = TierConfig(
    enabled=True,
    internal=False,
    copy_disable=False,
    retention_ms=-1,
    retention_bytes=-1,
    local_retention_ms=-1,
    local_retention_bytes=-1,
    seal_ms=3_600_000,
    compacts=False,
    min_compaction_lag_ms=0,
    delete_retention_ms=86_400_000,
    topic=TOPIC,
    configs={"remote.storage.enable": "true"},
)


class Opened(NamedTuple):
    """A partition that is led."""

    open_log: OpenLog
    tier: PartitionTier

    @property
    def log(self) -> PartitionLog:
        return self.open_log.log

    @property
    def flusher(self) -> Flusher:
        return self.open_log.flusher

    @property
    def lost(self) -> tuple[int, int] | None:
        return self.tier.lost


class BootClock(FastClock):
    """The fast loop's clock in one run of the machine."""

    def __init__(self, boot: str) -> None:
        self.boot = boot

    def boot_id(self) -> str:
        return self.boot


class House(Machine):
    """Disk and bucket across lives. `lives` counts starts: each is a new leader epoch."""

    def __init__(self, store: ObjectStore | None = None, seed: int | str = 1) -> None:
        super().__init__(seed)
        self.store: ObjectStore = store or self.memory
        self.rng = SeededRng(seed)
        self.failures: list[tuple[str, BaseException]] = []
        self.fenced: list[str] = []

    async def start(
        self,
        *,
        epoch: int | None = None,
        limits: TierLimits = LIMITS,
        store: ObjectStore | None = None,
        ahead: ReadAhead | None = None,
    ) -> Life:
        self.lives += 1
        return await Life.begin(self, self.lives if epoch is None else epoch, limits, store or self.store, ahead)

    def world(self) -> World:
        """A process's."""
        workers: Any = LoopWorkers()
        net: Any = None
        clock = BootClock(self.boot)
        return World(self.disk, workers, WorkerSyncs(workers), clock, self.rng, net, late_effect=must_not_come)

    async def manifest(self, partition: int = 0) -> Manifest:
        """The root as the bucket has it now."""
        found = await ManifestStore(self.memory, TOPIC_ID, partition, self.rng, FastClock()).load()
        assert found is not None
        return found

    def objects(self, kind: str = "segments", partition: int = 0) -> list[str]:
        root = manifest_key(TOPIC_ID, partition)
        return sorted(key for key in self.memory.objects if f"/{partition}/{kind}/" in key and key != root)


class Life:
    """One process. Made by `House.start`."""

    def __init__(self, house: House, epoch: int, limits: TierLimits, world: World, data_dir: DataDir) -> None:
        self.house = house
        self.epoch = epoch
        self.world = world
        self.data_dir = data_dir
        self.logs = LogHost(data_dir, world, lambda name, failure: house.failures.append((name, failure)))
        self.tasks = Tasks(lambda name, failure: house.failures.append((name, failure)))
        self.limits = limits
        self.service: TierService = None  # type: ignore[assignment]
        self.opened: dict[int, Opened] = {}

    @classmethod
    async def begin(
        cls, house: House, epoch: int, limits: TierLimits, store: ObjectStore, ahead: ReadAhead | None
    ) -> Life:
        world = house.world()
        data_dir = DataDir.open(house.disk, DATA)
        data_dir.remove_clean_marker()
        life = cls(house, epoch, limits, world, data_dir)
        life.service = TierService(
            store,
            world,
            life.logs,
            life.tasks,
            limits,
            report=lambda name, failure: house.failures.append((name, failure)),
            is_fresh=lambda: True,
            is_complete=lambda: True,
            ahead=ahead or ReadAhead(store, world, limits.store_timeout_s),
            engine=LocalEngine(SeededRng(epoch)),
        )
        await life.service.start()
        return life

    async def open(
        self,
        *,
        new: bool = False,
        partition: int = 0,
        log: LogConfig = LOG,
        tier: TierConfig = TIER,
        topic_id: UUID = TOPIC_ID,
        is_alone: bool = True,
    ) -> Opened:
        """Opened and led, as the broker does it: what waits for the bucket stays open, what failed is closed."""
        lead = Lead(self.epoch, tier, self.house.fenced.append, new, is_alone=is_alone)
        place, config = TopicPartition(TOPIC, partition), replace(log, tiered=tier.enabled)
        open_log = await self.service.open_log(place, topic_id, config, lead)
        lease = self.logs.lend(open_log, f"leader epoch {self.epoch}")
        try:
            opened = Opened(open_log, await self.service.attach(lease, lead))
        except BaseException as refused:
            lease.end()
            if not isinstance(refused, Retryable):
                await self.logs.close(open_log, clean=False)
                self.service.forget(topic_id, partition)
            raise
        self.opened[partition] = opened
        return opened

    def append(
        self,
        count: int = 1,
        *,
        size: int = 100,
        partition: int = 0,
        timestamp: int | None = None,
        sequence: int = -1,
    ) -> int:
        """One batch of `count` records (of producer 7 with a `sequence`); its first offset. Values name epoch and
        offset. Tells the tier about a roll, as the broker does."""
        opened = self.opened[partition]
        now_ms = self.world.clock.wall_ms()
        stamp = now_ms if timestamp is None else timestamp
        base = opened.log.log_end_offset
        records = [
            Record(i, stamp, None, b"%d/%08d" % (self.house.lives, base + i) + b"x" * size) for i in range(count)
        ]
        producer_id, producer_epoch = (7, 0) if sequence >= 0 else (-1, -1)
        data = bytearray(
            encode_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)
        )
        return self._append(opened, data, now_ms)

    def put(self, *records: tuple[bytes, bytes | None], partition: int = 0, timestamp: int | None = None) -> int:
        """One batch of keyed records; its first offset. None: a tombstone. Rolls as `append` does."""
        opened = self.opened[partition]
        now_ms = self.world.clock.wall_ms()
        stamp = now_ms if timestamp is None else timestamp
        data = bytearray(encode_batch([Record(at, stamp, key, value) for at, (key, value) in enumerate(records)]))
        return self._append(opened, data, now_ms)

    def _append(self, opened: Opened, data: bytearray, now_ms: int) -> int:
        appended = opened.log.append_as_leader(*batches_of(data), self.epoch, now_ms)
        opened.flusher.request()
        if appended.last_offset >= opened.tier.reserve_at:
            opened.tier.reserve_soon()
        if appended.base_offset == opened.log.active_info().base_offset:
            opened.tier.rolled()
        return appended.base_offset

    async def fill(self, batches: int, *, partition: int = 0, count: int = 1, size: int = 100) -> int:
        """Append and flush; the log's end."""
        for _ in range(batches):
            self.append(count, size=size, partition=partition)
        await self.opened[partition].flusher.flush()
        return self.opened[partition].log.log_end_offset

    async def detach(self, partition: int = 0) -> None:
        """Its leader epoch is over; the log stays open."""
        opened = self.opened[partition]
        lease = opened.tier.partition_state.lease
        lease.end()
        await self.service.detach(opened.tier, give_back=False)
        await lease.returned()

    async def stop(self, *, seal: bool = False) -> None:
        """A clean stop, in the broker's order."""
        if seal:
            await self.service.seal_all(None)
        for opened in self.opened.values():
            await opened.flusher.flush()
            await self.service.detach(opened.tier, give_back=True)
            await opened.flusher.close()
            opened.log.close(True)
        self.data_dir.checkpoints.sample([opened.log for opened in self.opened.values()]).run()
        self.data_dir.mark_clean()
        await self._end()

    async def kill(self) -> None:
        """SIGKILL: nothing more happens; the page cache survives."""
        await self._end()
        self.house.kill()

    async def power_cut(self, keep: float = 0.0) -> None:
        await self._end()
        self.house.power_cut(keep)

    async def lose_disk(self) -> None:
        await self._end()
        self.house.lose_disk()

    async def _end(self) -> None:
        await self.service.close()
        await self.tasks.close()
        for opened in self.opened.values():
            await opened.flusher.close()
        self.data_dir.close()


def records_in(data: bytes) -> dict[int, bytes]:
    """Offset → value of every data record in a run of whole batches."""
    found: dict[int, bytes] = {}
    for position, header in walk(data):
        if not header.is_control:
            for record in iter_records(data[position : position + header.size]):
                assert record.value is not None
                found[record.offset] = record.value
    return found


async def read_everything(house: House, opened: Opened, partition: int = 0) -> dict[int, bytes]:
    """What readers can get: every record from the log start on, cold below the local start, checked to have no hole.

    Cold bytes come from the bucket's objects, the way any reader finds them: root, pages, segments.
    """
    log, tier = opened.log, opened.tier
    start = max(log.log_start_offset, tier.log_start_offset)
    local = log.local_log_start_offset
    data = b""
    if start < local:
        view = await BucketInspector(house.memory, LoopWorkers()).view(TOPIC_ID, partition)
        assert view is not None
        for segment in view.live:
            if segment.end_offset > start and segment.base_offset < local:
                data += house.memory.objects[str(view.key(segment))].data[: segment.log_bytes]
    data += local_bytes(log, max(start, local), log.log_end_offset)
    expected = None
    for _, header in walk(data):
        if header.next_offset <= start or (expected is not None and header.next_offset <= expected):
            continue  # a straddling batch, or one that both tiers hold
        if expected is not None:
            assert header.base_offset == expected, (header.base_offset, expected)
        else:
            assert header.base_offset <= start
        expected = header.next_offset
    assert expected == log.log_end_offset or (expected is None and start == log.log_end_offset)
    return {offset: value for offset, value in records_in(data).items() if offset >= start}


async def settle(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Let (virtual) time pass until `condition` holds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def local_bytes(log: PartitionLog, start: int, end: int) -> bytes:
    """The log's bytes of [start, end) as they lie on disk."""
    return b"".join(r.file.read_at(r.position, r.length) for r in log.batch_ranges(start, end))


def cold_bytes(house: House, manifest: Manifest) -> bytes:
    """The log bytes of every object the manifest's tail names, in order."""
    parts = []
    for segment in manifest.tail:
        key = str(segment.key(manifest.topic_id, manifest.partition))
        parts.append(house.memory.objects[key].data[: segment.log_bytes])
    return b"".join(parts)
