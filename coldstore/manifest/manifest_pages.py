"""Manifest pages: immutable Parquet files of entries that keep a root small (docs/formats/manifest.md).

A page of level 0 has segments, a page of level 1 has pointers to pages of level 0 (C14). Every read checks a page
against its pointer: length, CRC32C, order and range of the rows, and their sums. A page with more rows than its pointer
says is refused before memory is allocated for them. pyarrow is imported by the first call, because most partitions need
no page. All calls block (a few ms for 4 096 entries).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from crc32c import crc32c

from coldstore.manifest.manifest_entries import PagePointer, RemoteSegment, Totals, check_page, check_segment
from logformat.errors import Corrupt
from logformat.values import NewerFormat

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION: Final = 1
PAGE_ENTRIES_MAX: Final = 65_536
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_FORMAT_KEY: Final = b"thermocline.format_version"
_LEVEL_KEY: Final = b"thermocline.level"
_ROWS_AT_ONCE: Final = 256  # rows converted to Python objects at a time

_DECIDED: Final = "decided"
_POINTER_COLUMNS: Final = tuple(name for name in PagePointer.__struct_fields__)


class SegmentPage:
    """The segments of a level-0 page as an Arrow table (~120 bytes a row), converted to values on demand."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._ends: list[int] = table.column("end_offset").to_pylist()
        self._max_timestamps: list[int] = table.column("max_timestamp_ms").to_pylist()
        self.nbytes: int = table.nbytes + 80 * len(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def index(self, offset: int) -> int:
        """Row of the first segment that ends above `offset`; the number of rows if there is none."""
        return bisect_right(self._ends, offset)

    def rows(self, first: int = 0, end: int | None = None) -> Iterator[RemoteSegment]:
        """The segments of the rows `[first, end)`. Raises Corrupt for an impossible entry."""
        stop = len(self) if end is None else min(end, len(self))
        for at in range(first, stop, _ROWS_AT_ONCE):
            for row in self.table.slice(at, min(_ROWS_AT_ONCE, stop - at)).to_pylist():
                yield _segment(row)

    def between(self, start: int, end: int) -> list[RemoteSegment]:
        """The segments that end above `start` and begin below `end`. Each takes 15 µs, so this does not run on a
        loop."""
        return list(takewhile(lambda segment: segment.base_offset < end, self.rows(self.index(start))))

    def find(self, offset: int) -> RemoteSegment | None:
        """The segment that holds `offset`; None if there is none."""
        at = self.index(offset)
        found = next(self.rows(at, at + 1), None)
        return found if found is not None and found.base_offset <= offset else None

    def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None:
        """The first segment that ends above `from_offset` and has a timestamp ≥ `timestamp_ms`; None if there is
        none."""
        for at in range(self.index(from_offset), len(self)):
            if self._max_timestamps[at] >= timestamp_ms:
                return next(self.rows(at, at + 1))
        return None


class PointerPage:
    """The pointers of a level-1 page."""

    def __init__(self, table: pa.Table) -> None:
        self.pointers = tuple(_pointer(row) for row in table.to_pylist())
        self.nbytes: int = table.nbytes + 600 * len(self.pointers)
        self.table = table

    def __len__(self) -> int:
        return len(self.pointers)


Page = SegmentPage | PointerPage


def _segment_schema() -> pa.Schema:
    import pyarrow as pa

    epoch = pa.struct([pa.field("epoch", pa.int32(), False), pa.field("start_offset", pa.int64(), False)])
    gap = pa.struct([pa.field("first", pa.int64(), False), pa.field("end", pa.int64(), False)])
    return pa.schema(
        [
            pa.field("uuid", pa.string(), False),
            pa.field("base_offset", pa.int64(), False),
            pa.field("end_offset", pa.int64(), False),
            pa.field("leader_epoch", pa.int32(), False),
            pa.field("log_bytes", pa.int64(), False),
            pa.field("object_bytes", pa.int64(), False),
            pa.field("records", pa.int64(), False),
            pa.field("min_timestamp_ms", pa.int64(), False),
            pa.field("max_timestamp_ms", pa.int64(), False),
            pa.field("crc32c", pa.int64(), False),  # 32 bits; signed 64 for engines without unsigned types
            pa.field("epochs", pa.list_(pa.field("element", epoch, False)), False),
            pa.field("gaps", pa.list_(pa.field("element", gap, False)), False),
            pa.field(_DECIDED, pa.int64(), False),  # a page lacks this column if all its values are 0
        ]
    )


def _pointer_schema() -> pa.Schema:
    import pyarrow as pa

    narrow = {"level": pa.int32(), "epoch": pa.int32(), "min_leader_epoch": pa.int32(), "max_leader_epoch": pa.int32()}
    return pa.schema(
        [
            pa.field(name, pa.string() if name == "uuid" else narrow.get(name, pa.int64()), False)
            for name in _POINTER_COLUMNS
        ]
    )


def segment_table(segments: Sequence[RemoteSegment], before: SegmentPage | None = None) -> pa.Table:
    """A table with the rows of `before`, then rows for `segments`."""
    import pyarrow as pa

    rows: list[dict[str, object]] = []
    for segment in segments:
        row: dict[str, object] = {name: getattr(segment, name) for name in RemoteSegment.__struct_fields__}
        row["uuid"] = str(segment.uuid)
        row["epochs"] = [{"epoch": epoch, "start_offset": start} for epoch, start in segment.epochs]
        row["gaps"] = [{"first": first, "end": end} for first, end in segment.gaps]
        rows.append(row)
    table = pa.Table.from_pylist(rows, schema=_segment_schema())
    return table if before is None else pa.concat_tables([before.table, table])


def table_with(page: SegmentPage, old: Sequence[RemoteSegment], new: Sequence[RemoteSegment]) -> pa.Table | None:
    """The rows of `page` with `new` in place of `old`; None if these rows of the page are not equal to `old`."""
    import pyarrow as pa

    at = page.index(old[0].base_offset)
    if list(page.rows(at, at + len(old))) != list(old):
        return None
    return pa.concat_tables([page.table.slice(0, at), segment_table(new), page.table.slice(at + len(old))])


def pointer_table(pointers: Sequence[PagePointer], before: PointerPage | None = None) -> pa.Table:
    """A table with the rows of `before`, then rows for `pointers`."""
    import pyarrow as pa

    all_pointers = [*(before.pointers if before is not None else ()), *pointers]
    rows = [{**{n: getattr(p, n) for n in _POINTER_COLUMNS}, "uuid": str(p.uuid)} for p in all_pointers]
    return pa.Table.from_pylist(rows, schema=_pointer_schema())


def encode_page(table: pa.Table, level: int, uuid: UUID, epoch: int) -> tuple[PagePointer, bytes]:
    """The page's bytes, and its pointer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    written = table
    if level == 0 and not any(table.column(_DECIDED).to_pylist()):
        written = table.drop_columns([_DECIDED])
    named = written.replace_schema_metadata({_FORMAT_KEY: str(FORMAT_VERSION), _LEVEL_KEY: str(level)})
    pq.write_table(named, sink, compression="zstd", write_statistics=True, store_schema=True)
    data: bytes = sink.getvalue().to_pybytes()
    first, end = table.column("first_offset" if level else "base_offset"), table.column("end_offset")
    epochs = ("min_leader_epoch", "max_leader_epoch") if level else ("leader_epoch", "leader_epoch")
    sums = _sums(table, level)
    pointer = PagePointer(
        uuid=uuid,
        level=level,
        epoch=epoch,
        first_offset=first[0].as_py(),
        end_offset=end[-1].as_py(),
        entries=table.num_rows,
        segments=sums.segments,
        log_bytes=sums.log_bytes,
        object_bytes=sums.object_bytes,
        records=sums.records,
        min_timestamp_ms=min(table.column("min_timestamp_ms").to_pylist()),
        max_timestamp_ms=max(table.column("max_timestamp_ms").to_pylist()),
        min_leader_epoch=min(table.column(epochs[0]).to_pylist()),
        max_leader_epoch=max(table.column(epochs[1]).to_pylist()),
        length=len(data),
        crc32c=crc32c(data),
    )
    return pointer, data


def decode_page(data: bytes, pointer: PagePointer) -> Page:
    """The page of `pointer`. Raises Corrupt, NewerFormat."""
    check_page(pointer)
    name = f"manifest page {pointer.uuid}"
    if len(data) != pointer.length or crc32c(data) != pointer.crc32c:
        raise Corrupt(f"{name}: {len(data)} bytes are not the {pointer.length} its pointer names, or their CRC differs")
    if pointer.entries > PAGE_ENTRIES_MAX:
        raise Corrupt(f"{name}: {pointer.entries} entries, but at most {PAGE_ENTRIES_MAX} are allowed")
    table = _read_table(data, pointer, name)
    page: Page = PointerPage(table) if pointer.level else SegmentPage(table)
    _check_rows(table, pointer, name)
    return page


def _read_table(data: bytes, pointer: PagePointer, name: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        described = file.metadata
        words = file.schema_arrow.metadata or {}
        _check_format(words, pointer, name)
        decoded = sum(described.row_group(n).total_byte_size for n in range(described.num_row_groups))
        if described.num_rows != pointer.entries or decoded > PAGE_BYTES_MAX:
            raise Corrupt(
                f"{name}: {described.num_rows} rows in {decoded} bytes, but its pointer says {pointer.entries}"
            )
        table = file.read(use_threads=False).replace_schema_metadata(None)
        table.validate(full=True)  # checks list offsets and UTF-8, which reading does not check
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as broken:
        raise Corrupt(f"{name} is not readable: {broken}") from broken
    expected = _pointer_schema() if pointer.level else _segment_schema()
    if pointer.level == 0 and _DECIDED not in table.column_names:
        table = table.append_column(expected.field(_DECIDED), pa.array([0] * table.num_rows, pa.int64()))
    missing = [field.name for field in expected if field.name not in table.column_names]
    if missing:
        raise Corrupt(f"{name} has no columns {missing}")
    table = table.select(expected.names)
    if any(table.schema.field(f.name).type != f.type for f in expected) or any(c.null_count for c in table.columns):
        raise Corrupt(f"{name} has columns of unexpected types, or null values")
    return table.cast(expected)


def _check_format(words: dict[bytes, bytes], pointer: PagePointer, name: str) -> None:
    written_by = int(words.get(_FORMAT_KEY, b"0"))
    if written_by > FORMAT_VERSION:
        raise NewerFormat(f"{name} has format {written_by}, but this version knows {FORMAT_VERSION}; upgrade")
    if written_by < 1 or words.get(_LEVEL_KEY) != str(pointer.level).encode():
        raise Corrupt(f"{name} is not a page of level {pointer.level}")


def _check_rows(table: pa.Table, pointer: PagePointer, name: str) -> None:
    firsts: list[int] = table.column("first_offset" if pointer.level else "base_offset").to_pylist()
    ends: list[int] = table.column("end_offset").to_pylist()
    at = pointer.first_offset
    for first, end in zip(firsts, ends, strict=True):
        if not at <= first < end:
            raise Corrupt(f"{name}: rows are out of order at offset {first}")
        at = end
    if firsts[0] != pointer.first_offset or ends[-1] != pointer.end_offset:
        raise Corrupt(f"{name} covers [{firsts[0]}, {ends[-1]}), but its pointer says otherwise")
    expected = Totals(
        log_bytes=pointer.log_bytes,
        object_bytes=pointer.object_bytes,
        records=pointer.records,
        segments=pointer.segments,
    )
    if _sums(table, pointer.level) != expected:
        raise Corrupt(f"{name}: the sums of its rows differ from the sums in its pointer")


def _sums(table: pa.Table, level: int) -> Totals:
    return Totals(
        log_bytes=sum(table.column("log_bytes").to_pylist()),
        object_bytes=sum(table.column("object_bytes").to_pylist()),
        records=sum(table.column("records").to_pylist()),
        segments=sum(table.column("segments").to_pylist()) if level else table.num_rows,
    )


def _segment(row: dict[str, Any]) -> RemoteSegment:
    epochs = tuple((entry["epoch"], entry["start_offset"]) for entry in row["epochs"])
    gaps = tuple((entry["first"], entry["end"]) for entry in row["gaps"])
    segment = RemoteSegment(**{**row, "uuid": _uuid(row["uuid"]), "epochs": epochs, "gaps": gaps})
    check_segment(segment)
    return segment


def _pointer(row: dict[str, Any]) -> PagePointer:
    pointer = PagePointer(**{**row, "uuid": _uuid(row["uuid"])})
    check_page(pointer)
    if pointer.level:
        raise Corrupt(f"manifest page {pointer.uuid} of level {pointer.level} below a page of level 1")
    return pointer


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as broken:
        raise Corrupt(f"manifest page: {text[:50]!r} is not a UUID") from broken
