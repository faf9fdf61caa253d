"""What a leader writes into batches before they go to the log: offset, leader epoch, and with LogAppendTime the time.

Always true: only header bytes change, in place, and `put_back` undoes what would make the same bytes look like another
request: a caller may check and append them again. Must not know: files, where batches go.
"""

from __future__ import annotations

from collections.abc import Sequence

from logformat.record_batch import HEADER_SIZE, BatchHeader, stamp, stamp_log_append_time


def stamp_all(
    batches: Sequence[memoryview], headers: Sequence[BatchHeader], leader_epoch: int, append_time_ms: int
) -> list[bytes]:
    """Stamp each batch as its placed header says. The headers as they came, for `put_back`.

    `append_time_ms` −1: the batches keep their timestamps, and nothing has to be put back.
    """
    as_sent: list[bytes] = []
    for batch, header in zip(batches, headers, strict=True):
        if append_time_ms >= 0:
            as_sent.append(bytes(batch[:HEADER_SIZE]))
            stamp_log_append_time(batch, 0, append_time_ms)
        stamp(batch, 0, header.base_offset, leader_epoch)
    return as_sent


def put_back(batches: Sequence[memoryview], as_sent: Sequence[bytes]) -> None:
    """Undo LogAppendTime's stamp after a failed write."""
    for batch, kept in zip(batches, as_sent, strict=False):
        batch[:HEADER_SIZE] = kept
