"""A check of offsets that was asked for before a cut says nothing of what lies there after it."""

from __future__ import annotations

import contextlib

from hotstore.errors import DamagedLog
from hotstore.log.log_config import LogConfig
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, flush, new_log, open_log, seal

CONFIG = LogConfig(index_interval_bytes=100, segment_bytes=1000)


def test_a_check_that_was_queued_before_a_cut_finds_no_damage_in_what_was_appended_since() -> None:
    """The sound end stayed −1 for good, and an unclean election preferred a replica with less."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    for _ in range(20):
        append(log, batch(1))
    flush(log)
    seal(log)
    log.close(True)
    directory.close()
    directory, log = open_log(disk, CONFIG)
    found = log.read(2, 1 << 20, log.log_end_offset, min_one=True)  # a replica's fetch reads to the log's end
    assert found is not None and not log.is_checked(found)
    log.truncate_to(6, 10_000)  # leadership went; the tail was nobody else's
    for _ in range(30):
        append(log, batch(1), leader_epoch=3)
    flush(log)
    with contextlib.suppress(DamagedLog):  # it may refuse to say anything
        log.check(found)
    assert log.sound_end_offset == log.log_end_offset
