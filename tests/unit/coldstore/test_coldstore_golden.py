"""Golden files: every object a released version wrote stays readable, and says the same.

`tests/golden/coldstore_*` are never written again: a new format version gets new files beside them. What is written
today is also compared byte for byte (JSON and segment objects; Parquet pages carry their writer's version).
"""

from __future__ import annotations

from uuid import UUID

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import Manifest, PagePointer, SnapshotPointer, new_manifest
from coldstore.manifest.manifest_entries import ReplacedObject, Totals, totals_of
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.manifest.manifest_pages import PointerPage, SegmentPage, decode_page
from coldstore.object_store import Got
from coldstore.roots.root import NewerFormat, RootCodec, RootFormat
from coldstore.segments.segment_object import (
    DecidedTransaction,
    SegmentFooter,
    TransactionOutcome,
    build_footer,
    entry_from_footer,
)
from coldstore.segments.segment_scanner import SegmentScanner
from logformat.errors import Corrupt
from logformat.gap import gap_batches
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import BatchRecord, ProducerEntry, ProducerState
from tests.support.repository import golden
from tests.support.tier.cold_objects import T0, batches
from tests.support.tier.cold_values import TOPIC_ID, remote_segment

KEY = SegmentKey(TOPIC_ID, 3, 1000, 5, UUID("5b3f2a9e-1c55-4b0e-9b1d-8a4c6f1d2e3f"))
DECIDED = (
    DecidedTransaction(9, 2, 1001, 1003, TransactionOutcome.ABORTED),
    DecidedTransaction(9, 3, 1030, 1200, TransactionOutcome.COMMITTED),
)
PRODUCERS = ProducerState(
    1100,
    (ProducerEntry(9, 3, (BatchRecord(0, 4, 1000, 1004, T0 + 1004), BatchRecord(5, 9, 1005, 1009, T0 + 1009)), T0),),
)
LINEAGE = LeaderEpochs((EpochStart(1, 0), EpochStart(4, 700), EpochStart(5, 1010)))
SEGMENTS = [
    remote_segment(0, 10, epoch=1),
    remote_segment(10, 700, epoch=1, gaps=((20, 40), (50, 60)), records=660),
    remote_segment(700, 1000, epoch=4, epochs=((1, 700), (4, 800)), crc32c=2**32 - 1),
    remote_segment(1000, 1001, epoch=4, min_timestamp_ms=-1, max_timestamp_ms=-1, records=0, gaps=((1000, 1001),)),
]
LEAF = PagePointer(
    uuid=UUID("00000000-0000-4000-8000-00000000aaaa"),
    level=0,
    epoch=4,
    first_offset=0,
    end_offset=1001,
    entries=4,
    segments=4,
    log_bytes=100_100,
    object_bytes=102_100,
    records=970,
    min_timestamp_ms=-1,
    max_timestamp_ms=1_700_000_000_999,
    min_leader_epoch=1,
    max_leader_epoch=4,
    length=0,  # with the CRC: of the file, filled in below
    crc32c=0,
)
UPPER = replace(LEAF, uuid=UUID("00000000-0000-4000-8000-00000000bbbb"), level=1, entries=1)


def with_object(pointer: PagePointer, data: bytes) -> PagePointer:
    return replace(pointer, length=len(data), crc32c=crc32c(data))


def segment_bytes() -> bytes:
    """Two batches of epoch 4, a declared gap and a batch of epoch 5; small chunks, so that there are several."""
    parts = [*batches(1000, [5, 5], epoch=4), *gap_batches(1010, 1090, 5), *batches(1090, [10], epoch=5)]
    log = b"".join(parts)
    scanner = SegmentScanner(1000, len(log), chunk_bytes=1024, index_interval_bytes=100, lineage=LINEAGE)
    scanner.feed(log)
    return log + build_footer(
        KEY, "events", scanner.finish(1100), lineage=LINEAGE, producers=PRODUCERS, transactions=DECIDED
    )


def manifest_value(leaf: PagePointer, upper: PagePointer) -> Manifest:
    """Every field set: both levels of pages, a tail, gaps, a snapshot, something expired."""
    base = new_manifest(TOPIC_ID, 3, 5, "events", {"retention.ms": "-1", "segment.bytes": "134217728"})
    tail = (remote_segment(2002, 2050, epoch=5), remote_segment(2050, 2100, epoch=5, gaps=((2060, 2070),), records=40))
    second = replace(leaf, first_offset=1001, end_offset=2002, uuid=UUID("00000000-0000-4000-8000-00000000cccc"))
    both = Totals(log_bytes=200_200, object_bytes=204_200, records=1940, segments=8)
    removed = totals_of(SEGMENTS[:1])
    added = both + totals_of(tail)
    return replace(
        base,
        log_start_offset=15,
        deletion_cursor=10,
        remote_end_offset=2100,
        reserved_end_offset=2100 + 2**20,
        added=added,
        removed=removed,
        live=added - removed,
        live_hash="00112233445566778899aabbccddeeff",
        gaps=((20, 40), (50, 60), (1000, 1001), (2060, 2070)),
        pages=(upper, second),
        tail=tail,
        snapshot=SnapshotPointer(
            uuid=UUID("00000000-0000-4000-8000-00000000dddd"), epoch=4, end_offset=99, length=1234, crc32c=5678
        ),
    )


def test_the_golden_segment_object_is_written_and_read_as_ever() -> None:
    data = golden("coldstore_segment_v1.log")
    assert data == segment_bytes()
    footer = SegmentFooter.parse(data, len(data))
    entry = entry_from_footer(footer, KEY)
    assert (entry.base_offset, entry.end_offset, entry.records, entry.gaps) == (1000, 1100, 20, ((1010, 1090),))
    assert entry.epochs == ((4, 1000), (5, 1010)) and entry.crc32c == crc32c(data)
    assert footer.lineage == LINEAGE and footer.producer_state() == PRODUCERS and footer.transactions == DECIDED
    assert [crc32c(data[at : min(at + 1024, footer.log_bytes)]) for at in range(0, footer.log_bytes, 1024)] == list(
        footer.chunk_crcs
    )
    assert len(footer.offset_index) > 0 and len(footer.time_index) > 0


def test_the_golden_pages_are_read_as_ever() -> None:
    data = golden("coldstore_page_v1.parquet")
    page = decode_page(data, with_object(LEAF, data))
    assert isinstance(page, SegmentPage) and list(page.rows()) == SEGMENTS
    upper = golden("coldstore_page_of_pages_v1.parquet")
    pointers = decode_page(upper, with_object(UPPER, upper))
    assert isinstance(pointers, PointerPage) and pointers.pointers == (with_object(LEAF, data),)


def test_the_golden_manifest_is_written_and_read_as_ever() -> None:
    leaf_bytes, upper_bytes = golden("coldstore_page_v1.parquet"), golden("coldstore_page_of_pages_v1.parquet")
    expected = manifest_value(with_object(LEAF, leaf_bytes), with_object(UPPER, upper_bytes))
    expected.check()
    codec = RootCodec(MANIFEST_FORMAT)
    for name in ("coldstore_manifest_v1.json", "coldstore_manifest_v1_crc.json"):  # roots without a CRC came first
        data = golden(name)
        root = codec.decode("manifest.json", Got(data, "e", len(data)))
        assert root.content == expected and codec.is_as_written(data)
        assert (root.version, root.epoch, len(root.ring), root.format_version) == (40, 5, 32, 1)
    assert codec.encode(root.version, root.epoch, root.ring, root.content) == data


def compacted_value(leaf: PagePointer, upper: PagePointer) -> Manifest:
    """The same after compaction of its tail, with a transaction in the second object."""
    before = manifest_value(leaf, upper)
    tail = (before.tail[0], replace(before.tail[1], decided=2))
    replaced = ReplacedObject(UUID("00000000-0000-4000-8000-00000000eeee"), 2002, 5, 5100, 1_700_000_000_000)
    return replace(before, tail=tail, clean_end_offset=2050, replaced=(replaced,))


def test_the_golden_compacted_manifest_is_written_and_read_as_ever() -> None:
    leaf_bytes, upper_bytes = golden("coldstore_page_v1.parquet"), golden("coldstore_page_of_pages_v1.parquet")
    expected = compacted_value(with_object(LEAF, leaf_bytes), with_object(UPPER, upper_bytes))
    expected.check()
    codec = RootCodec(MANIFEST_FORMAT)
    data = golden("coldstore_manifest_v2.json")
    root = codec.decode("manifest.json", Got(data, "e", len(data)))
    assert root.content == expected and root.format_version == 2 and codec.is_as_written(data)
    assert codec.encode(root.version, root.epoch, root.ring, root.content) == data


def test_a_program_of_format_1_refuses_what_it_would_leave_out() -> None:
    """It reads fields that it does not know as absent, and writes the root without them."""
    older = RootCodec(RootFormat.first(Manifest))
    data = golden("coldstore_manifest_v2.json")
    with pytest.raises(NewerFormat, match="format 2"):
        older.decode("manifest.json", Got(data, "e", len(data)))


def test_a_manifest_is_of_format_2_once_it_needs_it_and_for_ever() -> None:
    leaf_bytes, upper_bytes = golden("coldstore_page_v1.parquet"), golden("coldstore_page_of_pages_v1.parquet")
    pages = (with_object(LEAF, leaf_bytes), with_object(UPPER, upper_bytes))
    plain, full = manifest_value(*pages), compacted_value(*pages)
    codec = RootCodec(MANIFEST_FORMAT)
    assert codec.format_of(plain) == 1
    for one in (
        replace(plain, replaced=full.replaced),
        replace(plain, clean_end_offset=10),
        replace(plain, tail=full.tail),
    ):
        assert codec.format_of(one) == 2
    assert codec.format_of(plain, before=2) == 2, "a page may hold what needed it"


def test_a_flipped_bit_anywhere_in_a_manifest_is_found() -> None:
    """Also in what no other object could contradict: a commit id, a config, the name of the checksum itself."""
    data = golden("coldstore_manifest_v1_crc.json")
    codec = RootCodec(MANIFEST_FORMAT)
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        try:
            codec.decode("manifest.json", Got(bytes(damaged), "e", len(damaged)))
        except Corrupt:
            continue
        assert not codec.is_as_written(bytes(damaged)), (
            f"bit {at % 8} of byte {at // 8}: {damaged[at // 8 - 20 :][:40]!r}"
        )
