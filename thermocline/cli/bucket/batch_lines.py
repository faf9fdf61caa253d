"""Prints batches and records as text or JSON lines, for `log dump` and `bucket dump`.

A batch is checked (CRC, offsets in order) before it is printed. The dump ends at the first bad batch, with its
position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from logformat.record_batch import BatchHeader, Buffer, CorruptBatch, UnsupportedCodec, check_stored
from logformat.records import Record, iter_records
from thermocline.cli.terminal.output import Cell


class BatchLines:
    """Lines of a log, which is given in pieces of whole batches. `position`: start of the next piece."""

    def __init__(self, *, records: bool, as_json: bool) -> None:
        self._records = records
        self._as_json = as_json
        self._offset = 0
        self.position = 0

    def of(self, log: Buffer) -> Iterator[str]:
        """A line for each batch of `log`, and optionally for each record. Raises CorruptBatch at the first bad
        batch."""
        start = self.position
        while self.position - start < len(log):
            at = self.position - start
            try:
                header = check_stored(log, at, len(log), offset_min=self._offset)
            except CorruptBatch as damaged:
                raise CorruptBatch(f"{damaged} (counted from {start})" if start else str(damaged)) from damaged
            yield self._line("batch", _batch_cells(header, self.position))
            if self._records:
                for record in iter_records(log, at):
                    yield self._line("record", _record_cells(record))
            self._offset = header.next_offset
            self.position += header.size

    def _line(self, kind: str, cells: dict[str, Cell]) -> str:
        if self._as_json:
            return json.dumps({"kind": kind, **cells}, ensure_ascii=False)
        shown = " ".join(f"{name}={_text(name, value)}" for name, value in cells.items())
        return f"{'  ' if kind == 'record' else ''}{kind} {shown}"


def _text(name: str, value: Cell) -> str:
    if name == "crc32c":
        return f"{value:08x}"
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | bool) or name in _QUOTED else str(value)


_QUOTED = frozenset({"key", "value"})  # may contain blanks


def _batch_cells(header: BatchHeader, position: int) -> dict[str, Cell]:
    try:
        codec = header.codec.name.lower()
    except UnsupportedCodec as unknown:
        raise CorruptBatch(f"batch at position {position}: {unknown}") from unknown
    cells: dict[str, Cell] = {
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "leader_epoch": header.leader_epoch,
        "codec": codec,
        "timestamp_type": header.timestamp_type.name.lower(),
        "max_timestamp_ms": header.max_timestamp,
        "crc32c": header.crc,
    }
    if header.producer_id >= 0:
        cells |= {
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
        }
    if header.is_transactional:
        cells["transactional"] = True
    if header.is_control:
        cells["control"] = True
    return cells


def _record_cells(record: Record) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": readable(record.key),
        "value": readable(record.value),
    }
    if record.headers:
        cells["headers"] = [
            [readable(name.encode(errors="surrogateescape")), readable(value)] for name, value in record.headers
        ]
    return cells


def readable(data: bytes | None) -> str | None:
    """UTF-8 bytes as text, others as `0x` and hexadecimal digits."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
