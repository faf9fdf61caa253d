"""Batches, logs and a driver for tests of the hot store, on a CrashDisk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from hotstore.errors import LogFailed
from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import Appended, PartitionLog
from hotstore.recovery.log_creation import Begin
from hotstore.recovery.log_loading import make_log, recover_log
from logformat.checkpoints import MetaProperties
from logformat.record_batch import INT64_MAX, BatchHeader, read_header, walk
from logformat.records import Record, encode_batch
from logformat.values import TopicPartition
from seams.files.disk import Disk
from seams.loop.workers import Lane
from tests.support.disk.crash_disk import CrashDisk

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TOPIC_ID = bytes(range(16))
DATA = "/data"
LOG_PATH = "/data/orders-0"
ORDERS = TopicPartition("orders", 0)
ORDERS = TopicPartition("orders", 0)
META = MetaProperties("Y2x1c3Rlci1pZC0xMjM0NQ", 1, "ZGlyZWN0b3J5LWlkLTEyMw")


def batch(
    count: int = 1,
    *,
    size: int = 20,
    timestamp: int = 1_000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    fill: bytes = b"x",
) -> bytearray:
    """A batch as a producer sends it: `count` records of `size` bytes, timestamps growing by 1 ms."""
    records = [Record(index, timestamp + index, None, fill * size) for index in range(count)]
    return bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def append(log: PartitionLog, data: bytearray, leader_epoch: int = 0, now_ms: int = 10_000) -> Appended:
    return log.append_as_leader(*batches_of(data), leader_epoch, now_ms)


def copied(log: PartitionLog, batches: list[bytes], now_ms: int = 10_000) -> None:
    """Append batches of another log as its follower does."""
    log.append_as_follower(batches, headers_of(batches), now_ms)


def batches_of(data: bytearray) -> tuple[list[memoryview], list[BatchHeader]]:
    """Views of the batches in `data`, and their headers."""
    walked = list(walk(data))
    return [memoryview(data)[at : at + header.size] for at, header in walked], [header for _, header in walked]


def flush(log: PartitionLog) -> int:
    """One sync, as the flusher does it; the flushed end."""
    job = log.durability.begin_sync(log.active_segment, log.log_end_offset)
    if job is not None:
        try:
            job.run()
        except OSError as error:
            raise log.fail(error) from error
        log.durability.finish_sync(job)
    return log.flushed_end_offset


def seal(log: PartitionLog) -> None:
    """The small files of sealed segments, as the flusher writes them."""
    job = log.durability.begin_seal(log.epochs)
    if job is not None:
        job.run()
        log.durability.finish_seal(job, log.epochs)


def read_all(log: PartitionLog, start: int, *, max_bytes: int = 1 << 20, limit: int | None = None) -> list[bytes]:
    """Whole batches from `start` to `limit` (the log's end), fetched in steps of `max_bytes`."""
    limit = log.log_end_offset if limit is None else limit
    batches: list[bytes] = []
    while (piece := log.read(start, max_bytes, limit, min_one=True)) is not None:
        data = piece.file.read_at(piece.position, piece.length)
        assert piece.length > 0
        end = 0
        for position, header in walk(data):
            batches.append(data[position : position + header.size])
            start = header.next_offset
            end = position + header.size
        assert end == len(data), "a slice ends where a batch ends"
    return batches


def headers_of(batches: list[bytes]) -> list[BatchHeader]:
    return [read_header(data) for data in batches]


def new_log(disk: Disk, config: LogConfig, start_offset: int = 0) -> tuple[DataDir, PartitionLog]:
    """A formatted data directory with the log `orders-0`."""
    directory = DataDir.open(disk, DATA)
    directory.format(META)
    small_steps_ahead(directory)
    return directory, make_log(directory, ORDERS, TOPIC_ID, config, Begin(start_offset))


def open_log(disk: Disk, config: LogConfig, now_ms: int = 10_000) -> tuple[DataDir, PartitionLog]:
    directory = DataDir.open(disk, DATA)
    directory.remove_clean_marker()
    small_steps_ahead(directory)
    return directory, recover_log(directory, ORDERS, config, now_ms, TOPIC_ID)


def small_steps_ahead(directory: DataDir) -> None:
    """Logs take room ahead of what they write in steps that fit the small segments of tests."""
    directory.ballast.preallocation.unit_bytes = 128
    directory.ballast.preallocation.budget_bytes = 1 << 20


class SteppedWorkers:
    """`Workers` that run a call only when the test says so (`step`), or at once with `immediate`."""

    def __init__(self, *, immediate: bool = False) -> None:
        self.immediate = immediate
        self.lanes: list[Lane] = []
        self._waiting: list[asyncio.Event] = []

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        self.lanes.append(lane)
        if self.immediate:
            await asyncio.sleep(0)
        else:
            gate = asyncio.Event()
            self._waiting.append(gate)
            await gate.wait()
        return function(*args)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def step(self) -> None:
        """Let the oldest waiting call run, and the loop settle."""
        self._waiting.pop(0).set()
        await settle()


class RecordingOwner:
    """A log's owner that remembers what it was told; `awaits`: what it answers."""

    def __init__(self, *, awaits: bool = True) -> None:
        self.awaits = awaits
        self.told_flushed: list[int] = []
        self.told_failed: list[LogFailed] = []
        self.starts_moved = 0
        self.cleanable = 0
        self.all_clean_end = INT64_MAX
        self.in_bucket = False

    def flushed(self, stable_end: int) -> None:
        self.told_flushed.append(stable_end)

    def failed(self, why: LogFailed) -> None:
        self.told_failed.append(why)

    def awaits_flush(self) -> bool:
        return self.awaits

    def start_moved(self) -> None:
        self.starts_moved += 1

    def cleaned(self) -> None:
        pass

    def cleanable_end(self) -> int:
        return self.cleanable

    def tombstones_end(self) -> int:
        return self.all_clean_end

    def is_in_bucket(self) -> bool:
        return self.in_bucket


async def settle() -> None:
    """Let whatever can run on the loop run."""
    for _ in range(10):
        await asyncio.sleep(0)


__all__ = [
    "DATA",
    "LOG_PATH",
    "META",
    "ORDERS",
    "TOPIC_ID",
    "CrashDisk",
    "LogFailed",
    "RecordingOwner",
    "SteppedWorkers",
    "append",
    "batch",
    "copied",
    "flush",
    "headers_of",
    "new_log",
    "open_log",
    "read_all",
    "seal",
    "settle",
]
