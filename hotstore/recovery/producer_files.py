"""Restores the producers of a log from its files: the newest readable producer file with five batches, then the batches
after it.

Open transactions are included. A marker's body shows which transaction it ends (TX25). If the high watermark is below
the newest file, transactions with a marker at or above the high watermark are searched from an older file on. Kafka's
`.snapshot` has one batch of each producer, so it is read only if there is no five-batch file. If a file has a wrong
CRC, the next older file and the batches after it are used. All functions block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hotstore.file_names import PRODUCERS, SNAPSHOT, TRANSACTION_INDEX, offset_file
from hotstore.local_files import producer_file_offsets
from hotstore.log.batch_walk import walk_headers
from hotstore.log.log_config import NEVER
from hotstore.log.producer_state import Producers, ProducersAt
from hotstore.log.segment import IndexCache, Segment
from hotstore.log.transactions import EndedTransaction
from logformat.compaction.filler import looks_like_filler
from logformat.errors import Corrupt
from logformat.indexes.transaction_index import AbortedIndex, AbortedTransaction, decode_aborted
from logformat.producer_snapshot import ProducerState, decode_kafka_snapshot, decode_producer_state
from logformat.record_batch import HEADER_SIZE, INT64_MAX, BatchHeader, check_stored, read_header
from logformat.transaction_marker import TransactionMarker, marker_of, may_be_marker
from logformat.values import NewerFormat
from seams.files.disk import Directory, read_in


def read_producers_at(directory: Directory, offset: int) -> ProducerState | None:
    """The state in the files of `offset`; None if no file is readable. Raises NewerFormat, OSError."""
    own = read_own_producers(directory, offset)
    if own is not None:
        return own
    try:
        data = read_in(directory, offset_file(offset, SNAPSHOT))
        return ProducerState(offset, decode_kafka_snapshot(data))
    except NewerFormat:
        raise
    except (FileNotFoundError, Corrupt):
        return None


def read_own_producers(directory: Directory, offset: int) -> ProducerState | None:
    """The content of the five-batch file of `offset`; None if it is missing, damaged or of another offset. Raises
    NewerFormat.
    """
    try:
        state = decode_producer_state(read_in(directory, offset_file(offset, PRODUCERS)))
    except NewerFormat:
        raise
    except (FileNotFoundError, Corrupt):
        return None
    return state if state.end_offset == offset else None


def proven_end(directory: Directory, names: Iterable[str]) -> int:
    """The greatest offset with a readable five-batch file; 0 if there is none. The file proves that all records below
    that offset were durable."""
    for offset in producer_file_offsets(names, (PRODUCERS,)):
        if read_own_producers(directory, offset) is not None:
            return offset
    return 0


def load_producers(
    directory: Directory,
    names: Sequence[str],
    segments: Sequence[Segment],
    end_offset: int,
    expiration_ms: int,
    now_ms: int,
    cache: IndexCache,
    passed: list[ProducersAt] | None = None,
    high_watermark: int = INT64_MAX,
) -> Producers:
    """The producers at exactly `end_offset`: from the newest readable file at or below it, then from the headers of
    `segments`.

    If no file is readable, the state is empty at the first segment and all headers are read. Replayed batches count as
    seen now. `passed` gets the state at each roll point after that file, because the files of these roll points are
    missing or unreadable. Transactions with a marker at or above `high_watermark` still hold back the last stable
    offset (TX21)."""
    first = segments[0].base_offset
    bases = {segment.base_offset for segment in segments}
    state = _newest(directory, names, bases, first, end_offset)
    entries = () if state is None else state.producers
    replay_from = first if state is None else state.end_offset
    ended: Sequence[EndedTransaction] = ()
    if replay_from > high_watermark and any(entry.coordinator_epoch >= 0 for entry in entries):
        older = _newest(directory, names, bases, first, high_watermark)
        before = Producers(NEVER, () if older is None else older.producers)
        since = first if older is None else older.end_offset
        _replay_between(before, segments, since, replay_from, now_ms, cache)
        ended = [one for one in before.transactions.ended_below(replay_from) if one.marker_offset >= high_watermark]
    producers = Producers(expiration_ms, entries, ended)
    _replay_between(producers, segments, replay_from, end_offset, now_ms, cache, passed)
    return producers


def _replay_between(
    producers: Producers,
    segments: Sequence[Segment],
    start: int,
    end: int,
    now_ms: int,
    cache: IndexCache,
    passed: list[ProducersAt] | None = None,
) -> None:
    """Replay the batches in [start, end). A batch begins at `start`."""
    for segment in segments:
        if passed is not None and start < segment.base_offset <= end:
            passed.append(producers.at(segment.base_offset))
        if segment.end_offset <= start or segment.base_offset >= end:
            continue
        position = 0 if start <= segment.base_offset else segment.locate(start, cache).position
        for _ in _replay_segment(producers, segment, position, end, now_ms):
            pass


def _replay_segment(
    producers: Producers, segment: Segment, position: int, end_offset: int, now_ms: int
) -> Iterator[AbortedTransaction]:
    """Replay the batches from `position` on that begin below `end_offset`. Yields the transactions that their markers
    aborted."""
    for at, header in walk_headers(segment.file, position, segment.size):
        if header.base_offset >= end_offset:
            break
        if not may_be_marker(header):
            replay(producers, header, now_ms)
            continue
        marker = marker_of(segment.file.read_at(at, header.size))
        if marker is not None and (aborted := replay_marker(producers, header, marker, now_ms)) is not None:
            yield aborted


def load_aborted(segment: Segment, cache: IndexCache) -> AbortedIndex | None:
    """The aborted transactions of a sealed segment from its `.txnindex`; None if there are none or the file does not
    exist.

    The caller knows that the file was written if the segment has aborted transactions. It has no checksum, so the log
    must not contradict it. Raises Corrupt, NewerFormat."""
    try:
        data = read_in(segment.directory, segment.name_of(TRANSACTION_INDEX))
    except FileNotFoundError:
        return None
    found = AbortedIndex(decode_aborted(segment.base_offset, data))
    for entry in found:
        if entry.last_offset >= segment.end_offset or _contradicts_batches(segment, entry, cache):
            raise Corrupt(f"{segment.name_of(TRANSACTION_INDEX)}: the log has no transaction {entry}")
    return found if len(found) else None


def _contradicts_batches(segment: Segment, entry: AbortedTransaction, cache: IndexCache) -> bool:
    """Whether the log has another batch than the transaction's marker or first batch at their offsets. Damage of the
    log is no contradiction. A cleaned segment may have a filler for the first batch."""
    try:
        place = segment.locate(entry.last_offset, cache)
        batch = segment.file.read_at(place.position, place.size)
        header = check_stored(batch, 0, len(batch))
        marker = marker_of(batch)
        if marker is None or marker.is_commit or marker.producer_id != entry.producer_id:
            return True
        if header.base_offset != entry.last_offset:
            return True
        if entry.first_offset < segment.base_offset:
            return False
        place = segment.locate(entry.first_offset, cache)
        first = read_header(segment.file.read_at(place.position, HEADER_SIZE))
        begins = (first.base_offset, first.producer_id) == (entry.first_offset, entry.producer_id)
        if (begins and not first.is_control) or looks_like_filler(first):
            return False
        check_stored(segment.file.read_at(place.position, place.size), 0, place.size)
    except Corrupt:
        return False
    return True


def find_aborted(
    directory: Directory, names: Sequence[str], segments: Sequence[Segment], segment: Segment, cache: IndexCache
) -> AbortedIndex | None:
    """The aborted transactions of a segment whose `.txnindex` is missing or damaged, found in the log itself."""
    before = load_producers(directory, names, segments, segment.base_offset, NEVER, 0, cache)
    found = AbortedIndex(_replay_segment(before, segment, 0, segment.end_offset, 0))
    return found if len(found) else None


def _newest(
    directory: Directory, names: Sequence[str], bases: Collection[int], first: int, end_offset: int
) -> ProducerState | None:
    """The state in the newest readable five-batch file; without one, that in Kafka's newest `.snapshot`. A newer
    `.snapshot` is not used: after a power cut it may be the only one of the two files. With its one batch per producer
    a resend of an earlier batch would fail.

    A five-batch file is used only at the base of a segment. The reason is that Kafka, if it runs on this directory,
    truncates a log without removing these files.
    """
    offsets = [offset for offset in producer_file_offsets(names) if first <= offset <= end_offset]
    for offset in offsets:
        if offset in bases and (own := read_own_producers(directory, offset)) is not None:
            return own
    for offset in offsets:
        if (state := read_producers_at(directory, offset)) is not None:
            return state
    return None


def replay(producers: Producers, header: BatchHeader, now_ms: int) -> None:
    """Note a batch that is in the log already, unless it is a control batch."""
    if header.producer_id >= 0 and not header.is_control and (header.base_sequence >= 0 or header.is_transactional):
        producers.replay(header, now_ms)


def replay_marker(
    producers: Producers, header: BatchHeader, marker: TransactionMarker, now_ms: int
) -> AbortedTransaction | None:
    """Note a marker that is in the log already. Returns the transaction that it aborted."""
    return producers.end_transaction(marker, header.base_offset, now_ms)
