"""One log of a data directory, on its disk: made, recovered, or recovered up to where it is sound.

Always true: what the directory's checkpoints say of the log is what opening it is measured against, and is made to fit
before a file of it changes. All functions block. Must not know who opens it, nor what else is open. Source: Kafka's
LogManager.loadLog.
"""

from __future__ import annotations

from contextlib import closing

from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_creation import Begin
from hotstore.recovery.restart import remove_proofs_above
from logformat.values import TopicPartition


def make_log(
    data_dir: DataDir, place: TopicPartition, topic_id: bytes, config: LogConfig, begin: Begin | None = None
) -> PartitionLog:
    """Blocking: a new, empty log. What checkpoints still say of an older one of that name is dropped first, durably:
    also what `mark_deleted` dropped from memory alone. The new log would be measured against it, and refused."""
    data_dir.checkpoints.forget(place)
    with data_dir.making(place.topic, place.partition, topic_id) as staged:
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
    """Blocking: an existing log, recovered; `all_is_read`: from the recovery point on, also after a clean stop. Raises
    DamagedLog, NewerFormat, OSError."""
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
    )


def recover_sound(
    data_dir: DataDir, place: TopicPartition, config: LogConfig, now_ms: int, topic_id: bytes, sound_end: int
) -> PartitionLog:
    """Blocking: a log that was refused for damage at `sound_end`, cut there: nothing above counts as durable any more.
    Raises DamagedLog where that is not all that is wrong, OSError."""
    with closing(data_dir.disk.open_dir(data_dir.log_path(place.topic, place.partition))) as directory:
        remove_proofs_above(directory, sound_end)
    data_dir.checkpoints.lower_recovery_point(place, sound_end)
    return recover_log(data_dir, place, config, now_ms, topic_id, all_is_read=True)
