"""Index files that a clean stop left of a segment which went on: beside new ones they hide no record of a time."""

from __future__ import annotations

import errno

import pytest

from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, flush, new_log, open_log, seal

CONFIG = LogConfig(index_interval_bytes=200, segment_bytes=1 << 20)
GREATEST_MS = 5000


def went_on(disk: CrashDisk) -> PartitionLog:
    """After a clean stop; a record of `GREATEST_MS`, and many older ones behind it. Rolled, flushed, not sealed yet."""
    directory, log = new_log(disk, CONFIG)
    for _ in range(10):
        append(log, batch(1, timestamp=100, size=100))
    directory.checkpoints.sample([log]).run()
    log.close(True)
    directory.mark_clean()
    directory.close()
    directory, log = open_log(disk, CONFIG)
    append(log, batch(1, timestamp=GREATEST_MS, size=100))
    for _ in range(20):
        append(log, batch(1, timestamp=50, size=100))
    log.roll()
    append(log, batch(1, timestamp=50))
    flush(log)
    directory.checkpoints.sample([log]).run()
    return log


def is_found(disk: CrashDisk) -> bool:
    _, log = open_log(disk, CONFIG)
    found = log.offset_for_timestamp(3000)
    return found is not None and log.sealed_segments()[0].max_timestamp_ms == GREATEST_MS


@pytest.mark.parametrize("suffix", [".index.tmp", ".timeindex.tmp"])
def test_a_seal_without_room_for_one_of_them(suffix: str) -> None:
    """New offsets beside times of before were believed: the greatest time was one of before, so retention could let
    records go that are not due."""
    disk = CrashDisk()
    log = went_on(disk)
    disk.inject("write", errno.ENOSPC, suffix)
    with pytest.raises(OSError, match="injected"):
        seal(log)
    assert is_found(disk.kill())


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_that_keeps_some_names_of_a_seal(seed: int) -> None:
    """Whenever it comes: a directory keeps any of the names that were not synced."""
    disk = CrashDisk()
    log = went_on(disk)
    cuts: list[CrashDisk] = []
    disk.on_effect = lambda kind, path: cuts.append(disk.crash(SeededRng(seed), 0.5))
    seal(log)
    disk.on_effect = None
    assert cuts and all(is_found(found) for found in cuts)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_in_a_seal_after_one_whose_names_were_not_synced(seed: int) -> None:
    """The times were written by the seal that failed, so the next one wrote only the offsets, and without a sync the
    name of the times could be lost beside them."""
    disk = CrashDisk()
    log = went_on(disk)
    disk.inject("sync_dir", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        seal(log)
    cuts: list[CrashDisk] = []
    disk.on_effect = lambda kind, path: cuts.append(disk.crash(SeededRng(seed), 0.5))
    seal(log)
    disk.on_effect = None
    assert cuts and all(is_found(found) for found in cuts)
