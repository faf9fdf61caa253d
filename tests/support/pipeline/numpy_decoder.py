"""The numba kernels' oracle: batches to Arrow with headers one by one in Python, records of many batches in numpy.

It gives the same rows, the same poison and the same reasons as the kernels, at a tenth of their speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from logformat.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_SIZE,
    INT64_MAX,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    Codec,
    CorruptBatch,
    TimestampType,
    read_header,
)
from logformat.records import RECORDS_BYTES_MAX
from tests.support.pipeline.numpy_records import parse
from thermocline.pipeline.decode.batches import DecodeRequest
from thermocline.pipeline.decode.codecs import Decompressor
from thermocline.pipeline.decode.layout import Reason
from thermocline.pipeline.decode.poison import Coverage, PoisonBatch, poison_at

_ROWS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WantedBatch:
    """A batch whose records are wanted: where it stands, and its records decompressed."""

    position: int
    header: BatchHeader
    records: Buffer


class NumpyWay:
    """See `batches.BatchDecoder`."""

    def __init__(self, asked: DecodeRequest) -> None:
        self.coverage = Coverage()
        self._asked = asked
        self._wanted = asked.rows
        self._decompressor = Decompressor()

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]:
        view = memoryview(log).cast("B")  # an Arrow buffer's view holds signed bytes
        walk = self._walk(view)
        group: list[WantedBatch] = []
        held = 0
        poison: PoisonBatch | None = None
        while True:
            try:
                found = next(walk, None)
            except PoisonBatch as error:
                found, poison = None, error
            if found is None:
                break
            if group and held + len(found.records) > self._asked.target_bytes:
                yield from self._rows(view, group)
                group, held = [], 0
            group.append(found)
            held += len(found.records)
        yield from self._rows(view, group)
        if poison is not None:
            raise poison

    def _rows(self, view: memoryview, group: list[WantedBatch]) -> Iterator[pa.RecordBatch]:
        if not group:
            return
        asked = self._asked
        rows, refusal = parse([(found.header, found.records) for found in group], asked.columns)
        wanted = rows.inside(asked.rows)
        yield from wanted.arrow(asked.topic, asked.partition, asked.columns, asked.target_bytes, _ROWS_MAX)
        if refusal is not None:
            bad = group[refusal.batch]
            raise self._poison(view, bad.position, refusal.reason.text, checked=True)

    def _walk(self, view: memoryview) -> Iterator[WantedBatch]:
        position = 0
        offset_next = 0
        while position < len(view):
            refused = _refused_header(view, position, offset_next)
            if refused is not None:
                raise poison_at(view, position, refused.text)
            header = read_header(view, position)
            want = self._wanted
            if header.next_offset > max(want.start_offset, 0) and header.base_offset < want.end_offset:
                refused = _refused_body(view, position, header)
                if refused is not None:
                    raise poison_at(view, position, refused.text)
                if not self._is_skipped(header):
                    if header.attributes & CODEC_MASK > Codec.ZSTD:
                        raise poison_at(view, position, Reason.CODEC.text)
                    yield WantedBatch(position, header, self._records(view, position, header))
            self.coverage.add(header.base_offset, header.next_offset)  # before a refusal of later batches is known
            offset_next = header.next_offset
            position += header.size

    def _records(self, view: memoryview, position: int, header: BatchHeader) -> Buffer:
        body = view[position + HEADER_SIZE : position + header.size]
        if header.codec is Codec.NONE:
            return body
        try:
            return self._decompressor.decompress(header.codec, body, RECORDS_BYTES_MAX)
        except CorruptBatch as error:
            raise self._poison(view, position, str(error), checked=True) from None

    def _is_skipped(self, header: BatchHeader) -> bool:
        if header.is_control or (header.record_count == 0 and header.size == HEADER_SIZE):
            return True
        if header.is_transactional and any(
            producer == header.producer_id and first <= header.base_offset <= last
            for producer, first, last in self._asked.aborted
        ):
            return True
        low, high = self._wanted.min_timestamp_ms, self._wanted.max_timestamp_ms
        if low is None and high is None:
            return False
        newest = header.max_timestamp
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return newest == NO_TIMESTAMP or (low is not None and newest < low) or (high is not None and newest >= high)
        return low is not None and header.base_timestamp <= newest < low

    def _poison(self, view: memoryview, position: int, reason: str, *, checked: bool) -> PoisonBatch:
        poison = poison_at(view, position, reason, checked=checked)
        self.coverage.cut(poison.base_offset)
        return poison


def _refused_header(view: memoryview, position: int, offset_next: int) -> Reason | None:
    left = len(view) - position
    if left < HEADER_SIZE:
        return Reason.CUT
    header = read_header(view, position)
    if header.magic != MAGIC:
        return Reason.MAGIC
    if not HEADER_SIZE <= header.size <= left:
        return Reason.LENGTH
    delta = header.last_offset_delta
    if header.base_offset < offset_next or delta < 0 or header.base_offset > INT64_MAX - 1 - delta:
        return Reason.OFFSETS
    return None


def _refused_body(view: memoryview, position: int, header: BatchHeader) -> Reason | None:
    if crc32c(view[position + ATTRIBUTES_AT : position + header.size]) != header.crc:
        return Reason.CRC
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return Reason.COUNT
    return None
