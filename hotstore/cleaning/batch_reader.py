"""Reads runs of complete batches from a segment file.

It checks their positions and offsets, not their content. A run's batches have valid lengths, and each begins at the
offset where the last one ended. The offsets are checked because no CRC covers a base offset. The reader of the records
checks each CRC; `damage_in` then finds the damaged batch.

Hot path: one `unpack_from` a batch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hotstore.errors import DamagedLog
from hotstore.log.batch_walk import RESTORE_HINT
from hotstore.recovery.scan import BATCH_BYTES_MAX
from logformat.errors import Corrupt, InvalidRequest
from logformat.record_batch import (
    BASE_OFFSET,
    HEADER,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LENGTH,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC,
    check_stored,
    read_header,
)
from seams.files.disk import File

READ_BYTES_MAX: Final = 8 << 20  # size of one run, unless its first batch is longer
_MAGIC: Final = 3  # indexes in `Fields`


class Run(NamedTuple):
    """Complete batches from `position` of the file, with offsets [`offset`, `end_offset`). `batches` is a view of the
    reader's buffer and valid until the next read."""

    file: File
    position: int
    batches: memoryview
    offset: int
    end_offset: int


class BatchReader:
    """A reader with one buffer of at most READ_BYTES_MAX. A longer batch gets a separate buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def release(self) -> None:
        """Give the buffer's memory back."""
        self._buffer = bytearray()

    def read(self, file: File, position: int, length: int, offset: int | None) -> Run:
        """The complete batches in [position, position + length), but at least the first batch. `offset` is the expected
        base offset; None accepts that of the first batch. Raises OSError, and DamagedLog if no batch with that offset
        begins at `position`.
        """
        wanted = max(min(length, READ_BYTES_MAX), HEADER_SIZE)
        if len(self._buffer) < wanted:
            self._buffer = bytearray(wanted)
        view = memoryview(self._buffer)[:wanted]
        view = view[: file.read_into(position, view)]
        if len(view) >= HEADER_SIZE and wanted < (size := read_header(view).size) <= BATCH_BYTES_MAX:
            view = memoryview(bytearray(min(size, file.size() - position)))  # limit for damaged lengths
            view = view[: file.read_into(position, view)]
        return _whole_batches(file, position, view, offset)


def _whole_batches(file: File, position: int, view: memoryview, offset: int | None) -> Run:
    stop = len(view)
    first, expected = offset, offset
    unpack = HEADER.unpack_from
    at = 0
    while stop - at >= HEADER_SIZE:
        fields = unpack(view, at)
        length, delta = fields[LENGTH], fields[LAST_OFFSET_DELTA]
        if expected is None:
            first = expected = fields[BASE_OFFSET]
        if fields[_MAGIC] != MAGIC or length < LENGTH_MIN or delta < 0 or length > BATCH_BYTES_MAX:
            what = f"no batch begins here: length {length}, magic {fields[_MAGIC]}, last offset delta {delta}"
            raise _damaged(file, position + at, expected, what)
        if fields[BASE_OFFSET] != expected:
            what = f"batch says offset {fields[BASE_OFFSET]}, but the one before it ends at {expected}"
            raise _damaged(file, position + at, expected, what)
        if length + LOG_OVERHEAD > stop - at:
            break
        at += length + LOG_OVERHEAD
        expected += delta + 1
    if at == 0 or first is None or expected is None:
        raise _damaged(file, position, offset or 0, f"the file ends within a batch, {stop} bytes after its start")
    return Run(file, position, view[:at], first, expected)


def damage_in(run: Run, refusal: Corrupt | InvalidRequest) -> DamagedLog:
    """The damage in a run whose content was refused: the first batch that fails a check, or else the complete run."""
    at, offset = 0, run.offset
    try:
        while at < len(run.batches):
            header = check_stored(run.batches, at, len(run.batches), offset_min=offset)
            at, offset = at + header.size, header.next_offset
    except Corrupt as damage:
        return _damaged(run.file, run.position + at, offset, str(damage))
    return _damaged(run.file, run.position, run.offset, str(refusal))


def _damaged(file: File, position: int, offset: int, what: str) -> DamagedLog:
    return DamagedLog(file.path, position, offset, what, RESTORE_HINT)
