"""What a copy sends: every batch of an object is proved before its last byte leaves, and each byte is read once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstore.keys import SegmentKey
from coldstore.object_store import ChecksumRefused, ObjectStore, Upload
from coldstore.segments.segment_object import SegmentFooter, entry_from_footer
from coldstore.segments.segment_sections import FooterOutgrown
from coldstore.stores.directory import DirectoryStore
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.log.segment import SegmentInfo
from logformat.errors import Corrupt, Retryable
from logformat.gap import gap_batches
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import BatchRecord, ProducerEntry, ProducerState
from seams.files.disk import Buffer, File, FileRange, replace_file
from seams.rng import SeededRng
from tests.support.collector import without_collector
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, flush, new_log, seal
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.cold_objects import T0, batches
from tests.support.tier.cold_values import TOPIC_ID
from tests.support.workers import LoopWorkers
from tiering.copying.copy_plan import CopyRange
from tiering.copying.segment_body import PIECE_BYTES, ProvenBody, SegmentSource, checked_body, source_of

KEY = SegmentKey(TOPIC_ID, 0, 0, 1, UUID(int=7, version=4))
LINEAGE = LeaderEpochs((EpochStart(1, 0),))


class Range:
    """Batches in files of a disk, cut anywhere, and what is read of them."""

    def __init__(self, made: Sequence[bytes], end: int, *, files: int = 1, lineage: LeaderEpochs = LINEAGE) -> None:
        self.disk = CrashDisk()
        self.disk.make_dirs("/log")
        self.bytes_read = 0
        self.data = b"".join(made)
        cuts = [len(made) * n // files for n in range(files + 1)]
        ranges = []
        for number, (first, last) in enumerate(pairwise(cuts)):
            content = b"".join(made[first:last])
            file = self.disk.open(f"/log/{number}", write=True, create=True)
            file.write_at(0, [b"before", content])
            ranges.append(FileRange(self._counted(file), len(b"before"), len(content)))
        self.source = SegmentSource("events", ranges, 0, end, lineage, ProducerState(end, ()))

    def _counted(self, file: File) -> File:
        read_into = file.read_into

        def counted(position: int, buffer: memoryview) -> int:
            self.bytes_read += len(buffer)
            return read_into(position, buffer)

        file.read_into = counted  # type: ignore[method-assign]
        return file

    def flip(self, position: int, bit: int) -> None:
        """One bit of the first file."""
        self.disk.flip_bit("/log/0", len(b"before") + position, bit)


def taken(upload: Upload) -> bytes:
    """All of a body; what was handed out of a damaged one is in the failure's notes."""
    data = bytearray()
    try:
        for piece in upload.open():
            data += piece
    except Corrupt as damaged:
        damaged.add_note(str(len(data)))
        raise
    return bytes(data)


LARGE = batches(0, [40] * 40, value_bytes=2000)  # 3 MB: batches straddle pieces


@pytest.mark.parametrize("files", [1, 3])
def test_one_pass_makes_the_object_that_two_make(files: int) -> None:
    """The log bytes unchanged, the same statements about them, and an entry that the object alone gives back; only the
    filler differs. One pass reads each byte once, two twice."""
    once, twice = Range(LARGE, 1600, files=files), Range(LARGE, 1600, files=files)
    assert len(once.data) > 2 * PIECE_BYTES
    body = ProvenBody(KEY, once.source)
    data = taken(body.upload)
    assert data.startswith(once.data) and len(data) == body.upload.size
    assert crc32c(data) == body.upload.checksum() == body.entry.crc32c
    assert once.bytes_read == len(once.data)
    footer = SegmentFooter.parse(data[len(once.data) :], len(data))
    assert entry_from_footer(footer, KEY) == body.entry

    checked = checked_body(KEY, twice.source)
    old = taken(checked.upload)
    assert twice.bytes_read == 2 * len(once.data)
    assert (checked.upload.size, checked.upload.crc32c) == (len(old), crc32c(old))
    other = SegmentFooter.parse(old[len(once.data) :], len(old))
    assert other.statistics == footer.statistics and other.chunk_crcs == footer.chunk_crcs
    assert other.offset_index.to_bytes() == footer.offset_index.to_bytes()
    assert other.time_index.to_bytes() == footer.time_index.to_bytes()
    assert len(old) <= len(data) < len(old) + 7000


@pytest.mark.parametrize("one_pass", [True, False])
def test_a_body_that_nobody_holds_is_gone(one_pass: bool) -> None:
    """It holds files, indexes and producers of its range: none of them waits for Python's collector of cycles."""
    disk = CrashDisk()
    disk.make_dirs("/log")
    data = b"".join(LARGE)
    replace_file(disk, "/log/0", data)
    file = disk.open("/log/0")
    held = weakref.ref(file)
    source = SegmentSource("events", [FileRange(file, 0, len(data))], 0, 1600, LINEAGE, ProducerState(1600, ()))
    with without_collector():
        body = ProvenBody(KEY, source) if one_pass else checked_body(KEY, source)
        taken(body.upload)
        assert body.entry.crc32c == body.upload.checksum()
        del body, source, file
        assert held() is None


def test_a_source_that_is_let_go_keeps_no_file_open() -> None:
    """Whoever has it, in the middle of a pass: what is still to be read of it fails."""
    disk = CrashDisk()
    disk.make_dirs("/log")
    replace_file(disk, "/log/0", b"".join(LARGE))
    file = disk.open("/log/0")
    held = weakref.ref(file)
    source = SegmentSource("events", [FileRange(file, 0, file.size())], 0, 1600, LINEAGE, ProducerState(1600, ()))
    pieces = source.pieces()
    next(pieces)
    with without_collector():
        del file
        assert held() is not None
        source.release_files()
        assert held() is None
    with pytest.raises(OSError, match="closed"):
        next(pieces)


def test_a_body_that_is_opened_again_begins_anew() -> None:
    """A redirect to another region: the same bytes, and no checksum before the last of them was taken."""
    body = ProvenBody(KEY, Range(LARGE, 1600).source)
    first = taken(body.upload)
    pieces = body.upload.open()
    next(pieces)
    with pytest.raises(AssertionError, match="before every batch was proved"):
        body.upload.checksum()
    assert taken(body.upload) == first and body.upload.checksum() == crc32c(first)


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize(
    "position",
    [3, 10, 15, 16, 18, 25, 60, 200, PIECE_BYTES - 1, PIECE_BYTES + 5, 2 * PIECE_BYTES, len(b"".join(LARGE)) - 1],
)
def test_a_damaged_batch_is_found_before_the_last_byte_leaves(position: int, one_pass: bool) -> None:
    """C12: in whichever piece the flipped bit lies, header or records, the body ends with Corrupt and no store can have
    all of it: the footer was never handed out."""
    local = Range(LARGE, 1600)
    local.flip(position, 2)
    with pytest.raises(Corrupt) as damaged:
        if one_pass:
            body = ProvenBody(KEY, local.source)
            taken(body.upload)
        else:
            checked_body(KEY, local.source)
    if one_pass:
        assert int(damaged.value.__notes__[0]) <= len(local.data) < body.upload.size
        with pytest.raises(AssertionError, match="before every batch was proved"):
            _ = body.entry


def test_a_file_that_ends_early_is_damage() -> None:
    """The log says it holds more: nothing whole leaves."""
    local = Range(LARGE, 1600)
    local.disk.open("/log/0", write=True).truncate(len(local.data) - 100)
    with pytest.raises(Corrupt, match="the log says it holds more"):
        taken(ProvenBody(KEY, local.source).upload)


@pytest.mark.parametrize("store_name", ["memory", "directory"])
@pytest.mark.parametrize("one_pass", [True, False])
async def test_a_bit_that_flips_between_proof_and_store_is_refused(one_pass: bool, store_name: str) -> None:
    """The checksum is of what was proved, the store's of what came: they differ, and there is no object."""
    local = Range(LARGE, 1600)
    body = ProvenBody(KEY, local.source) if one_pass else checked_body(KEY, local.source)

    def flipped() -> Iterator[Buffer]:
        for number, piece in enumerate(body.upload.open()):
            sent = bytearray(piece)
            sent[-1] ^= number == 1
            yield sent

    store: ObjectStore = MemoryStore()
    if store_name == "directory":
        local.disk.make_dirs("/bucket")
        store = DirectoryStore(local.disk, LoopWorkers(), "/bucket", SeededRng(1))
    wire = Upload(body.upload.size, body.upload.crc32c, flipped, body.upload.sealed)
    with pytest.raises(ChecksumRefused):
        await store.put_segment(str(KEY), wire)
    assert [info async for info in store.list("")] == []
    await store.put_segment(str(KEY), body.upload)
    assert (await store.head(str(KEY))).size == body.upload.size


def test_a_footer_that_outgrows_its_room_is_told() -> None:
    """More declared gaps than anybody counted on: no object in one pass, the right one in two."""
    made: list[bytes] = []
    for n in range(120):
        made += [*batches(20 * n, [10]), *gap_batches(20 * n + 10, 20 * n + 20, 1)]
    local = Range(made, 2400)
    body = ProvenBody(KEY, local.source)
    handed = 0
    with pytest.raises(FooterOutgrown, match="was announced"):
        for piece in body.upload.open():
            handed += len(piece)
    assert handed == len(local.data) < body.upload.size
    checked = checked_body(KEY, local.source)
    data = taken(checked.upload)
    assert len(checked.entry.gaps) == 120 and crc32c(data) == checked.entry.crc32c


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    value_bytes=st.sampled_from([2, 40, 3000, 70_000]),
    producers=st.integers(0, 20),
    epochs=st.lists(st.integers(1, 40), max_size=6),
)
def test_a_footers_room_is_enough(sizes: list[int], value_bytes: int, producers: int, epochs: list[int]) -> None:
    """Whatever the batches, epochs and producers of a range are, what was announced holds the footer."""
    if value_bytes > 3000:
        sizes = sizes[:4]
    made, base, lineage = [], 0, [EpochStart(1, 0)]
    for number, size in enumerate(sizes):
        if epochs and number and number % 3 == 0:
            lineage.append(EpochStart(lineage[-1].epoch + epochs.pop(), base))
        made += batches(base, [size], epoch=lineage[-1].epoch, value_bytes=value_bytes)
        base += size
    local = Range(made, base, lineage=LeaderEpochs(tuple(lineage)))
    state = ProducerState(
        base, tuple(ProducerEntry(n, 0, (BatchRecord(0, 0, base - 1, base - 1, T0),), T0) for n in range(producers))
    )
    source = SegmentSource("t" * 249, local.source.ranges, 0, base, local.source.lineage, state)
    body = ProvenBody(KEY, source)
    data = taken(body.upload)
    assert entry_from_footer(SegmentFooter.parse(data[len(local.data) :], len(data)), KEY) == body.entry


def test_a_footers_room_is_enough_where_its_indexes_are_packed() -> None:
    """Batches of every size from 4 to 30 KB in no order: more than enough entries for section 8."""
    made, base, value = [], 0, 4000
    for _ in range(700):
        value = 4000 + value * 7919 % 26_000
        made += batches(base, [3], value_bytes=value // 3)
        base += 3
    local = Range(made, base)
    body = ProvenBody(KEY, local.source)
    data = taken(body.upload)
    footer = SegmentFooter.parse(data[len(local.data) :], len(data))
    assert len(footer.offset_index) > 256 and entry_from_footer(footer, KEY) == body.entry
    assert len(data) - len(local.data) < len(local.data) / 500


def test_a_range_that_begins_below_the_log_start_is_copied_until_its_segment_is_deleted() -> None:
    """DeleteRecords may end within a segment. The copier then copies the whole segment (seeds 5004 and 9027)."""
    _, log = new_log(CrashDisk(), LogConfig(tiered=True, segment_bytes=600))
    while len(log.sealed_segments()) < 2:
        append(log, batch(2, size=60))
    flush(log)
    seal(log)
    first = log.sealed_segments()[0]
    wanted = CopyRange(0, first.end_offset, first.bytes)
    log.advance_log_start(1)
    source = source_of(log, "orders", wanted, log.epochs)
    assert sum(found.length for found in source.ranges) == first.bytes
    log.advance_log_start(first.end_offset)
    log.delete_local_before(first.end_offset)
    with pytest.raises(Retryable, match="was deleted"):
        source_of(log, "orders", wanted, log.epochs)


def test_a_segment_may_be_deleted_while_a_worker_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it looked twice. A deletion in between ended the job with an IndexError."""
    _, log = new_log(CrashDisk(), LogConfig(tiered=True, segment_bytes=600))
    while len(log.sealed_segments()) < 2:
        append(log, batch(2, size=60))
    flush(log)
    seal(log)
    first = log.sealed_segments()[0]
    look = PartitionLog.segments_between

    def deleted_meanwhile(self: PartitionLog, start: int, end: int) -> list[SegmentInfo]:
        found = look(self, start, end)
        self.advance_log_start(first.end_offset)
        self.delete_local_before(first.end_offset)
        return found

    monkeypatch.setattr(PartitionLog, "segments_between", deleted_meanwhile)
    source = source_of(log, "orders", CopyRange(0, first.end_offset, first.bytes), log.epochs)
    assert sum(found.length for found in source.ranges) == first.bytes


def test_a_range_whose_last_segment_was_merged_meanwhile_is_planned_again() -> None:
    """Compaction may merge it with the next one, so no segment ends where the range does."""
    _, log = new_log(CrashDisk(), LogConfig(tiered=True, segment_bytes=600))
    while len(log.sealed_segments()) < 1:
        append(log, batch(2, size=60))
    flush(log)
    seal(log)
    with pytest.raises(Retryable, match="compaction merged"):
        source_of(log, "orders", CopyRange(0, 2, 100), log.epochs)
