"""Batches to Arrow: both ways of decoding give the rows that a record by record reading gives."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logformat.gap import gap_batches
from logformat.record_batch import Codec, check_stored
from logformat.records import Record, encode_batch
from tests.support.pipeline.decode_logs import (
    EVERYTHING,
    as_rows,
    logs,
    read,
    read_slowly,
    with_right_crc,
)
from tests.support.pipeline.numpy_decoder import NumpyWay
from thermocline.pipeline.decode.batches import BatchDecoder, PoisonBatch, Way
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.rows import COLUMNS
from thermocline.pipeline.split import RowFilter

WAYS = [KernelWay, NumpyWay]
both_ways = pytest.mark.parametrize("way", WAYS, ids=["kernels", "numpy"])
some_columns = st.lists(st.sampled_from(COLUMNS), unique=True)
quick = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


def plain(count: int, first: int = 0, size: int = 10, codec: Codec = Codec.NONE) -> bytes:
    """A batch of `count` records with values of `size` bytes that tell their offset."""
    return encode_batch(
        [Record(n, 1000 + n, b"k%d" % n, (b"%d," % n * size)[:size]) for n in range(first, first + count)], codec=codec
    )


def check(log: bytes, columns: list[str], rows: RowFilter, aborted: list[tuple[int, int, int]], target: int) -> None:
    expected, position = read_slowly(log, rows, aborted)
    assert position is None
    expected = [{name: row[name] for name in columns} for row in expected]
    for way in WAYS:
        found, poison, _ = read(log, way, columns, rows, aborted, target)
        assert poison is None
        assert found == expected


@quick
@given(logs(), st.sampled_from([8 << 20, 300]))
def test_rows_are_what_the_log_holds(log: bytes, target_bytes: int) -> None:
    """All columns, all codecs, nulls, headers, holes, gaps and markers; in one batch of rows or in many."""
    check(log, list(COLUMNS), EVERYTHING, [], target_bytes)


@quick
@given(logs(), some_columns, st.sampled_from([8 << 20, 1000]))
def test_a_projection_is_the_same_rows_with_fewer_columns(log: bytes, columns: list[str], target_bytes: int) -> None:
    """Whatever columns are wanted, in whatever order, even none."""
    check(log, columns, EVERYTHING, [], target_bytes)


@quick
@given(
    logs(),
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.none() | st.integers(0, 2**41),
    st.none() | st.integers(0, 2**41),
    st.lists(st.tuples(st.sampled_from([7, 8]), st.integers(0, 1100), st.integers(0, 1500)), max_size=3),
)
def test_filters_leave_out_what_they_say(
    log: bytes, start: int, end: int, low: int | None, high: int | None, aborted: list[tuple[int, int, int]]
) -> None:
    """Offsets, time, and aborted transactions, alone and together."""
    check(log, list(COLUMNS), RowFilter(start, end, low, high), aborted, 8 << 20)


@quick
@given(logs())
def test_coverage_names_every_offset_and_every_hole(log: bytes) -> None:
    """Wanted or not, control or not: adjacent batches merge, holes stay."""
    expected: list[tuple[int, int]] = []
    position = 0
    while position < len(log):
        header = check_stored(log, position, len(log))
        if expected and expected[-1][1] == header.base_offset:
            expected[-1] = (expected[-1][0], header.next_offset)
        else:
            expected.append((header.base_offset, header.next_offset))
        position += header.size
    for way in WAYS:
        assert read(log, way)[2] == expected
        assert read(log, way, rows=RowFilter(1003, 1005))[2] == expected


@both_ways
def test_read_uncommitted_keeps_aborted_rows(way: type[Way]) -> None:
    """`aborted` only counts when `read_committed`; batches of the producer outside the range stay anyway."""
    log = b"".join(
        encode_batch([Record(n, 1, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=n, transactional=True)
        for n in range(4)
    )
    for committed, expected in ((True, [0, 3]), (False, [0, 1, 2, 3])):
        decoder = BatchDecoder("t", 0, ["offset"], EVERYTHING, [(7, 1, 2)], committed, way=way)
        assert [row["offset"] for batch in decoder.decode(log) for row in as_rows(batch)] == expected


@both_ways
def test_our_own_gaps_are_no_rows(way: type[Way]) -> None:
    """A declared gap of more offsets than an int32 holds passes without a row, and is covered."""
    log = plain(3) + b"".join(gap_batches(3, 2**32, 1)) + plain(2, 2**32)
    rows, poison, covered = read(log, way, ["offset"])
    assert poison is None
    assert [row["offset"] for row in rows] == [0, 1, 2, 2**32, 2**32 + 1]
    assert covered == [(0, 2**32 + 2)]


@both_ways
def test_batches_of_rows_stay_near_their_target(way: type[Way]) -> None:
    """Small batches are gathered, a large one is divided; a record above the target stands alone."""
    log = b"".join(plain(100, n * 100, 100) for n in range(20)) + plain(3000, 2000, 100) + plain(3, 5000, 100_000)
    decoder = BatchDecoder("t", 0, ["offset", "value"], EVERYTHING, target_bytes=64 << 10, way=way)
    made = list(decoder.decode(log))
    offsets = [n for batch in made for n in batch.column("offset").to_pylist()]
    assert offsets == list(range(5003))
    assert [batch.num_rows for batch in made[-3:]] == [1, 1, 1]
    assert all(batch.nbytes <= 64 << 10 for batch in made[:-3])
    assert sum(batch.nbytes > 48 << 10 for batch in made[:-3]) >= 7


@both_ways
def test_rows_own_their_memory(way: type[Way]) -> None:
    """Rows given out stay as they are while the decoder goes on, and when the log's memory is written over."""
    log = bytearray(b"".join(plain(50, n * 50, 200, codec) for n, codec in enumerate([*Codec] * 4)))
    expected, _ = read_slowly(bytes(log))
    decoder = BatchDecoder("orders", 3, COLUMNS, EVERYTHING, target_bytes=20_000, way=way)
    made = list(decoder.decode(memoryview(log)))
    list(decoder.decode(bytes(plain(5000, 0, 20))))
    log[:] = bytes(len(log))
    assert [row for batch in made for row in as_rows(batch)] == expected


@both_ways
def test_a_decoder_takes_piece_after_piece(way: type[Way]) -> None:
    """Bytes, memoryviews and Arrow buffers; a call given up halfway leaves nothing behind."""
    decoder = BatchDecoder("t", 0, ["offset"], EVERYTHING, target_bytes=100, way=way)
    abandoned: Iterator[pa.RecordBatch] = decoder.decode(plain(100))
    next(abandoned)
    del abandoned
    found = [
        n
        for piece in (plain(3), memoryview(plain(3, 3)), pa.py_buffer(plain(3, 6)), b"")
        for batch in decoder.decode(piece)
        for n in batch.column("offset").to_pylist()
    ]
    assert found == list(range(9))


@both_ways
def test_poison_comes_after_the_rows_before_it_and_names_where_to_go_on(way: type[Way]) -> None:
    """Damage in the middle: rows before it, the error, and from next_position the rows behind it."""
    parts = [plain(5), plain(5, 5, codec=Codec.ZSTD), plain(5, 10)]
    damaged = bytearray(parts[1])
    damaged[-1] ^= 1
    log = parts[0] + bytes(damaged) + parts[2]
    rows, poison, covered = read(log, way, ["offset"])
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert poison is not None and covered == [(0, 5)]
    assert (poison.base_offset, poison.position) == (5, len(parts[0]))
    assert poison.next_position == len(parts[0]) + len(parts[1])
    assert "CRC" in poison.reason
    rows, poison, _ = read(log[poison.next_position :], way, ["offset"])
    assert [row["offset"] for row in rows] == [10, 11, 12, 13, 14] and poison is None


@both_ways
def test_a_length_that_leads_nowhere_is_not_believed(way: type[Way]) -> None:
    """Cut short, a wrong magic, a length that points into other bytes: no next_position."""
    good = plain(5)
    wrong_length = bytearray(good)
    wrong_length[11] -= 7
    wrong_magic = bytearray(good)
    wrong_magic[16] = 1
    for log in (good[:-1], good[:30], good + bytes(wrong_magic), good + bytes(wrong_length) + plain(5, 5)):
        _, poison, _ = read(log, way)
        assert poison is not None and poison.next_position is None


@both_ways
def test_a_well_sealed_batch_of_nonsense_is_poison_as_a_whole(way: type[Way]) -> None:
    """A batch larger than a batch of rows whose last record is malformed gives none of its rows."""
    batch = bytearray(plain(2000, 5, 100))
    batch[-1] = 9  # claims headers
    rows, poison, _ = read(plain(5) + with_right_crc(batch), way, ["offset", "value"], target_bytes=10_000)
    assert len(rows) == 5
    assert poison is not None and poison.base_offset == 5 and poison.next_position is not None


@both_ways
def test_damage_outside_the_wanted_offsets_does_not_matter(way: type[Way]) -> None:
    """So a reader can start behind a poisonous batch, although the index leads it to before that batch."""
    first, last = bytearray(plain(5)), bytearray(plain(5, 10))
    first[70] ^= 1
    last[70] ^= 1
    log = bytes(first) + plain(5, 5) + bytes(last)
    rows, poison, _ = read(log, way, ["offset"], RowFilter(5, 10))
    assert [row["offset"] for row in rows] == [5, 6, 7, 8, 9] and poison is None


@both_ways
def test_a_batch_skipped_for_its_time_had_its_crc_checked(way: type[Way]) -> None:
    """The maximum timestamp that lets a batch be skipped is believed only under a right CRC."""
    batch = bytearray(plain(5))
    batch[70] ^= 1
    _, poison, _ = read(bytes(batch), way, rows=RowFilter(0, 100, 10_000, None))
    assert poison is not None


def test_poison_travels_between_processes() -> None:
    """Spark's workers send errors to the driver by pickle."""
    poison = PoisonBatch(5, 10, None, "why")
    again = pickle.loads(pickle.dumps(poison))
    assert (again.base_offset, again.position, again.next_position, again.reason) == (5, 10, None, "why")
    assert str(again) == str(poison)
