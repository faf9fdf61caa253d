"""Reservation of offsets: a block reserved in the root, and the broker's copy of it on disk.

An offset is assigned only if it is below an end that was committed to the root and, if there is a local copy, is
durable there. Without a copy the next start reads the root first. A clean stop lowers the copy before the root. No
offset below the root's reserved end is thus ever assigned to two records, after any loss (C6, C7). Line 1 of the file
`thermocline-reservation` is the version `0`. Each further line is a `name value`: `topic_id`, `partition`,
`reserved_end`, `flush` (sync or os), `boot` (boot id of the machine run that wrote it), and `crc` over all lines
before.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from crc32c import crc32c

from seams.files.disk import Directory, read_in, replace_in

RESERVATION_FILE: Final = "thermocline-reservation"
HOUR_MS: Final = 3_600_000
SAMPLE_MS: Final = 300_000  # twelve samples an hour
_BYTES_MAX: Final = 4096
_NAMES: Final = ("topic_id", "partition", "reserved_end", "flush", "boot")


class ReportedEnd(NamedTuple):
    """The reserved end that a leader reported last, in this process. The log may use it when it leads next, because
    every offset assigned meanwhile is committed here too or was shown to no client (R21). A later report replaces an
    earlier one, even if it is lower. `broker_epoch`: the session of the report; in another session the log start is not
    known (D66).
    """

    reserved_end: int
    broker_epoch: int


class LocalReservation(msgspec.Struct, frozen=True):
    """The broker's copy. `flush_sync`: every acknowledged record below `reserved_end` was flushed. `boot_id`: the boot
    id of the machine when it was written."""

    topic_id: UUID
    partition: int
    reserved_end: int
    flush_sync: bool
    boot_id: str

    def covers_tail(self, *, boot_id: str, clean: bool) -> bool:
        """Whether the local log still has every record that a consumer may have seen. This is so if records were
        flushed before they were visible, if they are in the page cache of this machine run, or if the log was closed
        cleanly (C30)."""
        return self.flush_sync or clean or self.boot_id == boot_id

    def stands_for(self, *, flush_sync: bool, boot_id: str) -> bool:
        """Whether the copy is correct for a log that serves in this mode and machine run. If records are flushed before
        they are visible, the machine run does not matter."""
        return self.flush_sync == flush_sync and (flush_sync or self.boot_id == boot_id)


def encode_reservation(value: LocalReservation) -> bytes:
    flush = "sync" if value.flush_sync else "os"
    fields = (value.topic_id, value.partition, value.reserved_end, flush, value.boot_id)
    text = "0\n" + "".join(f"{name} {field}\n" for name, field in zip(_NAMES, fields, strict=True))
    return f"{text}crc {crc32c(text.encode()):08x}\n".encode()


def decode_reservation(data: bytes) -> LocalReservation | None:
    """None for bytes that `encode_reservation` did not write; the copy then counts as missing."""
    if len(data) > _BYTES_MAX:
        return None
    try:
        text = data.decode("ascii")
        body, mark, crc = text.rpartition("crc ")
        lines = body.splitlines()
        if not mark or int(crc, 16) != crc32c(body.encode()) or lines[0] != "0":
            return None
        found = dict(line.split(" ", 1) for line in lines[1:])
        if tuple(found) != _NAMES or found["flush"] not in ("sync", "os"):
            return None
        value = LocalReservation(
            UUID(found["topic_id"]),
            int(found["partition"]),
            int(found["reserved_end"]),
            found["flush"] == "sync",
            found["boot"],
        )
    except (ValueError, IndexError):
        return None
    return value if value.reserved_end >= 0 else None


def read_reservation(directory: Directory, topic_id: UUID, partition: int) -> LocalReservation | None:
    """The copy in a partition's directory; None if there is no usable copy. Blocking. Raises OSError."""
    if directory.stat(RESERVATION_FILE) is None:
        return None
    found = decode_reservation(read_in(directory, RESERVATION_FILE))
    if found is None or (found.topic_id, found.partition) != (topic_id, partition):
        return None
    return found


def write_reservation(directory: Directory, value: LocalReservation) -> None:
    """Write the copy; it is durable when this returns. Blocking. Raises OSError."""
    replace_in(directory, RESERVATION_FILE, encode_reservation(value))


def remove_reservation(directory: Directory) -> None:
    """Remove the copy durably. Until a new copy is written, the next opening reads the root first. Blocking.

    The file is emptied, and its name is not synced: an empty file counts as a missing copy. A failed sync of the name
    would not be repeated by the next attempt, which finds no file."""
    if directory.stat(RESERVATION_FILE) is not None:
        with closing(directory.open(RESERVATION_FILE, write=True)) as file:
            file.truncate(0)
            file.sync()
        directory.unlink(RESERVATION_FILE)


class AppendRate:
    """Samples the log's end every five minutes, to measure the offsets assigned in the last hour."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=HOUR_MS // SAMPLE_MS + 1)

    def note(self, now_ms: int, log_end_offset: int) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS or now_ms < samples[-1][0]:
            samples.append((now_ms, log_end_offset))

    def last_hour(self, log_end_offset: int) -> int:
        """Offsets assigned since the oldest sample, at most about an hour old."""
        return log_end_offset - self._samples[0][1] if self._samples else 0


def block_size(block_min: int, last_hour: int) -> int:
    """Size of one reservation: the last hour's offsets, but at least `block_min`."""
    return max(block_min, last_hour)


def raise_to(log_end_offset: int, reserved_end: int, block: int, needed_end: int = 0) -> int | None:
    """The end to reserve now; None while more than half a block is left and `needed_end`, the end of a waiting append,
    is not above `reserved_end`. One batch may have more records than a block has offsets."""
    if reserved_end - log_end_offset > block // 2 and needed_end <= reserved_end:
        return None
    return max(log_end_offset + block, needed_end)
