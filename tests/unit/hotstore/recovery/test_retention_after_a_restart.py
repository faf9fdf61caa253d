"""Local retention by time after a restart, for segments without a timestamp: fillers of compaction, declared gaps."""

from __future__ import annotations

from msgspec.structs import replace

from hotstore.log.local_retention import expirable
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.gap import gap_batches
from logformat.record_batch import NO_TIMESTAMP
from seams.files.disk import Disk
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, flush, new_log, seal
from tests.unit.hotstore.cleaning.test_log_cleaner import CONFIG, Scene

HOUR_MS = 3_600_000


def expired(log: PartitionLog, now_ms: int) -> int:
    """Where the local log may begin."""
    return expirable(log.sealed_segments(), 0, log.log_end_offset, now_ms, log.config).offset


def opened_again(disk: Disk, log: PartitionLog, now_ms: int, *, clean: bool = True) -> PartitionLog:
    return PartitionLog.open(
        disk,
        log.path,
        log.topic,
        log.partition,
        log.config,
        recovery_point=log.recovery_point if clean else 0,
        log_start=0,
        clean=clean,
        now_ms=now_ms,
    )


async def test_fillers_hold_no_expired_segment_back_after_a_restart() -> None:
    """Regression: a segment of which compaction left only fillers counted as written at the restart. Retention by time
    stopped there, so a topic that was restarted more often than retention.ms kept its records for ever."""
    scene = Scene()
    lease = await scene.lent(config=replace(CONFIG, retention_ms=HOUR_MS))
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(120)])
    assert await scene.clean()
    log, now_ms = lease.log, scene.clock.wall_ms() + 2 * HOUR_MS
    assert log.sealed_segments()[0].max_timestamp_ms == NO_TIMESTAMP
    assert expired(log, now_ms) == log.active_segment.base_offset
    for clean in (True, False):
        again = opened_again(scene.disk, log, now_ms, clean=clean)
        assert expired(again, now_ms) == log.active_segment.base_offset
        assert expired(again, now_ms - 2 * HOUR_MS) == 0


def test_a_declared_gap_holds_no_expired_segment_back_after_a_restart() -> None:
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=HOUR_MS))
    for gap in gap_batches(0, 100, 0):
        log.append_gap(gap, 1_000)
    log.roll()
    for _ in range(2):
        append(log, batch(size=150))
    flush(log)
    seal(log)
    now_ms = 2 * HOUR_MS
    assert expired(opened_again(disk, log, now_ms), now_ms) == log.active_segment.base_offset > 100


def test_records_without_timestamps_stay_for_retention_ms_after_a_restart() -> None:
    """They may be younger than the records after them claim to be."""
    disk = CrashDisk()
    config = LogConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=HOUR_MS)
    _, log = new_log(disk, config)
    for timestamp in (NO_TIMESTAMP, 1_000, 1_000):
        append(log, batch(size=150, timestamp=timestamp))
    flush(log)
    seal(log)
    now_ms = 2 * HOUR_MS
    assert expired(opened_again(disk, log, now_ms), now_ms) == 0
