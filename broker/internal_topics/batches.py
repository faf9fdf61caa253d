"""Records of an internal topic, to and from batches. Pure. A batch counts only with a correct CRC. Control batches (a
gap, a marker) and transactional ones are skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import check_stored, walk
from logformat.records import Header, Record, encode_batch, iter_records

BATCH_BYTES_MAX: Final = 16 << 20  # of an append: the topic's max.message.bytes must not be below it
_REWRITE: Final[Header] = ("thermocline.rewrite", None)


class KeyValue(NamedTuple):
    """A record before it has an offset; no value is a tombstone."""

    key: bytes
    value: bytes | None

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value or b"")


def batch_of(records: Sequence[KeyValue], now_ms: int, base_offset: int = 0, *, begins_rewrite: bool = False) -> bytes:
    """One uncompressed batch (Kafka's offsets.topic.compression.codec is none too). `begins_rewrite`: marks its first
    record, from which on everything live follows."""
    stamped = [Record(base_offset + i, now_ms, key, value) for i, (key, value) in enumerate(records)]
    if begins_rewrite:
        stamped[0] = stamped[0]._replace(headers=(_REWRITE,))
    return encode_batch(stamped)


def is_begin_of_rewrite(batch: bytes) -> bool:
    """Whether a whole batch was made with `begins_rewrite`. Raises Corrupt."""
    check_stored(batch, 0, len(batch))
    first = next(iter_records(batch), None)
    return first is not None and _REWRITE in first.headers


def batches_in(data: bytes) -> Iterator[tuple[int, Iterator[KeyValue]]]:
    """For each batch: the offset after it, and its records with a key. Raises Corrupt, also for a wrong CRC or a
    truncated end. Control batches have no state. Transactional ones need their markers, which are not served here."""
    end = 0
    for position, header in walk(data):
        end = position + header.size
        check_stored(data, position, len(data))
        says_nothing = header.is_control or header.is_transactional
        yield header.next_offset, iter(()) if says_nothing else _records(data, position)
    if end < len(data):
        raise Corrupt(f"an internal topic: {len(data) - end} bytes behind the last whole batch")


def _records(data: bytes, position: int) -> Iterator[KeyValue]:
    return (KeyValue(r.key, r.value) for r in iter_records(data, position) if r.key is not None)


def chunks(records: Iterable[KeyValue], count_max: int, bytes_max: int) -> Iterator[list[KeyValue]]:
    """`records` in groups that make batches of bounded size (a larger record is alone)."""
    chunk: list[KeyValue] = []
    size = 0
    for record in records:
        if chunk and (len(chunk) >= count_max or size + record.size > bytes_max):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += record.size
    if chunk:
        yield chunk
