"""JSON values to columns: what is good, what is bad and why, and the door for other decoders."""

from __future__ import annotations

import datetime
import json
from importlib.metadata import EntryPoint

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import InvalidRequest
from thermocline.pipeline.jobs import values
from thermocline.pipeline.jobs.tables.archive_columns import (
    DEAD_LETTER_SCHEMA,
    RAW_SCHEMA,
    READ_COLUMNS,
    RowSorter,
    table_schema,
)
from thermocline.pipeline.jobs.values import Decoded, JsonDecoder, ValueSpec, decoder_of, parse_columns
from thermocline.pipeline.rows import schema_of

COLUMNS = (
    "user string, amount double, n bigint, small int, ok bool, at timestamp, "
    "ms timestamp_ms from t, day date, rest json"
)


def decode(*cells: bytes | None) -> tuple[list[dict[str, object]], list[int]]:
    decoder = JsonDecoder(COLUMNS)
    made = decoder.decode(pa.array(cells, pa.binary()))
    table = pa.table(made.columns, schema=decoder.schema)
    return table.to_pylist(), [row for row, _ in made.bad]


def test_every_type_is_decoded() -> None:
    utc = datetime.UTC
    (row,), bad = decode(
        b'{"user":"ada","amount":3,"n":9223372036854775807,"small":-5,"ok":true,"at":"2024-03-01T12:00:00.5+02:00",'
        b'"t":1700000000123,"day":"2024-02-29","rest":{"x":[1, 2]},"unknown":1}'
    )
    assert not bad
    assert row == {
        "user": "ada",
        "amount": 3.0,
        "n": 2**63 - 1,
        "small": -5,
        "ok": True,
        "at": datetime.datetime(2024, 3, 1, 10, 0, 0, 500000, tzinfo=utc),
        "ms": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=utc),
        "day": datetime.date(2024, 2, 29),
        "rest": '{"x":[1, 2]}',
    }


def test_absent_and_null_members_and_tombstones_are_nulls_and_good() -> None:
    found, bad = decode(None, b"{}", b'{"user":null,"rest":null,"n":null}')
    assert not bad and all(set(row.values()) == {None} for row in found) and len(found) == 3


@pytest.mark.parametrize(
    "cell",
    [
        b"",
        b"nonsense",
        b"[1]",
        b'"text"',
        b'{"a":1}{"a":2}',
        b'{"user":5}',
        b'{"user":"\xff"}',
        b'{"user":"\\ud800"}',
        b'{"amount":NaN}',
        b'{"amount":1e999}',
        b'{"n":9223372036854775808}',
        b'{"n":1.5}',
        b'{"small":2147483648}',
        b'{"at":"2024-01-01T00:00:00"}',
        b'{"at":"9999-12-31T23:59:59-14:00"}',
        b'{"day":"2024-02-30"}',
        b'{"t":253402300800000}',
        b'{"rest":"\xff"}',
        b'{"user":"a"',
        b"[" * 5000,
    ],
)
def test_what_is_not_what_the_columns_say_is_a_bad_row_with_a_reason(cell: bytes) -> None:
    """And its neighbours are good."""
    found, bad = decode(b'{"n":1}', cell, b'{"n":2}')
    assert bad == [1] and [row["n"] for row in found] == [1, 2]
    reasons = JsonDecoder(COLUMNS).decode(pa.array([cell], pa.binary())).bad
    assert reasons[0][1]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.sampled_from(["user", "amount", "n", "at", "t", "day", "ok", "rest", "x"])


@given(
    st.lists(
        st.none() | st.binary(max_size=20) | st.dictionaries(MEMBERS, JSON_VALUES).map(lambda o: json.dumps(o).encode())
    )
)
def test_each_row_is_judged_alone_and_the_same_every_time(cells: list[bytes | None]) -> None:
    """A batch has as many good and bad rows as its rows have one by one: what a rerun with other batches relies on."""
    decoder = JsonDecoder(COLUMNS)
    made = decoder.decode(pa.array(cells, pa.binary()))
    assert all(len(column) + len(made.bad) == len(cells) for column in made.columns)
    alone = [at for at, cell in enumerate(cells) if decoder.decode(pa.array([cell], pa.binary())).bad]
    assert [at for at, _ in made.bad] == alone


@pytest.mark.parametrize("text", ["", "user", "user varchar", "a int, a int", "a int b", "user string,"])
def test_columns_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_columns(text)


def test_a_column_cannot_have_the_name_of_one_that_is_there() -> None:
    with pytest.raises(InvalidRequest, match="my_offset"):
        table_schema(JsonDecoder("offset bigint"), keep_value=False)
    assert "value" in table_schema(JsonDecoder("user string"), keep_value=True).names


def test_other_decoders_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("upper", "tests.unit.pipeline.jobs.test_archive_values:Upper", values.GROUP)
    monkeypatch.setattr(values, "entry_points", lambda group: [point] if group == values.GROUP else [])
    monkeypatch.setattr(EntryPoint, "load", lambda self: Upper)
    decoder = decoder_of(ValueSpec("upper", "loud"))
    assert decoder is not None and decoder.schema.names == ["loud"]
    with pytest.raises(InvalidRequest, match="upper"):
        decoder_of(ValueSpec("uper"))
    assert decoder_of(ValueSpec()) is None


class Upper:
    """A decoder somebody else wrote; values that begin with `!` are bad."""

    def __init__(self, columns: str) -> None:
        self.schema = pa.schema([pa.field(columns, pa.string())])

    def decode(self, cells: pa.BinaryArray) -> Decoded:
        texts = [None if cell is None else cell.decode() for cell in cells.to_pylist()]
        bad = [(at, "loud already") for at, text in enumerate(texts) if text is not None and text.startswith("!")]
        skip = {at for at, _ in bad}
        good = [text and text.upper() for at, text in enumerate(texts) if at not in skip]
        return Decoded([pa.array(good, pa.string())], bad)


def batch(cells: list[bytes | None]) -> pa.RecordBatch:
    count = len(cells)
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array([None] * count, pa.timestamp("us", tz="UTC")),
        pa.array([0] * count, pa.int32()),
        pa.array([b"k"] * count, pa.binary()),
        pa.array(cells, pa.binary()),
        pa.array([[{"key": "h", "value": b"v"}]] * count, schema_of(["headers"]).field(0).type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(READ_COLUMNS))


def test_rows_are_sorted_to_the_table_and_to_the_dead_letters() -> None:
    schema = table_schema(Upper("loud"), keep_value=True)
    found = RowSorter("events", 3, schema, Upper("loud")).sort(batch([b"a", b"!b", None, b"c"]))
    assert found.bad is not None
    assert found.good.schema == schema and found.bad.schema == DEAD_LETTER_SCHEMA
    assert found.good.column("offset").to_pylist() == [0, 2, 3]
    assert found.good.column("loud").to_pylist() == ["A", None, "C"]
    assert found.good.column("value").to_pylist() == [b"a", None, b"c"]
    assert found.bad.to_pylist()[0] | {"headers": None} == {
        "topic": "events",
        "partition": 3,
        "offset": 1,
        "timestamp": None,
        "timestamp_type": 0,
        "key": b"k",
        "value": b"!b",
        "headers": None,
        "error": "loud already",
    }


def test_a_broken_decoder_is_refused_before_anything_is_written() -> None:
    class Short(Upper):
        def decode(self, cells: pa.BinaryArray) -> Decoded:
            return Decoded([pa.array(["one"], pa.string())], [])

    with pytest.raises(InvalidRequest, match="broken"):
        RowSorter("events", 0, table_schema(Short("loud"), keep_value=False), Short("loud")).sort(batch([b"a", b"b"]))


def test_raw_values_stay_as_they_are() -> None:
    found = RowSorter("events", 0, RAW_SCHEMA, None).sort(batch([b"a", None]))
    assert found.bad is None and found.good.column("value").to_pylist() == [b"a", None]
