"""A power cut before every single effect of a produce-roll-expire-truncate-restart scenario (fault D4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_loading import make_log
from logformat.leader_epochs import LeaderEpochs
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    DATA,
    META,
    ORDERS,
    TOPIC_ID,
    append,
    batch,
    flush,
    headers_of,
    open_log,
    read_all,
    seal,
    small_steps_ahead,
)
from tests.support.disk.power_cut import PowerCut, cut_before

SYNC = LogConfig(segment_bytes=600, index_interval_bytes=100, tiered=True)
KEEPS = (0.0, 0.5, 1.0)


@dataclass
class Promise:
    """What must be found again: batches up to `end`, from `start` on; or an empty log at one of `restarts`."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    start: int = 0
    restarts: list[int] = field(default_factory=list)

    def appended(self, data: bytearray) -> None:
        self.batches.append(bytes(data))

    def kept(self, log: PartitionLog) -> None:
        """Compare a reopened log with the promise."""
        start, end = log.local_log_start_offset, log.log_end_offset
        if start == end and start in self.restarts:
            return
        assert start <= max(self.start, 0) and end >= self.end, (start, end, self)
        headers = headers_of(self.batches)
        inside = [
            data
            for data, header in zip(self.batches, headers, strict=True)
            if start <= header.base_offset and header.next_offset <= end
        ]
        assert read_all(log, start, max_bytes=300) == inside


def scenario(disk: CrashDisk, promise: Promise) -> None:
    """Everything that changes files, in the order a broker does it; `promise` is raised after each acknowledgement."""
    directory = DataDir.open(disk, DATA)
    directory.format(META)
    small_steps_ahead(directory)
    log = make_log(directory, ORDERS, TOPIC_ID, SYNC)
    sequence = 0
    for step in range(12):
        data = batch(2, size=60, timestamp=step * 1000, producer_id=5, epoch=0, sequence=sequence)
        append(log, data, leader_epoch=step // 5, now_ms=step)
        sequence += 2
        promise.appended(data)
        if step % 2:
            promise.end = flush(log)
        if step % 4 == 3:
            seal(log)
            directory.checkpoints.sample([log]).run()
    log.delete_local_before(8)
    promise.start = log.local_log_start_offset
    log.unlink()
    log.advance_log_start(12)
    promise.start = 12
    directory.checkpoints.sample([log]).run()
    _less(directory, log, promise)


def _less(directory: DataDir, log: PartitionLog, promise: Promise) -> None:
    promise.end = 18
    directory.checkpoints.lower_recovery_point(ORDERS, 18)
    log.truncate_to(18, 99)
    promise.batches = promise.batches[:9]
    data = batch(3, size=60)
    append(log, data, leader_epoch=4, now_ms=100)
    promise.appended(data)
    promise.end = flush(log)
    promise.restarts = [40]
    log.start_at(40, LeaderEpochs().assign(4, 0), ())
    promise.batches, promise.start, promise.end = [], 40, 40
    directory.checkpoints.sample([log]).run()
    data = batch(1, size=60)
    append(log, data, leader_epoch=5, now_ms=200)
    promise.appended(data)
    promise.end = log.log_end_offset if flush(log) else 0
    promise.restarts = []
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()


def reopen(disk: CrashDisk, promise: Promise) -> PartitionLog | None:
    """The log after a cut; None when it was not created yet, and nothing was promised."""
    if disk.stat(f"{DATA}/orders-0") is None:
        assert promise.end == 0
        return None
    _, log = open_log(disk, SYNC)
    return log


def effects() -> int:
    disk = CrashDisk()
    scenario(disk, Promise())
    return sum(count for kind, count in disk.hits.items() if not kind.startswith("fault"))


def cuts() -> Iterator[tuple[int, float]]:
    for number in range(1, effects() + 2):
        for keep in KEEPS:
            yield number, keep


def test_the_scenario_is_worth_cutting() -> None:
    """It makes more than two hundred effects of every kind the disk knows for files."""
    disk = CrashDisk()
    scenario(disk, Promise())
    assert effects() > 200
    assert {"write", "sync", "create", "rename", "unlink", "truncate", "sync_dir", "mkdir"} <= set(disk.hits)


def test_power_cut_before_every_effect_keeps_every_promise() -> None:
    """Nothing acknowledged is lost, whatever subset of unsynced pieces and names survives; twice recovered is once."""
    for number, keep in cuts():
        disk, promise = CrashDisk(), Promise()
        disk.on_effect = cut_before(number, disk)
        with contextlib.suppress(PowerCut):
            scenario(disk, promise)
        after = disk.crash(SeededRng(number), keep)
        log = reopen(after, promise)
        if log is None:
            continue
        promise.kept(log)
        again = reopen(after.crash(SeededRng(number + 1), 0.0), promise)
        assert again is not None
        assert (again.log_end_offset, again.epochs) == (log.log_end_offset, log.epochs), (number, keep)


def test_kill_before_every_effect_and_then_the_power_goes() -> None:
    """What a process recovered after a kill is durable, although the killed one had not synced it."""
    for number in range(1, effects() + 2):
        disk, promise = CrashDisk(), Promise()
        disk.on_effect = cut_before(number, disk)
        with contextlib.suppress(PowerCut):
            scenario(disk, promise)
        after = disk.kill()
        log = reopen(after, promise)
        if log is None:
            continue
        promise.kept(log)
        again = reopen(after.crash(SeededRng(number), 0.0), promise)
        assert again is not None
        assert (again.log_end_offset, again.epochs) == (log.log_end_offset, log.epochs), number


@pytest.mark.parametrize("number", [30, 75, 120, 160, 185, 200])
def test_power_cut_during_every_effect_of_the_recovery(number: int) -> None:
    """Recovery is cut itself, before each of its effects, and the next one still keeps the promise (fault C1)."""
    disk, promise = CrashDisk(), Promise()
    disk.on_effect = cut_before(number, disk)
    with pytest.raises(PowerCut):
        scenario(disk, promise)
    for inner in range(1, 60):
        first = disk.crash(SeededRng(number), 0.5)
        first.on_effect = cut_before(inner, first)
        with contextlib.suppress(PowerCut):
            reopen(first, promise)
        log = reopen(first.crash(SeededRng(inner), 0.5), promise)
        if log is not None:
            promise.kept(log)
