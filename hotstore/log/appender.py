"""Checks the offsets of the next batches, and decides whether to roll a segment before them. Pure.

It runs before the write. An append is completely in one segment. Its last offset must be at most 2^31−1 above the
segment's base, because index entries have relative offsets. Source: Kafka's LogSegment.shouldRoll. Kafka compares
segment.ms with record timestamps. Here it is compared with the broker's time since the first append, so an import of
old records does not roll a segment for every batch.

Hot path: `must_roll` runs once for each append, `check_continuity` once for each follower's append.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotstore.errors import DivergingAppend, RecordListTooLarge
from hotstore.log.log_config import LogConfig
from logformat.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from logformat.record_batch import (
    BASE_OFFSET,
    INT32_MAX,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LOG_OVERHEAD,
    BatchHeader,
)


def check_continuity(headers: Sequence[BatchHeader], log_end_offset: int, leader_epoch: int) -> tuple[int, int]:
    """Size in bytes and end offset of batches that have their offsets already. Raises DivergingAppend unless they
    continue a log that ends at `log_end_offset` with the latest epoch `leader_epoch`."""
    assert headers
    offset, epoch, size = log_end_offset, leader_epoch, 0
    for header in headers:
        if header[BASE_OFFSET] != offset:
            raise DivergingAppend(f"a batch begins at offset {header.base_offset}, but the log ends at {offset}")
        if header[LEADER_EPOCH] < epoch:
            raise DivergingAppend(f"the batch at offset {offset} has leader epoch {header.leader_epoch}, after {epoch}")
        offset, epoch = offset + header[LAST_OFFSET_DELTA] + 1, header[LEADER_EPOCH]
        size += header[LENGTH]
    return size + LOG_OVERHEAD * len(headers), offset


def index_room_bytes(config: LogConfig) -> int:
    """Size of a segment below which its indexes cannot be full, because entries are more than an interval apart."""
    return max(config.segment_index_bytes // TIME_ENTRY_SIZE - 2, 0) * config.index_interval_bytes


def must_roll(
    config: LogConfig,
    *,
    segment_base: int,
    segment_size: int,
    first_append_ms: int | None,
    index_full: bool,
    incoming_bytes: int,
    incoming_base: int,
    incoming_end: int,
    now_ms: int,
) -> bool:
    """Whether a new segment must begin before an append of `incoming_bytes` with offsets [incoming_base, incoming_end).

    An empty segment accepts every append that fits a segment. Raises RecordListTooLarge if no segment is large enough.
    Raises it also if index entries could not store the offsets: a header of 61 bytes may claim 2^31 of them.
    """
    if incoming_end - 1 - incoming_base > INT32_MAX:
        raise RecordListTooLarge(
            f"{incoming_end - incoming_base} offsets in one append, but a segment holds only {INT32_MAX + 1}; send "
            "fewer batches"
        )
    if segment_size + incoming_bytes > config.segment_bytes:
        if incoming_bytes > config.segment_bytes:
            raise RecordListTooLarge(
                f"{incoming_bytes} bytes in one append, but a segment holds only {config.segment_bytes} (segment.bytes)"
            )
        return True
    if segment_size == 0:
        return False
    if first_append_ms is not None and now_ms - first_append_ms > config.segment_ms:
        return True
    return index_full or incoming_end - 1 - segment_base > INT32_MAX
