"""Upper bound of a segment object's footer size, before the log is read.

A copy in one pass announces the bound, because a store needs the object's length before the first byte. The result of
`build_footer` fits, with two rare exceptions: more than `_GAPS_EXPECTED` declared gaps in one object, or indexes that
compress worse than those of the local log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coldstore.keys import SegmentKey
from coldstore.segments.packed_indexes import PACKED_ENTRIES_MIN, THIN_BYTES, pack, thinned
from coldstore.segments.segment_object import DecidedTransaction, sections_beside_indexes
from coldstore.segments.segment_scanner import CHUNK_BYTES, Scan, interval_of
from coldstore.segments.segment_sections import footer_bytes
from logformat.indexes.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from logformat.indexes.time_index import TimeIndex
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.record_batch import INT32_MAX, INT64_MAX

_ENTRY_BYTES: Final = OFFSET_ENTRY_SIZE + TIME_ENTRY_SIZE
_PACKED_ENTRY_BYTES: Final = 8  # bound for an entry of both indexes, which takes 2 to 7 bytes
# Allowance, in addition to a tenth, for local indexes that compress better than those of a scan. The difference is
# largest for batches of 4096 bytes, because Kafka's indexes have an entry for every second batch.
_PACKED_SPARE_BYTES: Final = 512
_GAPS_EXPECTED: Final = 8  # most gaps expected in one object; each is a lost tail


def footer_room(
    key: SegmentKey,
    topic: str,
    end_offset: int,
    log_bytes: int,
    *,
    lineage: LeaderEpochs,
    producers: ProducerState,
    transactions: Sequence[DecidedTransaction] = (),
    indexes: tuple[OffsetIndex, TimeIndex] | None = None,
) -> int:
    """Most bytes of the footer for `log_bytes` of log up to `end_offset`, exclusive.

    `indexes`: the local log's indexes of the same bytes, with entries at most `interval_of(log_bytes)` / 4 apart. The
    indexes of a scan compress about as well. Without `indexes` the bound is the probable maximum, which is several
    times as large. `lineage` has the epoch of every batch.
    """
    epochs = sum(1 for entry in lineage.entries if entry.start_offset > key.base_offset) + 2
    widest = Scan(
        base_offset=key.base_offset,
        end_offset=end_offset,
        log_bytes=log_bytes,
        batches=log_bytes,
        records=INT64_MAX,
        min_timestamp_ms=-INT64_MAX,
        max_timestamp_ms=-INT64_MAX,
        gaps=((INT64_MAX, INT64_MAX),) * _GAPS_EXPECTED,
        epochs=((INT32_MAX, INT64_MAX),) * epochs,
        offset_index=OffsetIndex(key.base_offset),
        time_index=TimeIndex(key.base_offset),
        chunk_bytes=CHUNK_BYTES,
        chunk_crcs=(0,) * -(-log_bytes // CHUNK_BYTES),
        log_crc32c=2**32 - 1,
    )
    sections = sections_beside_indexes(key, topic, widest, lineage, producers, transactions)
    return footer_bytes((0, 0, _index_room(log_bytes, indexes), *map(len, sections.values())))


def _index_room(log_bytes: int, indexes: tuple[OffsetIndex, TimeIndex] | None) -> int:
    """Most bytes of the three sections with indexes, packed or not."""
    interval = interval_of(log_bytes)
    entries = log_bytes // (interval + 1)  # an upper bound: each entry covers more than the interval
    plain = min(entries, PACKED_ENTRIES_MIN) * _ENTRY_BYTES
    thin = log_bytes // THIN_BYTES * _ENTRY_BYTES
    packed = entries * _PACKED_ENTRY_BYTES
    if indexes is not None:
        offset_index, time_index = thinned(*indexes, apart=interval + 1)
        packed = min(packed, len(pack(offset_index, time_index)) * 11 // 10 + _PACKED_SPARE_BYTES)
        if len(offset_index) >= PACKED_ENTRIES_MIN:  # a scan reads every batch, so it makes as many entries or more
            plain = 0
    return max(plain, thin + packed) + TIME_ENTRY_SIZE
