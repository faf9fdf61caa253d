"""An append that failed leaves the caller's bytes as they came: Produce checks and appends them again."""

from __future__ import annotations

import errno

import pytest

from hotstore.errors import LogFull
from hotstore.log_config import LogConfig
from logformat.record_batch import check_batch
from tests.support.crash_disk import CrashDisk
from tests.support.hotstore_kit import append, batch, new_log


@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_batch_refused_for_a_full_disk_can_be_appended_again(log_append_time: bool) -> None:
    """LogAppendTime is stamped into the batch before the write; sent twice with that bit it would be refused as the
    producer's fault, with an error no client tries again after."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(log_append_time=log_append_time))
    data = batch(3)
    for _ in range(2):
        disk.inject("write", errno.ENOSPC, ".log")
        check_batch(memoryview(data), 0, len(data))
        with pytest.raises(LogFull):
            append(log, data)
    check_batch(memoryview(data), 0, len(data))
    assert append(log, data).last_offset == 2
