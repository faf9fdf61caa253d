"""Segment objects: the scan that proves the log bytes, the footer that seals them, and hostile or damaged ones."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RANGES_MAX
from coldstore.segments.segment_object import (
    DecidedTransaction,
    SegmentFooter,
    TransactionOutcome,
    build_footer,
    entry_from_footer,
    footer_start,
    object_crc32c,
    tail_bytes,
)
from coldstore.segments.segment_scanner import SegmentScanner
from coldstore.segments.segment_sections import (
    OPTIONAL,
    SECTION_HEADER_SIZE,
    TRAILER_SIZE,
    Section,
    encode_footer,
    read_sections,
    read_trailer,
)
from logformat.errors import Corrupt, InvalidRequest
from logformat.gap import gap_batches
from logformat.indexes.segment_index import SegmentIndexer
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.record_batch import HEADER_SIZE, TimestampType, check_stored
from logformat.records import Record, encode_batch
from logformat.values import NewerFormat
from tests.support.stamped import stamp
from tests.support.tier.cold_objects import T0, batches, object_of, scan, segment_object
from tests.support.tier.cold_values import TOPIC_ID

SIZES = [3, 1, 40, 7, 7, 120, 2, 9]


# ── the scan ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 700), st.integers(0, 2**40))
def test_pieces_of_any_size_give_the_same_scan(sizes: list[int], piece: int, base: int) -> None:
    """Not aligned to batches, down to single bytes: the result is that of one feed of everything."""
    log = b"".join(batches(base, sizes))
    whole, pieces = scan(log, base, base + sum(sizes)), scan(log, base, base + sum(sizes), piece=piece)
    for name in ("log_crc32c", "chunk_crcs", "batches", "records", "epochs", "min_timestamp_ms", "max_timestamp_ms"):
        assert getattr(whole, name) == getattr(pieces, name)
    assert whole.offset_index.to_bytes() == pieces.offset_index.to_bytes()
    assert whole.time_index.to_bytes() == pieces.time_index.to_bytes()
    assert whole.log_crc32c == crc32c(log)
    assert list(whole.chunk_crcs) == [crc32c(log[at : at + 4096]) for at in range(0, len(log), 4096)]


def test_fuzz_a_range_that_ends_behind_the_last_offset_is_refused() -> None:
    """Found by the fuzz target segment_scan: it was sealed into an object whose footer nobody can read (T12)."""
    for first, sound in ((2**63 - 9, True), (2**63 - 8, False)):
        log = bytearray(batches(0, [8])[0])
        stamp(log, first, 1)
        if sound:
            assert scan(bytes(log), first, first + 8).end_offset == 2**63 - 1
        else:
            with pytest.raises(Corrupt, match="highest possible offset"):
                scan(bytes(log), first, first + 8)


def test_indexes_are_those_of_the_shared_indexer() -> None:
    """The written-out loop puts entries where `SegmentIndexer` (and so Kafka) would."""
    log = b"".join(batches(100, SIZES * 20))
    indexer, position, offset = SegmentIndexer(100, 500), 0, 100
    while position < len(log):
        header = check_stored(log, position, len(log), offset_min=offset)
        indexer.add_run((header,), offset, position)
        position, offset = position + header.size, header.next_offset
    indexer.seal()
    found = scan(log, 100, offset, piece=777)
    assert len(found.offset_index) > 10
    assert found.offset_index.to_bytes() == indexer.offset_index.to_bytes()
    assert found.time_index.to_bytes() == indexer.time_index.to_bytes()
    assert (found.records, found.batches) == (sum(SIZES) * 20, len(SIZES) * 20)
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (T0 + 100, T0 + offset - 1)


def test_design_c12_no_flipped_bit_gets_sealed() -> None:
    """Bit rot before the copy: whichever bit of the log flips, the scan refuses, so no new checksum covers it. The
    leader epoch lies outside the batch's CRC, as in Kafka: the log's own epochs are what it is held against."""
    log = b"".join(batches(100, [2, 3]))
    good = scan(log, 100, 105)
    first = check_stored(log, 0, len(log))
    epoch_bytes = {*range(12, 16), *range(first.size + 12, first.size + 16)}
    for at in range(len(log)):
        for bit in range(8):
            damaged = bytearray(log)
            damaged[at] ^= 1 << bit
            if at in epoch_bytes:
                assert scan(bytes(damaged), 100, 105, piece=50).chunk_crcs != good.chunk_crcs
                with pytest.raises(Corrupt):
                    scan(bytes(damaged), 100, 105, piece=50, lineage=LeaderEpochs((EpochStart(1, 0),)))
                continue
            with pytest.raises(Corrupt):
                scan(bytes(damaged), 100, 105, piece=50)


def test_design_c12_lost_repeated_and_swapped_batches_are_refused() -> None:
    """Each batch is whole and right by itself; their order is not."""
    a, b, c = batches(0, [2, 2, 2])
    for wrong in ([a, c], [a, a, b], [a, c, b], [b, c], [a, b], [a, b, c[:-1]], [a, b, c, c], [a, b, c + b"\0"]):
        log = b"".join(wrong)
        with pytest.raises(Corrupt):
            scan(log, 0, 6, piece=64)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 48, 2**31 - 1, 10_000])
def test_lying_lengths_allocate_nothing(length: int) -> None:
    """A batch that claims 2 GiB is refused at its header, also when it straddles pieces."""
    log = bytearray(b"".join(batches(0, [2, 2])))
    struct.pack_into(">i", log, 8, length)
    for piece in (5, 13, len(log)):
        with pytest.raises(Corrupt):
            scan(bytes(log), 0, 4, piece=piece)


def test_declared_gaps_control_batches_and_epochs_are_noted() -> None:
    """Gap batches are joined into ranges, count no records, and carry no timestamp."""
    log = [*batches(0, [5], epoch=1), *gap_batches(5, 2**31 + 50, 3), *batches(2**31 + 50, [4], epoch=4)]
    joined = b"".join(log)
    scanner = SegmentScanner(0, len(joined))
    scanner.feed(joined)
    with pytest.raises(InvalidRequest):
        scanner.finish(2**31 + 54)  # more offsets than an index can say: the copier cuts the range
    tail = b"".join([*gap_batches(100, 1000, 3), *gap_batches(1000, 1500, 3), *batches(1500, [4], epoch=4)])
    found = scan(tail, 100, 1504)
    assert found.gaps == ((100, 1500),) and found.records == 4 and found.batches == 3
    assert found.epochs == ((3, 100), (4, 1500))
    assert found.min_timestamp_ms == T0 + 1500
    only = scan(b"".join(gap_batches(5, 10, 1)), 5, 10)
    assert (only.records, only.min_timestamp_ms, only.max_timestamp_ms) == (0, -1, -1)


def test_batches_follow_the_lineage() -> None:
    """Epochs change exactly where the log's epochs say, also when a batch keeps the old one too long."""
    log = b"".join([*batches(0, [5, 5], epoch=2), *batches(10, [5, 5], epoch=4)])
    right = LeaderEpochs((EpochStart(2, 0), EpochStart(4, 10)))
    assert scan(log, 0, 20, lineage=right).epochs == ((2, 0), (4, 10))
    for wrong in ([(2, 0), (4, 15)], [(2, 0), (4, 5)], [(2, 0)], [(4, 0)], [(2, 0), (3, 10)]):
        with pytest.raises(Corrupt):
            scan(log, 0, 20, piece=100, lineage=LeaderEpochs(tuple(EpochStart(*entry) for entry in wrong)))


def test_log_append_time_is_the_whole_batchs_time() -> None:
    """With LogAppendTime the base timestamp is the producer's and means nothing."""
    records = [Record(n, 5, None, b"v") for n in range(3)]
    batch = encode_batch(records, base_offset=0, leader_epoch=0, timestamp_type=TimestampType.LOG_APPEND_TIME)
    found = scan(batch, 0, 3)
    assert found.min_timestamp_ms == found.max_timestamp_ms


def test_ranges_no_object_can_hold_are_refused() -> None:
    for log_bytes in (0, -1, 2**31):
        with pytest.raises(InvalidRequest):
            SegmentScanner(0, log_bytes)
    log = bytearray()
    for n, batch in enumerate(batches(0, [1] * (RANGES_MAX + 1), value_bytes=2)):
        one = bytearray(batch)
        stamp(one, n, n)
        log += one
    with pytest.raises(InvalidRequest):
        scan(bytes(log), 0, RANGES_MAX + 1)


# ── the footer ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_an_object_tells_all_about_itself() -> None:
    """Log bytes unchanged from 0, footer parsed from a tail of any length, manifest entry rebuilt from it alone."""
    made = segment_object(1000, SIZES, epoch=3)
    assert made.data.startswith(made.log)
    for extra in (0, 1, 500, len(made.log)):
        tail = made.data[len(made.log) - extra :]
        footer = SegmentFooter.parse(tail, len(made.data))
        assert entry_from_footer(footer, made.key) == made.entry
    entry = made.entry
    assert (entry.base_offset, entry.end_offset, entry.records) == (1000, 1000 + sum(SIZES), sum(SIZES))
    assert (entry.log_bytes, entry.object_bytes) == (len(made.log), len(made.data))
    assert entry.crc32c == crc32c(made.data) == object_crc32c(made.scan.log_crc32c, made.data[len(made.log) :])
    assert entry.epochs == ((3, 1000),)
    assert made.footer.lineage.entries == (EpochStart(0, 0), EpochStart(3, 1000))
    assert made.footer.producer_state().producers[0].producer_id == 7
    assert made.footer.offset_index.to_bytes() == made.scan.offset_index.to_bytes()
    assert footer_start(made.data[-TRAILER_SIZE:], len(made.data)) == len(made.log)


def test_decided_transactions_have_their_format_now() -> None:
    log = b"".join(batches(0, [5]))
    key = SegmentKey(TOPIC_ID, 0, 0, 1, UUID(int=1, version=4))
    decided = (
        DecidedTransaction(9, 0, 1, 3, TransactionOutcome.ABORTED),
        DecidedTransaction(10, 2, 4, 70, TransactionOutcome.COMMITTED),
    )
    footer = build_footer(
        key,
        "t",
        scan(log, 0, 5),
        lineage=LeaderEpochs(),
        producers=ProducerState(5, ()),
        transactions=decided,
    )
    assert SegmentFooter.parse(footer, len(log) + len(footer)).transactions == decided


def test_producer_state_is_of_the_end() -> None:
    """C8: Kafka's snapshot beside a segment is the state before it; the footer takes only the state at the end."""
    log = b"".join(batches(0, [5]))
    key = SegmentKey(TOPIC_ID, 0, 0, 1, UUID(int=1, version=4))
    with pytest.raises(AssertionError):
        build_footer(key, "t", scan(log, 0, 5), lineage=LeaderEpochs(), producers=ProducerState(0, ()))


def test_one_tail_get_holds_a_typical_footer() -> None:
    """128 MiB, one producer: index entries at most every 64 KiB make 2 048 × 20 bytes; the tail asked for is 48 KiB."""
    offset_entries, time_entries = 2048 * 8, 2048 * 12
    rest = 32 * 4 + 191 + 1024 + 7 * SECTION_HEADER_SIZE + TRAILER_SIZE
    assert offset_entries + time_entries + rest < tail_bytes(128 * 1024 * 1024) == 48 * 1024
    assert tail_bytes(1000) == 1000 and tail_bytes(2**31) <= 4 * 1024 * 1024


def test_an_object_under_another_key_is_noticed() -> None:
    """Objects swapped between keys: each is whole, neither is what its key says (C13, C9)."""
    one, two = segment_object(0, [5], n=1), segment_object(0, [5], n=2)
    other_topic = SegmentKey(UUID(int=5), 0, 0, 1, one.key.uuid)
    for key in (two.key, other_topic):
        with pytest.raises(Corrupt):
            entry_from_footer(one.footer, key)


def test_design_c12_any_flipped_bit_of_a_footer_is_noticed() -> None:
    made = segment_object(0, [2, 3])
    tail = bytearray(made.data[len(made.log) :])
    for at in range(len(tail)):
        tail[at] ^= 1 << (at % 8)
        with pytest.raises((Corrupt, NewerFormat)):
            SegmentFooter.parse(bytes(tail), len(made.data))
        tail[at] ^= 1 << (at % 8)


def test_truncated_objects_are_noticed() -> None:
    made = segment_object(0, [2, 3])
    for cut in range(len(made.data)):
        with pytest.raises(Corrupt):
            SegmentFooter.parse(made.data[:cut], cut)
    with pytest.raises(Corrupt):
        SegmentFooter.parse(made.data[len(made.log) + 1 :], len(made.data))  # a tail that lacks a byte of the footer


def _sections(made_data: bytes, log_bytes: int) -> list[tuple[int, int, bytes]]:
    footer = made_data[log_bytes:]
    trailer = read_trailer(footer, len(made_data))
    found = read_sections(trailer, footer[: trailer.footer_length], Section)
    return [(kind, 0, bytes(payload)) for kind, payload in found.items()]


def _parse(sections: list[tuple[int, int, bytes]], log_bytes: int) -> SegmentFooter:
    footer = encode_footer(log_bytes, sections)
    return SegmentFooter.parse(footer, log_bytes + len(footer))


def test_unknown_sections_are_skipped_or_refused() -> None:
    """Optional: skipped wherever it stands. Required: the segment needs a newer program."""
    made = segment_object(0, SIZES)
    known = _sections(made.data, len(made.log))
    plain = _parse(known, len(made.log))
    for at in range(len(known) + 1):
        more = [*known[:at], (900, OPTIONAL, b"later"), *known[at:]]
        assert _parse(more, len(made.log)).statistics == plain.statistics
        with pytest.raises(NewerFormat):
            _parse([*known[:at], (900, 0, b"later"), *known[at:]], len(made.log))


def test_each_section_is_needed_once() -> None:
    made = segment_object(0, SIZES)
    known = _sections(made.data, len(made.log))
    for at in range(len(known)):
        with pytest.raises(Corrupt):
            _parse([*known[:at], *known[at + 1 :]], len(made.log))
        with pytest.raises(Corrupt):
            _parse([*known, known[at]], len(made.log))


HOSTILE = {
    Section.OFFSET_INDEX: [b"x", struct.pack(">ii", 10**6, 5), struct.pack(">ii", 5, 10**6), struct.pack(">ii", -1, 5)],
    Section.TIME_INDEX: [b"x" * 13, struct.pack(">qi", 1, 10**6), struct.pack(">qi", 2**62, 1)],
    Section.CHUNK_CRCS: [b"", b"\0" * 8, struct.pack(">III", 0, 1, 5), struct.pack(">II", 4096, 2**32 - 1)],
    Section.STATISTICS: [b"", b"{}", b"[" * 100_000, b"\xff"],
    Section.LEADER_EPOCHS: [b"x", b"0\n-1\n", b"0\n99999999999\n", b"1\n0\n"],
    Section.DECIDED_TRANSACTIONS: [b"", b"\xff\xff\xff\xff", struct.pack(">IqhqqB", 1, 1, 0, 5, 4, 1)],
}


@pytest.mark.parametrize(("kind", "n"), [(kind, n) for kind, found in HOSTILE.items() for n in range(len(found))])
def test_hostile_sections_are_corrupt(kind: Section, n: int) -> None:
    """Checksums all right, content forged: Corrupt (or refused as newer), nothing else, nothing huge."""
    made = segment_object(0, SIZES)
    forged = [(k, f, HOSTILE[kind][n] if k == kind else p) for k, f, p in _sections(made.data, len(made.log))]
    with pytest.raises((Corrupt, NewerFormat)):
        _parse(forged, len(made.log))


def test_hostile_producer_state_is_corrupt_when_asked_for() -> None:
    made = segment_object(0, SIZES)
    forged = [(k, f, b"zz" if k == Section.PRODUCER_STATE else p) for k, f, p in _sections(made.data, len(made.log))]
    with pytest.raises(Corrupt):
        _parse(forged, len(made.log)).producer_state()


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_survived_as_a_footer(data: bytes, more: int) -> None:
    with pytest.raises((Corrupt, NewerFormat)):
        SegmentFooter.parse(data, len(data) + more)


@given(st.data())
def test_forged_sections_are_survived(data: st.DataObject) -> None:
    """Right frame and checksums around random payloads and lengths."""
    sections = data.draw(
        st.lists(st.tuples(st.sampled_from([*Section, 900]), st.integers(0, 3), st.binary(max_size=60)), max_size=9)
    )
    with pytest.raises((Corrupt, NewerFormat)):
        _parse(sections, data.draw(st.integers(1, 2**40)))


def test_a_newer_object_is_named_as_such() -> None:
    made = segment_object(0, [2])
    covered = bytearray(made.data[-TRAILER_SIZE:-12])
    struct.pack_into(">H", covered, len(covered) - 4, 2)
    newer = made.data[:-TRAILER_SIZE] + bytes(covered) + struct.pack(">I", crc32c(covered)) + b"THERMSEG"
    with pytest.raises(NewerFormat):
        SegmentFooter.parse(newer, len(newer))


def test_a_range_need_not_be_one_local_file() -> None:
    """C5: replicas roll elsewhere; a range that begins inside a local segment gets indexes rebased to its own start."""
    all_batches = batches(0, SIZES)
    base = sum(SIZES[:3])
    made = object_of(all_batches[3:], base, sum(SIZES[3:]), 1, 1)
    assert made.footer.offset_index.base_offset == base
    assert made.footer.offset_index.lookup(base).position == 0
    assert len(made.log) > HEADER_SIZE
