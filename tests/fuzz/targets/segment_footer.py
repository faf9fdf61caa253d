"""A segment object's footer and trailer, from anybody's hand: Corrupt, KeyRefused where the marker of an encrypted
object is at the end, or a footer whose indexes lie in its range.

Input: the object. Run as it is, and with the checksums of sections, footer and trailer made right.
"""

from __future__ import annotations

import contextlib
import struct

from crc32c import crc32c

from coldstore.encryption.marker import MAGIC, KeyRefused
from coldstore.segments.segment_object import SegmentFooter, footer_start, tail_bytes
from coldstore.segments.segment_sections import SECTION_HEADER_SIZE, TRAILER_SIZE
from logformat.errors import Corrupt
from tests.fuzz.inputs import memory_within
from tests.support.repository import golden
from tests.support.tier.cold_objects import segment_object


def seeds() -> list[bytes]:
    return [golden("coldstore_segment_v1.log"), segment_object(0, [3]).data, segment_object(70, [2, 9, 4]).data[-900:]]


def run(data: bytes) -> None:
    for one in (data, _resealed(data)):
        with memory_within(64 << 20):
            _run(one)


def _run(data: bytes) -> None:
    try:
        start = footer_start(data, len(data))
        footer = SegmentFooter.parse(data, len(data))
    except Corrupt:
        return
    except KeyRefused:
        assert data.endswith(MAGIC)
        return
    assert 0 < start < len(data) and footer.log_bytes == start
    assert tail_bytes(len(data)) <= len(data) and footer.nbytes >= 0
    said = footer.statistics
    for entry in footer.offset_index.entries():
        assert said.base_offset <= entry.offset < said.end_offset and 0 <= entry.position < footer.log_bytes
    assert footer.time_index.last.timestamp <= max(said.max_timestamp_ms, -1)
    with contextlib.suppress(Corrupt):
        assert footer.producer_state().end_offset == said.end_offset


def _resealed(data: bytes) -> bytes:
    """Every checksum of the footer as its bytes are; unchanged where the trailer does not even name a footer."""
    if len(data) < TRAILER_SIZE:
        return data
    _, position, length, _, version, reserved = struct.unpack_from(">QQIIHH", data, len(data) - TRAILER_SIZE)
    if position + length + TRAILER_SIZE != len(data):
        position = min(position, len(data) - TRAILER_SIZE)
        length = len(data) - TRAILER_SIZE - position
    footer = bytearray(data[position : position + length])
    at = 0
    while len(footer) - at >= SECTION_HEADER_SIZE:
        _, _, size, _ = struct.unpack_from(">HHII", footer, at)
        payload = footer[at + SECTION_HEADER_SIZE : at + SECTION_HEADER_SIZE + size]
        footer[at + 8 : at + 12] = crc32c(bytes(payload)).to_bytes(4, "big")
        at += SECTION_HEADER_SIZE + size
    covered = struct.pack(">QQIIHH", position, position, length, crc32c(bytes(footer)), version, reserved)
    return data[:position] + bytes(footer) + covered + struct.pack(">I", crc32c(covered)) + b"THERMSEG"
