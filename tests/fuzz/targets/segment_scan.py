"""The copier's scan of log bytes, in any pieces: what it proves, `check_stored` proves batch by batch, and the reverse.

Input: up to 3 piece sizes (int16 each, their count first), a base offset (8 bytes), then log bytes; run as they are and
with every batch's CRC made right.
"""

from __future__ import annotations

import struct

from coldstore.segments.segment_scanner import Scan, SegmentScanner
from logformat.errors import Corrupt, InvalidRequest
from logformat.record_batch import HEADER_SIZE, CorruptBatch, check_stored
from tests.fuzz.inputs import Cursor
from tests.fuzz.targets.record_batch import resealed
from tests.fuzz.targets.record_batch import seeds as batch_seeds
from tests.support.stamped import stamp
from tests.support.tier.cold_objects import batches


def seeds() -> list[bytes]:
    log = b"".join(batches(1000, [3, 1, 8, 2]))
    made = []
    for first in 2**63 - 9, 2**63 - 8:  # the last offsets there are
        three, five = (bytearray(batch) for batch in batches(0, [3, 5]))
        stamp(three, first, 1)
        stamp(five, first + 3, 1)
        made.append(struct.pack(">Bq", 0, first) + three + five)
    made += [struct.pack(">BHq", 1, 70, 1000) + log, struct.pack(">BHHq", 2, 1, 300, 1000) + log]
    return made + [struct.pack(">Bq", 0, 0) + batch for batch in batch_seeds()]


def run(data: bytes) -> None:
    cursor = Cursor(data)
    sizes = [max(1, cursor.number(2)) for _ in range(cursor.number() & 3)] or [1 << 20]
    base = cursor.number(8) & (2**63 - 1)
    log = cursor.rest()
    for one in (log, resealed(log)):
        if one:
            _run(one, base, sizes)


def _run(log: bytes, base: int, sizes: list[int]) -> None:
    plain = _plainly(log, base)
    try:
        scan = _scanned(log, base, sizes)
    except (Corrupt, InvalidRequest):
        # The scanner also refuses batches without offsets to give and ranges wider than an index reaches.
        assert plain is None or plain[0] - base > 2**31 - 1 or plain[0] == base, "the scan refused a sound log"
        return
    assert plain is not None and (scan.end_offset, scan.batches) == plain
    assert all(entry.position < len(log) for entry in scan.offset_index.entries())


def _scanned(log: bytes, base: int, sizes: list[int]) -> Scan:
    scanner = SegmentScanner(base, len(log), chunk_bytes=1024, index_interval_bytes=100)
    at = turn = 0
    while at < len(log):
        scanner.feed(memoryview(log)[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return scanner.finish(scanner.next_offset)


def _plainly(log: bytes, base: int) -> tuple[int, int] | None:
    """(end offset, batches) of a log whose batches tile the offsets from `base` on, None of any other."""
    at = count = 0
    offset = base
    while at < len(log):
        try:
            header = check_stored(log, at, len(log), offset_min=offset)
        except CorruptBatch:
            return None
        if header.base_offset != offset:
            return None
        assert header.size >= HEADER_SIZE
        at, offset, count = at + header.size, header.next_offset, count + 1
    return offset, count
