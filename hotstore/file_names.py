"""Names of files in a log directory, and of directories in a data directory (Kafka's LogFileUtils, UnifiedLog).

A name that this module does not recognise is never opened or deleted. Offsets have 20 digits, so names sort as offsets.
"""

from __future__ import annotations

import re
from typing import Final

from logformat.record_batch import INT32_MAX, INT64_MAX
from logformat.values import TopicPartition, is_topic_name

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
PRODUCERS: Final = ".producers"
"""A file beside each `.snapshot` that Kafka does not have. It holds the last five batches of every producer. Its
presence also proves that everything below its offset was durable when it was written (see recovery)."""
STAGED_PRODUCERS: Final = ".restart-producers"
"""Producers of a prepared restart, as an earlier version wrote them (see restart)."""
DELETED: Final = ".deleted"
TEMPORARY: Final = ".tmp"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
EPOCHS_FILE: Final = "leader-epoch-checkpoint"
LOCK_FILE: Final = ".lock"
CHECKPOINTS_LOCK_FILE: Final = ".checkpoints.lock"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
INCARNATIONS_FILE: Final = "thermocline-incarnations"

SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
OFFSET_SUFFIXES: Final = (*SEGMENT_SUFFIXES, SNAPSHOT, PRODUCERS)
NAME_CHARS_MAX: Final = 255

_OFFSET_NAME: Final = re.compile(r"([0-9]{20})(\.[a-z]+)")
_RESTART_NAME: Final = re.compile(r"[0-9]{20}\.restart(-producers)?")
_PARTITION_DIR: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})")
_DELETED_DIR: Final = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
_STRAY_DIR: Final = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-stray")


def offset_file(offset: int, suffix: str) -> str:
    """The name of a file for an offset, for example `00000000000000000042.log`."""
    return f"{offset:020d}{suffix}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """Offset and suffix of a file that is named by an offset. None for any other name."""
    match = _OFFSET_NAME.fullmatch(name)
    if match is None or match[2] not in OFFSET_SUFFIXES or int(match[1]) > INT64_MAX:
        return None
    return int(match[1]), match[2]


def is_leftover(name: str) -> bool:
    """Whether a start may remove `name`: the rest of an interrupted write or deletion, by this program or Kafka."""
    for suffix in (DELETED, TEMPORARY, CLEANED):
        if name.endswith(suffix):
            inner = name.removesuffix(suffix)
            return _RESTART_NAME.fullmatch(inner) is not None or _is_ours(inner)
    return name.endswith(STAGED_PRODUCERS) and _RESTART_NAME.fullmatch(name) is not None


def _is_ours(name: str) -> bool:
    return parse_offset_file(name) is not None or name in (EPOCHS_FILE, "partition.metadata")


def swap_base(name: str) -> int | None:
    """Base offset of a cleaned segment that replaces others (`.log.swap`). None for any other name."""
    place = parse_offset_file(name.removesuffix(SWAP)) if name.endswith(SWAP) else None
    return place[0] if place is not None and place[1] == LOG else None


def partition_dir(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The topic-partition of a log directory. None for any other name, and for deleted logs."""
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or not is_topic_name(match[1]) or int(match[2]) > INT32_MAX or is_deleted_dir(name):
        return None
    return TopicPartition(match[1], int(match[2]))


def deleted_dir(topic: str, partition: int, unique: str) -> str:
    """Directory name of a deleted log until it is removed. `unique`: 32 hex digits. Long topic names are shortened."""
    tail = f"-{partition}.{unique}-delete"
    return topic[: NAME_CHARS_MAX - len(tail)] + tail


def stray_dir(topic: str, partition: int, unique: str) -> str:
    """Directory name of a stray log, as in Kafka."""
    tail = f"-{partition}.{unique}-stray"
    return topic[: NAME_CHARS_MAX - len(tail)] + tail


def is_stray_dir(name: str) -> bool:
    return _STRAY_DIR.fullmatch(name) is not None


def is_deleted_dir(name: str) -> bool:
    return _DELETED_DIR.fullmatch(name) is not None
