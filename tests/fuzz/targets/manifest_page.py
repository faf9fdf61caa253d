"""A manifest page (Parquet) under a pointer that names exactly these bytes: Corrupt, or rows as the pointer says.

Input: level (one byte), then the file. Memory stays bounded whatever the file's metadata claims.
"""

from __future__ import annotations

from crc32c import crc32c
from msgspec.structs import replace

from coldstore.manifest.manifest_entries import PagePointer, RemoteSegment
from coldstore.manifest.manifest_pages import (
    PointerPage,
    SegmentPage,
    decode_page,
    encode_page,
    pointer_table,
    segment_table,
)
from logformat.errors import Corrupt
from tests.fuzz.inputs import memory_within
from tests.support.repository import golden
from tests.support.tier.cold_values import TOPIC_ID, remote_segment

_SEGMENTS = [remote_segment(n * 10, n * 10 + 10, epoch=2) for n in range(5)]
_LEAF, _LEAF_BYTES = encode_page(segment_table(_SEGMENTS), 0, TOPIC_ID, 2)
_UPPER, _UPPER_BYTES = encode_page(pointer_table([_LEAF]), 1, TOPIC_ID, 2)


def seeds() -> list[bytes]:
    return [
        b"\0" + _LEAF_BYTES,
        b"\x01" + _UPPER_BYTES,
        b"\0" + golden("coldstore_page_v1.parquet"),
        b"\x01" + golden("coldstore_page_of_pages_v1.parquet"),
    ]


def run(data: bytes) -> None:
    level, body = data[:1] == b"\x01", data[1:]
    pointer = replace(_UPPER if level else _LEAF, length=len(body), crc32c=crc32c(body))
    with memory_within(256 << 20):
        _run(body, pointer)


def _run(body: bytes, pointer: PagePointer) -> None:
    if not body:
        return  # a pointer never names an empty object: check_page
    try:
        page = decode_page(body, pointer)
        rows: list[RemoteSegment] = list(page.rows()) if isinstance(page, SegmentPage) else []
    except Corrupt:
        return
    assert len(page) == pointer.entries
    if isinstance(page, PointerPage):
        assert page.pointers[0].first_offset == pointer.first_offset
        return
    assert rows[0].base_offset == pointer.first_offset and rows[-1].end_offset == pointer.end_offset
    found = page.find(rows[-1].base_offset)
    assert found == rows[-1], found
