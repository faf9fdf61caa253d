"""What a machine's disk holds of the run's partition, as the next process on it would find it."""

from __future__ import annotations

from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.recovery.log_loading import recover_log
from logformat.record_batch import walk
from logformat.records import iter_records
from logformat.values import TopicPartition
from tests.support.brokers.shared_bucket import NAME
from tests.support.disk.crash_disk import CrashDisk


def copy_of(disk: CrashDisk, now_ms: int) -> tuple[int, int, dict[int, bytes | None]]:
    """Where its files begin and end, and the values in them by offset. Raises what a start would be refused with."""
    directory = DataDir.open(disk, "/data/a")
    directory.remove_clean_marker()
    log = recover_log(directory, TopicPartition(NAME, 0), LogConfig(tiered=True), now_ms)
    found: dict[int, bytes | None] = {}
    for one in log.batch_ranges(log.local_log_start_offset, log.log_end_offset):
        data = bytearray(one.file.read_at(one.position, one.length))
        for at, header in walk(data):
            if not header.is_control:
                found.update((record.offset, record.value) for record in iter_records(data[at : at + header.size]))
    return log.local_log_start_offset, log.log_end_offset, found
