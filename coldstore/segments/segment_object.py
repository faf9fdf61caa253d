"""A segment object: unchanged log bytes from position 0, then a footer that describes them
(docs/formats/segment-object.md).

The indexes of a parsed footer point into the range and the log bytes. Its chunk CRCs cover exactly the log bytes. The
manifest's entry can be rebuilt from the footer and the object's key (`entry_from_footer`). Footer bytes are not
trusted: no memory is allocated for the counts in them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RemoteSegment, check_segment
from coldstore.segments.packed_indexes import is_worth_packing, pack, thinned, unpack
from coldstore.segments.segment_scanner import INDEX_INTERVAL_BYTES, Scan
from coldstore.segments.segment_sections import (
    OPTIONAL,
    TRAILER_SIZE,
    Section,
    Trailer,
    encode_footer,
    read_sections,
    read_trailer,
)
from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.indexes.transaction_index import AbortedIndex, AbortedTransaction
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerState, decode_producer_state, encode_producer_state

CHUNK_BYTES_MIN: Final = 1024
CHUNK_BYTES_MAX: Final = 64 * 1024 * 1024
_TAIL_REST_BYTES: Final = 8 * 1024  # sections beside the indexes: statistics, lineage, 100 producers
_INDEXED_BYTES: Final = 5  # bytes of both packed indexes for each index interval
_TAIL_BYTES_MAX: Final = 4 * 1024 * 1024

_CHUNKS: Final = struct.Struct(">II")  # chunk size, count; then count uint32
_TRANSACTIONS: Final = struct.Struct(">I")
_TRANSACTION: Final = struct.Struct(">qhqqB")
# A reader that does not know a required section must not serve the segment.
_OPTIONAL: Final = frozenset({Section.PACKED_INDEXES})
_REQUIRED: Final = frozenset(Section) - _OPTIONAL


class TransactionOutcome(IntEnum):
    """The end of a transaction: committed or aborted."""

    COMMITTED = 1
    ABORTED = 2


class DecidedTransaction(NamedTuple):
    """An aborted transaction, or any transaction whose marker is at or above the range's end (C4). Offsets are
    absolute."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    marker_offset: int
    outcome: TransactionOutcome


class Compacted(NamedTuple):
    """Statistics of an object that compaction wrote. `clean_end`: compaction read records up to it; later records below
    it superseded the removed ones. `replaces`: the objects of the same range that this object replaced. They may still
    exist, so a rebuilt manifest must name only one of them."""

    clean_end: int
    replaces: tuple[UUID, ...]


class SegmentStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics section (JSON): log, range, writer, and counts of the content.

    `log_crc32c`: CRC of the log bytes. Continued over the footer it is the CRC of the complete object."""

    topic: str
    topic_id: UUID
    partition: int
    uuid: UUID
    leader_epoch: int
    base_offset: int
    end_offset: int
    log_bytes: int
    log_crc32c: int
    batches: int
    records: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    gaps: tuple[tuple[int, int], ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    clean_end_offset: int | msgspec.UnsetType = msgspec.UNSET
    replaces: tuple[UUID, ...] | msgspec.UnsetType = msgspec.UNSET


_STATISTICS: Final = msgspec.json.Decoder(SegmentStatistics)
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def tail_bytes(object_bytes: int, log_bytes: int | None = None) -> int:
    """Number of bytes at the end to read, so that one GET has the footer. With `log_bytes` of the object's entry the
    number is exact. Without `log_bytes` it is nearly always enough (48 KiB of 128 MiB)."""
    wanted = _TAIL_REST_BYTES + _INDEXED_BYTES * (object_bytes // INDEX_INTERVAL_BYTES)
    if log_bytes is not None and object_bytes - log_bytes > TRAILER_SIZE:
        wanted = object_bytes - log_bytes
    return min(object_bytes, wanted, _TAIL_BYTES_MAX)


def footer_start(tail: bytes | memoryview, object_bytes: int) -> int:
    """Position of the footer's first byte in the object, read from the object's last bytes. Raises Corrupt,
    NewerFormat."""
    return read_trailer(tail, object_bytes).footer_position


def build_footer(
    key: SegmentKey,
    topic: str,
    scan: Scan,
    *,
    lineage: LeaderEpochs,
    producers: ProducerState,
    transactions: Sequence[DecidedTransaction] = (),
    size: int | None = None,
    compacted: Compacted | None = None,
) -> bytes:
    """The footer of the object `key` for the log bytes of `scan`.

    `lineage`: all leader epochs from the beginning of the log to the range's end. `producers`: the state at the range's
    end (C8). `size`: the size announced before the scan (`coldstore.segments.footer_room`). Raises FooterOutgrown if
    the footer is larger."""
    assert (key.base_offset, producers.end_offset) == (scan.base_offset, scan.end_offset), (key, producers.end_offset)
    offset_index, time_index, packed = scan.offset_index, scan.time_index, b""
    if is_worth_packing(offset_index, scan.log_bytes):
        packed = pack(offset_index, time_index)
        offset_index, time_index = thinned(offset_index, time_index)
    sections = {
        Section.OFFSET_INDEX: offset_index.to_bytes(),
        Section.TIME_INDEX: time_index.to_bytes(),
        **sections_beside_indexes(key, topic, scan, lineage, producers, transactions, compacted),
    }
    if packed:
        sections[Section.PACKED_INDEXES] = packed
    flags = {kind: OPTIONAL if kind in _OPTIONAL else 0 for kind in sections}
    return encode_footer(scan.log_bytes, [(kind, flags[kind], payload) for kind, payload in sections.items()], size)


def sections_beside_indexes(
    key: SegmentKey,
    topic: str,
    scan: Scan,
    lineage: LeaderEpochs,
    producers: ProducerState,
    transactions: Sequence[DecidedTransaction],
    compacted: Compacted | None = None,
) -> dict[Section, bytes]:
    """All sections except the indexes, in the order of `Section`."""
    statistics = SegmentStatistics(
        topic=topic,
        topic_id=key.topic_id,
        partition=key.partition,
        uuid=key.uuid,
        leader_epoch=key.epoch,
        base_offset=scan.base_offset,
        end_offset=scan.end_offset,
        log_bytes=scan.log_bytes,
        log_crc32c=scan.log_crc32c,
        batches=scan.batches,
        records=scan.records,
        min_timestamp_ms=scan.min_timestamp_ms,
        max_timestamp_ms=scan.max_timestamp_ms,
        gaps=scan.gaps,
        epochs=scan.epochs,
        clean_end_offset=msgspec.UNSET if compacted is None else compacted.clean_end,
        replaces=msgspec.UNSET if compacted is None else compacted.replaces,
    )
    return {
        Section.CHUNK_CRCS: _encode_chunks(scan.chunk_bytes, scan.chunk_crcs),
        Section.STATISTICS: _ENCODER.encode(statistics),
        Section.LEADER_EPOCHS: lineage.to_bytes(),
        Section.PRODUCER_STATE: encode_producer_state(producers),
        Section.DECIDED_TRANSACTIONS: _encode_transactions(transactions),
    }


def object_crc32c(log_crc32c: int, footer: bytes | memoryview) -> int:
    """CRC32C of the complete object: of the log bytes, then of `footer` (sections and trailer)."""
    return crc32c(footer, log_crc32c)


class SegmentFooter(msgspec.Struct, frozen=True):
    """A parsed footer. `producer_bytes` is decoded on demand, because readers of records do not need it."""

    statistics: SegmentStatistics
    offset_index: OffsetIndex
    time_index: TimeIndex
    chunk_bytes: int
    chunk_crcs: array[int]
    lineage: LeaderEpochs
    transactions: tuple[DecidedTransaction, ...]
    """Decided transactions, in the order of their markers."""
    aborted: AbortedIndex | None
    """The aborted ones among them; None: there are none."""
    producer_bytes: bytes
    log_bytes: int
    object_bytes: int
    crc32c: int
    """CRC32C of the whole object as written. It continues the log CRC of the statistics over the footer."""

    @classmethod
    def parse(cls, tail: bytes, object_bytes: int) -> SegmentFooter:
        """The footer of an object of `object_bytes` whose last bytes are `tail`. `tail` begins at `footer_start` or
        before.

        Raises Corrupt (also for a tail that is too short), NewerFormat."""
        trailer = read_trailer(tail, object_bytes)
        skip = len(tail) - trailer.footer_length - TRAILER_SIZE
        if skip < 0:
            raise Corrupt(
                f"segment footer: {len(tail)} bytes are there, but {trailer.footer_length + TRAILER_SIZE} are needed"
            )
        whole = memoryview(tail)[skip:]
        sections = read_sections(trailer, whole[: trailer.footer_length], frozenset(Section))
        missing = [kind.name for kind in Section if kind in _REQUIRED and kind not in sections]
        if missing:
            raise Corrupt(f"segment footer has no section {', '.join(missing)}")
        statistics = _decode_statistics(sections[Section.STATISTICS], trailer)
        chunk_bytes, crcs = _decode_chunks(sections[Section.CHUNK_CRCS], trailer)
        offset_index, time_index = _decode_indexes(sections, statistics)
        transactions = _decode_transactions(sections[Section.DECIDED_TRANSACTIONS])
        footer = cls(
            statistics=statistics,
            offset_index=offset_index,
            time_index=time_index,
            chunk_bytes=chunk_bytes,
            chunk_crcs=crcs,
            lineage=LeaderEpochs.from_bytes(bytes(sections[Section.LEADER_EPOCHS])),
            transactions=transactions,
            aborted=_aborted_index(transactions),
            producer_bytes=bytes(sections[Section.PRODUCER_STATE]),
            log_bytes=trailer.log_bytes,
            object_bytes=object_bytes,
            crc32c=object_crc32c(statistics.log_crc32c, whole),
        )
        footer._check_indexes()
        return footer

    @property
    def nbytes(self) -> int:
        """Approximate memory, for a cache's budget."""
        indexes = 8 * len(self.offset_index) + 12 * len(self.time_index) + 4 * len(self.chunk_crcs)
        indexes += 200 * len(self.transactions)
        return indexes + len(self.producer_bytes) + 64 * len(self.lineage.entries) + 4096

    def producer_state(self) -> ProducerState:
        """The producers at the range's end. Raises Corrupt, NewerFormat."""
        state = decode_producer_state(self.producer_bytes)
        if state.end_offset != self.statistics.end_offset:
            end = self.statistics.end_offset
            raise Corrupt(f"segment footer: its producer state ends at offset {state.end_offset}, the range at {end}")
        return state

    def check_key(self, key: SegmentKey) -> None:
        """Raise Corrupt if the object was written under another key: it was swapped or renamed, or is of another
        log."""
        said = self.statistics
        written = SegmentKey(said.topic_id, said.partition, said.base_offset, said.leader_epoch, said.uuid)
        if written != key:
            raise Corrupt(f"object {key} was written as {written}: objects were swapped or renamed")

    def _check_indexes(self) -> None:
        said = self.statistics
        last, newest = self.offset_index.last, self.time_index.last
        if last.offset >= said.end_offset or last.position >= self.log_bytes or newest.offset >= said.end_offset:
            raise Corrupt(f"segment footer of {said.base_offset}: an index points beyond the range")
        if newest.timestamp > said.max_timestamp_ms:
            raise Corrupt(f"segment footer of {said.base_offset}: the time index exceeds the greatest timestamp")


def entry_from_footer(footer: SegmentFooter, key: SegmentKey) -> RemoteSegment:
    """The manifest's entry for the object `key`, rebuilt from the object alone. Raises Corrupt."""
    footer.check_key(key)
    said = footer.statistics
    segment = RemoteSegment(
        uuid=said.uuid,
        base_offset=said.base_offset,
        end_offset=said.end_offset,
        leader_epoch=said.leader_epoch,
        log_bytes=footer.log_bytes,
        object_bytes=footer.object_bytes,
        records=said.records,
        min_timestamp_ms=said.min_timestamp_ms,
        max_timestamp_ms=said.max_timestamp_ms,
        crc32c=footer.crc32c,
        epochs=said.epochs,
        gaps=said.gaps,
        decided=len(footer.transactions),
    )
    check_segment(segment)
    return segment


def _decode_indexes(sections: Mapping[int, memoryview], said: SegmentStatistics) -> tuple[OffsetIndex, TimeIndex]:
    """The packed indexes if the footer has them: the other sections then have only thin indexes, for older readers."""
    packed = sections.get(Section.PACKED_INDEXES)
    if packed is not None:
        return unpack(packed, said.base_offset, said.log_bytes)
    offset_index = OffsetIndex(said.base_offset, bytes(sections[Section.OFFSET_INDEX]))
    return offset_index, TimeIndex(said.base_offset, bytes(sections[Section.TIME_INDEX]))


def _decode_statistics(payload: memoryview, trailer: Trailer) -> SegmentStatistics:
    try:
        said = _STATISTICS.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise Corrupt(f"segment footer: statistics are not readable: {broken}") from broken
    if said.log_bytes != trailer.log_bytes or not 0 <= said.base_offset < said.end_offset < 2**63:
        raise Corrupt(
            f"segment footer: statistics of [{said.base_offset}, {said.end_offset}), {said.log_bytes} bytes are out of "
            "range or do not match the trailer"
        )
    if not 0 <= said.log_crc32c < 2**32:
        raise Corrupt(f"segment footer of {said.base_offset}: log CRC {said.log_crc32c} is out of range")
    return said


def _encode_chunks(chunk_bytes: int, crcs: Sequence[int]) -> bytes:
    return _CHUNKS.pack(chunk_bytes, len(crcs)) + struct.pack(f">{len(crcs)}I", *crcs)


def _decode_chunks(payload: memoryview, trailer: Trailer) -> tuple[int, array[int]]:
    if len(payload) < _CHUNKS.size:
        raise Corrupt(f"segment footer: {len(payload)} bytes are too few for chunk CRCs")
    chunk_bytes, count = _CHUNKS.unpack_from(payload)
    if not CHUNK_BYTES_MIN <= chunk_bytes <= CHUNK_BYTES_MAX or len(payload) != _CHUNKS.size + 4 * count:
        raise Corrupt(
            f"segment footer: chunk CRCs of {count} chunks of {chunk_bytes} bytes do not fit {len(payload)} bytes"
        )
    if count != -(-trailer.log_bytes // chunk_bytes):
        raise Corrupt(f"segment footer: {count} chunks of {chunk_bytes} do not add up to {trailer.log_bytes} log bytes")
    return chunk_bytes, array("I", struct.unpack_from(f">{count}I", payload, _CHUNKS.size))


def _encode_transactions(transactions: Sequence[DecidedTransaction]) -> bytes:
    packed = (_TRANSACTION.pack(*transaction) for transaction in transactions)
    return _TRANSACTIONS.pack(len(transactions)) + b"".join(packed)


def _aborted_index(transactions: Sequence[DecidedTransaction]) -> AbortedIndex | None:
    found = AbortedIndex(
        AbortedTransaction(of.producer_id, of.first_offset, of.marker_offset, of.marker_offset + 1)
        for of in transactions
        if of.outcome is TransactionOutcome.ABORTED
    )
    return found if len(found) else None


def _decode_transactions(payload: memoryview) -> tuple[DecidedTransaction, ...]:
    count = _TRANSACTIONS.unpack_from(payload)[0] if len(payload) >= _TRANSACTIONS.size else -1
    if len(payload) != _TRANSACTIONS.size + count * _TRANSACTION.size:
        raise Corrupt(f"segment footer: {count} decided transactions do not fit {len(payload)} bytes")
    decided: list[DecidedTransaction] = []
    for producer_id, epoch, first, marker, outcome in _TRANSACTION.iter_unpack(payload[_TRANSACTIONS.size :]):
        if outcome not in (TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED) or not 0 <= first <= marker:
            raise Corrupt(
                f"segment footer: transaction of producer {producer_id} at {first} with marker {marker} is not valid"
            )
        decided.append(DecidedTransaction(producer_id, epoch, first, marker, TransactionOutcome(outcome)))
    decided.sort(key=attrgetter("marker_offset"))
    if any(before.marker_offset == after.marker_offset for before, after in pairwise(decided)):
        raise Corrupt("segment footer: two transactions have the same marker")
    return tuple(decided)
