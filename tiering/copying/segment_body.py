"""Body of a copied object: a range's log bytes, with every batch checked, then the footer. There are two ways to read
it:

- `ProvenBody`: one pass. Each piece is checked and sent from the same buffer. The size is announced before the bytes
  (`footer_room`), the checksum after them.
- `checked_body`: two passes, for stores that need the checksum first and for a footer larger than its announced size.

The last bytes are sent only after every batch was checked, so a damaged range never becomes an object. Memory is one
piece of 1 MiB. Everything blocks: call it in a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import RemoteSegment
from coldstore.object_store import Upload
from coldstore.segments.footer_room import footer_room
from coldstore.segments.segment_object import DecidedTransaction, build_footer, object_crc32c
from coldstore.segments.segment_scanner import Scan, SegmentScanner, interval_of
from hotstore.log.partition_log import PartitionLog
from logformat.compaction.filler import FILLER_BYTES_MAX, filler_from
from logformat.errors import Corrupt, Retryable
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.indexes.transaction_index import AbortedTransaction
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.record_batch import read_header
from seams.crash_points import reach
from seams.files.disk import Buffer, ClosedFile, FileRange
from tiering.copying.copy_plan import CopyRange
from tiering.copying.footer_transactions import decided, open_in

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20


class RangeChanged(Retryable):
    """The local log no longer has the segments for which the copy was planned. The copy is planned again."""


class SegmentSource(msgspec.Struct, frozen=True):
    """A range of one log: the location of its bytes, and the other content of its footer. Expired files keep their disk
    space until `release_files`."""

    topic: str
    ranges: list[FileRange]
    start_offset: int
    end_offset: int
    lineage: LeaderEpochs
    producers: ProducerState
    transactions: tuple[DecidedTransaction, ...] = ()
    indexes: tuple[OffsetIndex, TimeIndex] | None = None
    """The local log's indexes, if dense enough to predict the footer's length."""
    head: bytes = b""
    """Log bytes before those of `ranges`: the rest of a filler that begins below `start_offset`."""

    @property
    def log_bytes(self) -> int:
        return len(self.head) + sum(r.length for r in self.ranges)

    def scanner(self) -> SegmentScanner:
        return SegmentScanner(self.start_offset, self.log_bytes, lineage=self.lineage)

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in order, in one buffer: a piece is valid until the next one is requested."""
        if self.head:
            yield memoryview(self.head)
        lengths = [r.length for r in self.ranges]
        buffer = memoryview(bytearray(min(PIECE_BYTES, max(lengths, default=0))))
        for number, length in enumerate(lengths):
            done = 0
            while done < length:
                piece = buffer[: min(PIECE_BYTES, length - done)]
                self._read(number, done, piece)
                yield piece
                done += len(piece)

    def _read(self, number: int, done: int, piece: memoryview) -> None:
        found = self.ranges[number]  # read for each piece: `release_files` replaces it
        if found.file.read_into(found.position + done, piece) != len(piece):
            end = found.position + found.length
            raise Corrupt(f"{found.file.path}: ends before position {end}; the log says it holds more")

    def release_files(self) -> None:
        """The copy ended: drop the files. An abandoned upload that is still sending fails at its next piece.

        This is needed because an error's traceback may hold the source until the garbage collector runs.
        """
        self.ranges[:] = [replace(each, file=ClosedFile(each.file.path)) for each in self.ranges]

    def footer(self, key: SegmentKey, scan: Scan, size: int | None = None) -> bytes:
        return build_footer(
            key,
            self.topic,
            scan,
            lineage=self.lineage,
            producers=self.producers,
            transactions=self.transactions,
            size=size,
        )


def source_of(
    local: PartitionLog,
    topic: str,
    wanted: CopyRange,
    lineage: LeaderEpochs,
    aborted: Sequence[AbortedTransaction] = (),
) -> SegmentSource:
    """Find the bytes of the range, and read the other input of the footer. `aborted`: transactions that overlap the
    range; all transactions that began in it are decided (TX5). Raises Corrupt, OSError, RangeChanged."""
    ranges: Sequence[FileRange] = local.batch_ranges(wanted.start_offset, wanted.end_offset)
    segments = local.segments_between(wanted.start_offset, wanted.end_offset)
    if not segments or segments[0].base_offset > wanted.start_offset:
        raise RangeChanged(
            f"{local.path}: the segment of offset {wanted.start_offset} was deleted before the copy began"
        )
    if segments[-1].end_offset != wanted.end_offset:
        raise RangeChanged(f"{local.path}: compaction merged the segment that ends at {wanted.end_offset}")
    producers = local.producer_snapshot_at(wanted.end_offset)
    if producers is None:
        # Recovery writes a snapshot for every roll point, so the file was removed. Copying the records matters more
        # than detecting resent batches.
        log.warning(
            "%s: the producer snapshot of offset %d is missing, so after a lost disk a batch that is resent may "
            "be appended twice",
            local.path,
            wanted.end_offset,
        )
        producers = ProducerState(wanted.end_offset, ())
    transactions = decided(aborted, producers, local.markers_of(open_in(producers), wanted.end_offset))
    head, ranges = _from_offset(ranges, wanted.start_offset)
    indexes = None
    if len(ranges) == 1 and not head:  # always true of a range that `next_copy` chose
        found = local.batch_indexes(ranges[0], interval_of(ranges[0].length) // 4)
        indexes = None if found is None else (found.offsets, found.times)
    return SegmentSource(
        topic, list(ranges), wanted.start_offset, wanted.end_offset, lineage, producers, transactions, indexes, head
    )


def _from_offset(ranges: Sequence[FileRange], offset: int) -> tuple[bytes, Sequence[FileRange]]:
    """The bytes from `offset` on, as new bytes before those of the ranges. While the topic was not tiered, local
    compaction may have put a filler over the bucket's end; an object begins with the rest of it. *Blocking*."""
    first = ranges[0]
    start = memoryview(first.file.read_at(first.position, min(first.length, FILLER_BYTES_MAX)))
    cut = filler_from(start, offset)
    if cut is start:
        return b"", ranges
    taken = read_header(start).size
    left = replace(first, position=first.position + taken, length=first.length - taken)
    return bytes(cut[: len(cut) - (len(start) - taken)]), [left, *ranges[1:]] if left.length else ranges[1:]


class Body(NamedTuple):
    """An object to upload. `entry`: the manifest's entry, after all bytes were read."""

    upload: Upload
    entry: RemoteSegment


class ProvenBody:
    """One pass over `source`. One upload at a time; each `open` starts from the beginning. Create it in a worker:
    computing the footer's room takes 15 ms for 128 MiB of log."""

    def __init__(self, key: SegmentKey, source: SegmentSource) -> None:
        self._key = key
        self._source = source
        self._room = footer_room(
            key,
            source.topic,
            source.end_offset,
            source.log_bytes,
            lineage=source.lineage,
            producers=source.producers,
            transactions=source.transactions,
            indexes=source.indexes,
        )
        self._entry: RemoteSegment | None = None

    @property
    def upload(self) -> Upload:
        return Upload(self._source.log_bytes + self._room, None, self._pieces, lambda: self.entry.crc32c)

    @property
    def entry(self) -> RemoteSegment:
        """The manifest's entry, after all bytes were read."""
        assert self._entry is not None, "asked before every batch was proved"
        return self._entry

    def _pieces(self) -> Iterator[Buffer]:
        """Raises Corrupt with the offset of the first damaged batch, FooterOutgrown, OSError."""
        self._entry = None
        scanner = self._source.scanner()
        for piece in self._source.pieces():
            scanner.feed(piece)
            yield piece
        scan = scanner.finish(self._source.end_offset)
        footer = self._source.footer(self._key, scan, self._room)
        reach("copy.checked")
        self._entry = entry_of(self._key, scan, footer, len(self._source.transactions))
        yield footer


def check_local(
    ranges: Sequence[FileRange], start_offset: int, end_offset: int, lineage: LeaderEpochs
) -> Iterator[bool]:
    """Check each batch of a local range, as before its copy: a step for each piece, which yields True. Raises Corrupt
    with the offset of the first damaged batch; OSError."""
    source = SegmentSource("", list(ranges), start_offset, end_offset, lineage, ProducerState(end_offset, ()))
    scanner = source.scanner()
    for piece in source.pieces():
        scanner.feed(piece)
        yield True
    if scanner.next_offset != end_offset:
        raise Corrupt(f"{ranges[-1].file.path}: its batches end at offset {scanner.next_offset}, not at {end_offset}")


def checked_body(key: SegmentKey, source: SegmentSource) -> Body:
    """First pass: check the range's bytes and make the footer and manifest entry.

    Raises Corrupt with the offset of the first damaged batch; OSError."""
    scanner = source.scanner()
    for piece in source.pieces():
        scanner.feed(piece)
    scan = scanner.finish(source.end_offset)
    footer = source.footer(key, scan)
    entry = entry_of(key, scan, footer, len(source.transactions))

    def again() -> Iterator[Buffer]:
        """The second pass. If bytes changed since the first pass, the upload's checksum fails."""
        yield from source.pieces()
        reach("copy.checked")
        yield footer

    return Body(Upload(entry.object_bytes, entry.crc32c, again), entry)


def entry_of(key: SegmentKey, scan: Scan, footer: bytes, decided_count: int) -> RemoteSegment:
    """The manifest's entry for an object of `scan`'s bytes and `footer`, with its number of decided transactions."""
    return RemoteSegment(
        uuid=key.uuid,
        base_offset=scan.base_offset,
        end_offset=scan.end_offset,
        leader_epoch=key.epoch,
        log_bytes=scan.log_bytes,
        object_bytes=scan.log_bytes + len(footer),
        records=scan.records,
        min_timestamp_ms=scan.min_timestamp_ms,
        max_timestamp_ms=scan.max_timestamp_ms,
        crc32c=object_crc32c(scan.log_crc32c, footer),
        epochs=scan.epochs,
        gaps=scan.gaps,
        decided=decided_count,
    )
