"""Creation and recovery of one log of a data directory with its checkpoints (Kafka's LogManager.loadLog).

Recovery compares a log with its checkpoints. The checkpoints are changed before the log's files. All functions block.
"""

from __future__ import annotations

from contextlib import closing

from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_creation import Begin
from hotstore.recovery.truncation import remove_proofs_above
from logformat.values import TopicPartition


def make_log(
    data_dir: DataDir, place: TopicPartition, topic_id: bytes, config: LogConfig, begin: Begin | None = None
) -> PartitionLog:
    """Create a new, empty log. Blocking. Checkpoints of an older log of that name are first removed durably
    (`mark_deleted` removes them only in memory). Otherwise recovery would compare the new log with them and refuse
    it."""
    data_dir.checkpoints.forget(place)
    with data_dir.staged_path(place.topic, place.partition, topic_id) as staged:
        return PartitionLog.create(
            data_dir.disk,
            data_dir.log_path(place.topic, place.partition),
            place.topic,
            place.partition,
            topic_id,
            config,
            begin=begin,
            staged=staged,
            cache=data_dir.indexes,
            ballast=data_dir.ballast,
        )


def recover_log(
    data_dir: DataDir,
    place: TopicPartition,
    config: LogConfig,
    now_ms: int,
    topic_id: bytes | None = None,
    *,
    all_is_read: bool = False,
) -> PartitionLog:
    """Recover an existing log. Blocking. With `all_is_read` every batch from the recovery point on is read, even after
    a clean stop. Raises DamagedLog, NewerFormat, OSError."""
    return PartitionLog.open(
        data_dir.disk,
        data_dir.log_path(place.topic, place.partition),
        place.topic,
        place.partition,
        config,
        recovery_point=data_dir.checkpoints.recovery_point(place),
        log_start=data_dir.checkpoints.log_start(place),
        clean=data_dir.was_clean and not all_is_read,
        now_ms=now_ms,
        topic_id=topic_id,
        cache=data_dir.indexes,
        ballast=data_dir.ballast,
        high_watermark=data_dir.checkpoints.high_watermark(place),
    )


def recover_sound(
    data_dir: DataDir, place: TopicPartition, config: LogConfig, now_ms: int, topic_id: bytes, sound_end: int
) -> PartitionLog:
    """Recover a log that is damaged at `sound_end`. Blocking. The log is truncated there, and records above it do not
    count as durable any more. Raises DamagedLog if there is other damage, OSError."""
    with closing(data_dir.disk.open_dir(data_dir.log_path(place.topic, place.partition))) as directory:
        remove_proofs_above(directory, sound_end)
    data_dir.checkpoints.lower_recovery_point(place, sound_end)
    return recover_log(data_dir, place, config, now_ms, topic_id, all_is_read=True)
