"""Decoders that turn record values into columns: JSON, and others by the entry point group `thermocline.decoders`.

A decoder is deterministic, because a step repeated after a crash must find the same bad rows. It never raises for a
record's content: a value that does not fit the columns is a bad row with a reason.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import InvalidRequest

GROUP: Final = "thermocline.decoders"
RAW: Final = "raw"
_REASON_CHARS_MAX: Final = 500
_UNFIT: Final = (
    ValueError,
    OverflowError,
    TypeError,
    pa.ArrowException,
)  # errors of pa.array; UnicodeError is a ValueError


class Decoded(NamedTuple):
    """`columns` of the good rows, in row order; `bad`: (row, reason) of the others, in row order."""

    columns: list[pa.Array]
    bad: list[tuple[int, str]]


class ValueDecoder(Protocol):
    """Turns values into columns. Created once per task by `factory(columns)`, with the user's text."""

    @property
    def schema(self) -> pa.Schema:
        """The decoded columns, all nullable."""
        ...

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode every value of a batch. A null (a tombstone) is a good row of nulls."""
        ...


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """The decoder, its columns, and whether the raw value stays a column. Stored in the table's properties."""

    decoder: str = RAW
    columns: str = ""
    keep_value: bool = False

    @property
    def is_raw(self) -> bool:
        return self.decoder == RAW

    def __str__(self) -> str:
        return RAW if self.is_raw else f"{self.decoder}({self.columns}){' + value' if self.keep_value else ''}"


def extends(stored: ValueSpec, asked: ValueSpec) -> bool:
    """Whether `asked` decodes all columns of `stored` in the same way, and perhaps more. Raises InvalidRequest."""
    if stored.is_raw or stored.decoder != asked.decoder or stored.keep_value > asked.keep_value:
        return False
    if stored.decoder == "json":
        return set(parse_columns(stored.columns)) <= set(parse_columns(asked.columns))
    before, after = decoder_of(stored), decoder_of(asked)
    assert before is not None and after is not None
    return all(
        after.schema.get_field_index(one.name) >= 0 and after.schema.field(one.name) == one for one in before.schema
    )


def decoder_of(spec: ValueSpec) -> ValueDecoder | None:
    """The decoder of `spec`, None for raw values. Raises InvalidRequest."""
    if spec.is_raw:
        return None
    if spec.decoder == "json":
        return JsonDecoder(spec.columns)
    found = {point.name: point for point in entry_points(group=GROUP)}
    if spec.decoder not in found:
        near = difflib.get_close_matches(spec.decoder, [RAW, "json", *found], n=1, cutoff=0.0)
        raise InvalidRequest(
            f"no value decoder {spec.decoder!r} (entry point group {GROUP}); did you mean {near[0]!r}?"
        )
    factory: Callable[[str], ValueDecoder] = found[spec.decoder].load()
    return factory(spec.columns)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
class JsonColumn(NamedTuple):
    """A column, its type, and the member of the top-level object that fills it."""

    name: str
    type: str
    member: str


def _same(cell: Any) -> Any:
    return cell


def _text(cell: msgspec.Raw) -> str | None:
    text = bytes(cell).decode()
    return None if text in ("", "null") else text


class _Kind(NamedTuple):
    python: Any
    arrow: pa.DataType
    convert: Callable[[Any], Any] = _same


_INT: Final = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_YEAR_1_US: Final = -62_135_596_800_000_000
_YEAR_9999_US: Final = 253_402_300_799_999_999
_MILLIS: Final = Annotated[int, msgspec.Meta(ge=_YEAR_1_US // 1000, le=_YEAR_9999_US // 1000)]
_ZONED: Final = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

TYPES: Final[dict[str, _Kind]] = {
    "string": _Kind(str, pa.string()),
    "boolean": _Kind(bool, pa.bool_()),
    "int": _Kind(_INT, pa.int32()),
    "bigint": _Kind(_LONG, pa.int64()),
    "double": _Kind(float, pa.float64()),
    "timestamp": _Kind(_ZONED, _TIMESTAMP),  # RFC 3339 with a zone
    "timestamp_ms": _Kind(_MILLIS, _TIMESTAMP, lambda ms: ms * 1000),  # a number of ms since 1970
    "date": _Kind(datetime.date, pa.date32()),
    "json": _Kind(msgspec.Raw, pa.string(), _text),  # any JSON value, as text
}
_ALIASES: Final = {"long": "bigint", "integer": "int", "bool": "boolean", "str": "string", "float": "double"}
_COLUMN: Final = re.compile(r"\s*(\w+)\s+(\w+)(?:\s+from\s+(\S+))?\s*", re.ASCII)


def parse_columns(text: str) -> tuple[JsonColumn, ...]:
    """`user string, amount double, at timestamp from created_at`. Raises InvalidRequest."""
    columns = []
    for part in text.split(","):
        found = _COLUMN.fullmatch(part)
        if found is None:
            raise InvalidRequest(f"columns: {part.strip()!r}: write `name type`, or `name type from member`")
        name, kind, member = found.groups()
        kind = _ALIASES.get(kind.lower(), kind.lower())
        if kind not in TYPES:
            raise InvalidRequest(f"columns: type {kind!r} of {name} is not known; there are {', '.join(TYPES)}")
        columns.append(JsonColumn(name, kind, member or name))
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"columns: a name is given twice: {', '.join(names)}")
    return tuple(columns)


class JsonDecoder:
    """JSON objects in UTF-8. Absent and null members are null; members without a column are dropped.

    Decodes row by row: Arrow's JSON reader is faster, but one bad value spoils its whole block.
    """

    def __init__(self, columns: str) -> None:
        self._columns = parse_columns(columns)
        fields = [
            (f"c{at}", TYPES[column.type].python | None, None)
            if column.type != "json"
            else (f"c{at}", msgspec.Raw, msgspec.Raw(b""))
            for at, column in enumerate(self._columns)
        ]
        names = {f"c{at}": column.member for at, column in enumerate(self._columns)}
        row = msgspec.defstruct("Row", fields, rename=names.get, frozen=True, gc=False)
        self._decode = msgspec.json.Decoder(row).decode
        self._nothing = row()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, TYPES[column.type].arrow) for column in self._columns])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        decode, nothing = self._decode, self._nothing
        rows: list[tuple[int, Any]] = []
        bad: list[tuple[int, str]] = []
        for at, value in enumerate(values.to_pylist()):
            if value is None:
                rows.append((at, nothing))
                continue
            try:
                rows.append((at, decode(value)))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
                bad.append((at, str(broken)[:_REASON_CHARS_MAX]))
        try:
            return Decoded(self._arrays([row for _, row in rows]), bad)
        except _UNFIT:
            return self._one_by_one(rows, bad)

    def _one_by_one(self, rows: Sequence[tuple[int, Any]], bad: list[tuple[int, str]]) -> Decoded:
        """A cell is valid JSON but not an Arrow value (half a surrogate pair, a time beyond year 9999). Find its
        row."""
        good = []
        for at, row in rows:
            try:
                self._arrays([row])
                good.append(row)
            except _UNFIT as unfit:
                bad.append((at, str(unfit)[:_REASON_CHARS_MAX]))
        return Decoded(self._arrays(good), sorted(bad))

    def _arrays(self, rows: Sequence[Any]) -> list[pa.Array]:
        return [self._array(at, rows) for at in range(len(self._columns))]

    def _array(self, at: int, rows: Sequence[Any]) -> pa.Array:
        name, kind = f"c{at}", TYPES[self._columns[at].type]
        cells = [getattr(row, name) for row in rows]
        if kind.convert is not _same:
            cells = [None if cell is None else kind.convert(cell) for cell in cells]
        made = pa.array(cells, type=kind.arrow)
        if kind.arrow == _TIMESTAMP:
            _check_years(made)
        return made


def _check_years(made: pa.Array) -> None:
    """A time with a zone may lie outside the years 1 to 9999 in UTC, where many readers fail."""
    found = pc.min_max(made.cast(pa.int64())).as_py()
    if found["min"] is not None and not _YEAR_1_US <= found["min"] <= found["max"] <= _YEAR_9999_US:
        raise ValueError("in UTC the time lies outside the years 1 to 9999")
