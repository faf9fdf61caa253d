"""The producers of a log from its files: the newest readable snapshot, then the batches after it.
Our five-batch file is preferred to Kafka's `.snapshot` of the same offset. A snapshot that fails its CRC is skipped for
the next older one: the batches hold the rest. All functions block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotstore.file_names import PRODUCERS, SNAPSHOT, offset_file
from hotstore.local_files import producer_file_offsets
from hotstore.log.batch_walk import walk_headers
from hotstore.log.producer_state import Producers, ProducersAt
from hotstore.log.segment import IndexCache, Segment
from logformat.errors import Corrupt
from logformat.producer_snapshot import ProducerState, decode_kafka_snapshot, decode_producer_state
from logformat.record_batch import BatchHeader
from logformat.values import NewerFormat
from seams.files.disk import Directory, read_in


def read_producers_at(directory: Directory, offset: int) -> ProducerState | None:
    """The state in the files of `offset`; None if none is readable. Raises NewerFormat, OSError."""
    own = read_own_producers(directory, offset)
    if own is not None:
        return own
    try:
        data = read_in(directory, offset_file(offset, SNAPSHOT))
        return ProducerState(offset, decode_kafka_snapshot(data))
    except FileNotFoundError:
        return None
    except NewerFormat:
        raise
    except Corrupt:
        return None


def read_own_producers(directory: Directory, offset: int) -> ProducerState | None:
    """Our five-batch file of `offset`; None if it is missing, damaged or of another offset. Raises NewerFormat."""
    try:
        state = decode_producer_state(read_in(directory, offset_file(offset, PRODUCERS)))
    except FileNotFoundError:
        return None
    except NewerFormat:
        raise
    except Corrupt:
        return None
    return state if state.end_offset == offset else None


def proven_end(directory: Directory, names: Iterable[str]) -> int:
    """The greatest offset with a five-batch file, which proves that everything below was durable; 0 without any."""
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
) -> Producers:
    """The producers at exactly `end_offset`: the newest readable snapshot at or below it, then the headers of
    `segments`.

    They are empty at the first segment if no snapshot is readable. Replayed batches count as seen now. `passed`
    collects the state at each roll point after that snapshot: its files are missing or unreadable."""
    first = segments[0].base_offset
    producers = Producers(expiration_ms)
    replay_from = first
    for offset in producer_file_offsets(names):
        if first <= offset <= end_offset:
            state = read_producers_at(directory, offset)
            if state is not None:
                producers = Producers(expiration_ms, state.producers)
                replay_from = offset
                break
    for segment in segments:
        if passed is not None and replay_from < segment.base_offset <= end_offset:
            passed.append(producers.at(segment.base_offset))
        if segment.end_offset <= replay_from or segment.base_offset >= end_offset:
            continue
        position = 0 if replay_from <= segment.base_offset else segment.locate(replay_from, cache).position
        for _, header in walk_headers(segment.file, position, segment.size):
            if header.base_offset >= end_offset:
                break
            replay(producers, header, now_ms)
    return producers


def replay(producers: Producers, header: BatchHeader, now_ms: int) -> None:
    """Record a batch that is in the log already."""
    if header.producer_id >= 0 and not header.is_control and header.base_sequence >= 0:
        producers.replay(header, now_ms)
