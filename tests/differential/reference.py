"""What a log must look like, recomputed from its bytes by Kafka's rules and nothing of ours.

Owns an index, a time index and a roll as Apache Kafka 4.3.1 has them (`LogSegment.append`, `LogSegment.shouldRoll`,
`OffsetIndex`, `TimeIndex`), in the plainest words. Always true: nothing of `logformat` or `hotstore` is called to find
out what is right; they are only asked what they have.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from broker.partition.leading.leader_replica import LeaderReplica
from tests.differential.brokers import Way

_HEADER: Final = struct.Struct(">qiiBIhiqqqhii")
_STAMPED: Final = 0x08


class Wrong(AssertionError):
    """Both ways wrote the same, and not what Kafka would have."""


class _Batch(NamedTuple):
    position: int
    size: int
    base: int
    last: int
    epoch: int
    attributes: int
    max_ms: int


def walk(data: bytes, path: str) -> list[_Batch]:
    """The batches of a segment: whole, CRC right, nothing between or behind them."""
    found = []
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise Wrong(f"{path}: {len(data) - at} bytes behind the last batch")
        base, length, epoch, magic, crc, attributes, delta, _, max_ms, *_ = _HEADER.unpack_from(data, at)
        size = length + 12
        if magic != 2 or size < _HEADER.size or at + size > len(data):
            raise Wrong(f"{path}: no batch at {at}: magic {magic}, {size} bytes of {len(data) - at}")
        if crc32c(data[at + 21 : at + size]) != crc:
            raise Wrong(f"{path}: the batch at {at} fails its CRC")
        found.append(_Batch(at, size, base, base + delta, epoch, attributes, max_ms))
        at += size
    return found


def indexes(batches: list[_Batch], base: int, interval: int, *, sealed: bool) -> tuple[bytes, bytes]:
    """The bytes of `.index` and `.timeindex`."""
    offsets, times = bytearray(), bytearray()
    greatest, greatest_at, last_time = -1, base, -1
    since = 0

    def note_time() -> None:
        nonlocal last_time
        if greatest > last_time:
            times.extend(struct.pack(">qi", greatest, greatest_at - base))
            last_time = greatest

    for batch in batches:
        if batch.max_ms > greatest:
            greatest, greatest_at = batch.max_ms, batch.last
        if since > interval:
            offsets += struct.pack(">ii", batch.last - base, batch.position)
            note_time()
            since = 0
        since += batch.size
    if sealed:
        note_time()
    return bytes(offsets), bytes(times)


def check_log(way: Way, partition: LeaderReplica) -> tuple[int, int]:
    """How many batches and segments were recomputed. Raises Wrong."""
    log = partition.log
    config = log.config
    names = way.disk._names
    segments = log._locator.segments
    count = 0
    offset, epoch = segments[0].base_offset, -1
    for at, segment in enumerate(segments):
        path = segment.file.path
        data = bytes(names[path].data)
        sealed = at < len(segments) - 1
        if len(data) != segment.size:
            raise Wrong(f"{path}: {len(data)} bytes, the log thinks {segment.size}")
        if segment.size > config.segment_bytes:
            raise Wrong(f"{path}: {segment.size} bytes, segment.bytes is {config.segment_bytes}")
        if segment.base_offset != offset:
            raise Wrong(f"{path}: begins at {segment.base_offset}, the segment before it ends at {offset}")
        batches = walk(data, path)
        for batch in batches:
            if batch.base != offset:
                raise Wrong(f"{path}: the batch at {batch.position} has offset {batch.base}, not {offset}")
            if batch.epoch < epoch:
                raise Wrong(f"{path}: the batch at offset {batch.base} is of epoch {batch.epoch}, after {epoch}")
            if bool(batch.attributes & _STAMPED) is not config.log_append_time:
                raise Wrong(f"{path}: the batch at offset {batch.base} has attributes {batch.attributes:#x}")
            offset, epoch = batch.last + 1, batch.epoch
        count += len(batches)
        wanted = indexes(batches, segment.base_offset, config.index_interval_bytes, sealed=sealed)
        indexer = segment.indexer
        if indexer is not None:
            found = indexer.offset_index.to_bytes(), indexer.time_index.to_bytes()
        else:
            stem = path.removesuffix(".log")
            found = bytes(names[stem + ".index"].data), bytes(names[stem + ".timeindex"].data)
        for name, is_there, right in zip((".index", ".timeindex"), found, wanted, strict=True):
            if is_there != right:
                raise Wrong(f"{path}: {name} is {is_there.hex(' ')}, Kafka's {right.hex(' ')}")
    if offset != log.log_end_offset:
        raise Wrong(f"{log.path}: the last batch ends at {offset}, the log at {log.log_end_offset}")
    return count, len(segments)
