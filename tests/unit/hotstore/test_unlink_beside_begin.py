"""Expired segments are unlinked and a log begins elsewhere by two threads of one lane: one directory, one at a time."""

from __future__ import annotations

from hotstore.log_config import LogConfig
from logformat.leader_epochs import LeaderEpochs
from tests.support.crash_disk import CrashDisk
from tests.support.hotstore_kit import append, batch, flush, new_log, seal


def test_a_beginning_elsewhere_goes_on_where_an_unlink_took_files_that_it_listed() -> None:
    """FileNotFoundError: the replica was offline until its next role."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(index_interval_bytes=100, segment_bytes=1000))
    for _ in range(40):
        append(log, batch(1))
    flush(log)
    seal(log)
    log.delete_local_before(30)
    assert log.awaits_unlink
    list_dir, done = disk.list_dir, []

    def listed(path: str) -> list[str]:
        names = list_dir(path)
        if not done:
            done.append(path)
            log.unlink()  # the other thread of the lane, meanwhile
        return names

    disk.list_dir = listed  # type: ignore[method-assign]
    log.start_at(40, LeaderEpochs(), ())
    assert log.log_end_offset == 40
