"""Batches and records as lines: what `log dump` and `bucket dump` print.

Owns the look of one batch and one record, as text and as JSON. Always true: a batch is checked (CRC, offsets in order)
before its records are shown; the first that fails ends the dump with its position. Must not know where the bytes lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from logformat.record_batch import BatchHeader, Buffer, CorruptBatch, UnsupportedCodec, check_stored
from logformat.records import Record, iter_records
from thermocline.cli.output import Cell


def batch_lines(log: Buffer, *, records: bool, as_json: bool) -> Iterator[str]:
    """A line for each batch of `log`, and with `records` for each record. CorruptBatch at the first bad one."""
    position, end, offset = 0, len(log), 0
    while position < end:
        header = check_stored(log, position, end, offset_min=offset)
        yield _line("batch", _batch_cells(header, position), as_json=as_json)
        if records:
            for record in iter_records(log, position):
                yield _line("record", _record_cells(record), as_json=as_json)
        offset = header.next_offset
        position += header.size


def _line(kind: str, cells: dict[str, Cell], *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"kind": kind, **cells}, ensure_ascii=False)
    shown = " ".join(f"{name}={_text(value)}" for name, value in cells.items())
    return f"{'  ' if kind == 'record' else ''}{kind} {shown}"


def _text(value: Cell) -> str:
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list | dict) else str(value)


def _batch_cells(header: BatchHeader, position: int) -> dict[str, Cell]:
    try:
        codec = header.codec.name.lower()
    except UnsupportedCodec:
        raise CorruptBatch(f"batch at position {position} has an unknown codec") from None
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
        "crc32c": f"{header.crc:08x}",
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
        cells["headers"] = [[name.encode(errors="surrogateescape").decode(errors="backslashreplace"), readable(value)]
                            for name, value in record.headers]  # fmt: skip
    return cells


def readable(data: bytes | None) -> str | None:
    """Bytes as text: as they are when they are UTF-8, else `0x` and hexadecimal digits."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
