"""What the broker writes into batches before they go to the log: offset, leader epoch, and with LogAppendTime the time.

Always true: only header bytes change, in place, and `put_back` undoes what would make the same bytes look like another
request: a caller may check and append them again. Must not know: files, where batches go.
"""

from __future__ import annotations

from collections.abc import Sequence

from logformat.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, stamp, stamp_log_append_time


def stamp_all(buffer: memoryview, headers: Sequence[BatchHeader], leader_epoch: int, append_time_ms: int) -> None:
    """Stamp the batches of `buffer`, whose placed headers are `headers`. `append_time_ms` −1: keep their timestamps."""
    position = 0
    for header in headers:
        if append_time_ms >= 0:
            stamp_log_append_time(buffer, position, append_time_ms)
        stamp(buffer, position, header.base_offset, leader_epoch)
        position += header.length + LOG_OVERHEAD


def header_bytes(buffer: memoryview, headers: Sequence[BatchHeader]) -> list[bytes]:
    """Each batch's header as it came."""
    kept: list[bytes] = []
    position = 0
    for header in headers:
        kept.append(bytes(buffer[position : position + HEADER_SIZE]))
        position += header.length + LOG_OVERHEAD
    return kept


def put_back(buffer: memoryview, headers: Sequence[BatchHeader], as_sent: Sequence[bytes]) -> None:
    """Undo LogAppendTime's stamp after a failed write. `as_sent`: of `header_bytes`, or empty where it was not used."""
    position = 0
    for header, kept in zip(headers, as_sent, strict=False):
        buffer[position : position + HEADER_SIZE] = kept
        position += header.length + LOG_OVERHEAD
