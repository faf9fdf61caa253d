"""The cleaner's engine in the calling thread, on a disk in memory."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from hotstore.cleaning import batch_reader, segment_writer
from hotstore.cleaning.engine import CleanerLost, LocalEngine
from hotstore.errors import DamagedLog
from hotstore.log.segment import Segment, build_indexer
from logformat.record_batch import BASE_TIMESTAMP_AT, LENGTH_AT, MAGIC_AT, Codec, read_header, walk
from seams.files import part_writer
from seams.files.disk import File, is_full
from seams.files.page_cache import drop, is_cold
from seams.files.posix_disk import PosixDisk
from seams.rng import SeededRng
from tests.support.disk.cleaning_kit import (
    BUFFER_BYTES,
    INTERVAL_BYTES,
    RULES,
    clean_all,
    content,
    keyed_batch,
    keyed_batches,
    map_all,
    open_targets,
    put_segment,
    values_of,
    whole_pass,
)
from tests.support.disk.crash_disk import CrashDisk

D = "/log"


@pytest.fixture
def disk() -> CrashDisk:
    disk = CrashDisk()
    disk.make_dirs(D)
    disk.sync_dir("/")
    return disk


@pytest.fixture
def engine() -> LocalEngine:
    return LocalEngine(SeededRng(1))


@pytest.mark.parametrize("chunk", [1, 700, 1 << 20])
def test_the_newest_record_of_each_key_stays(disk: CrashDisk, engine: LocalEngine, chunk: int) -> None:
    batches = keyed_batches(40)
    first, second = (
        put_segment(disk, f"{D}/{name}", half) for name, half in (("a", batches[:25]), ("b", batches[25:]))
    )
    done = whole_pass(engine, disk, D, [(0, [first, second])], chunk=chunk)
    assert values_of(done.log) == values_of(b"".join(batches))
    assert done.mapped_end == 200 and len(done.log) < 1500
    offset = 0
    for _, header in walk(done.log):
        assert header.base_offset == offset, "a batch begins where the last one ends"
        offset = header.next_offset
    assert offset == 200


def test_indexes_are_those_of_an_append(disk: CrashDisk, engine: LocalEngine) -> None:
    source = put_segment(disk, f"{D}/a", keyed_batches(60, keys=150))
    done = whole_pass(engine, disk, D, [(0, [source])])
    ((log, offset_index, time_index),) = done.files
    segment = Segment(disk.open_dir(D), 0, put_segment(disk, f"{D}/copy", [log]), INTERVAL_BYTES, size=len(log))
    rebuilt = build_indexer(segment)
    assert offset_index == rebuilt.offset_index.to_bytes() and len(offset_index) > 80
    assert time_index == rebuilt.time_index.to_bytes()
    (result,) = done.segments
    assert (result.size, result.end_offset) == (len(log), 300)
    assert (result.max_timestamp, result.max_timestamp_offset) == (299, 299)


def test_what_was_finished_survives_a_power_cut(disk: CrashDisk, engine: LocalEngine) -> None:
    source = put_segment(disk, f"{D}/a", keyed_batches(40))
    targets = open_targets(disk, D, 0)
    disk.sync_dir(D)
    engine.begin(BUFFER_BYTES, RULES)
    map_all(engine, [source], 1000)
    engine.begin_segment(0, INTERVAL_BYTES, *targets)
    clean_all(engine, [source], 1000)
    engine.finish_segment()
    after = disk.crash(SeededRng(1), keep_probability=0.0)
    assert [content(after.open(file.path)) for file in targets] == [content(file) for file in targets]


def test_a_long_segment_is_synced_as_it_grows(
    disk: CrashDisk, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_writer, "PART_MIN", 2000)
    source = put_segment(disk, f"{D}/a", keyed_batches(60, keys=1000))
    whole_pass(engine, disk, D, [(0, [source])], chunk=700)
    assert 5 < disk.hits["sync"] < 20, disk.hits


def test_a_batch_longer_than_the_buffer_is_read_whole(
    disk: CrashDisk, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "READ_BYTES_MAX", 300)
    batches = [keyed_batch(0, [b"a"]), keyed_batch(1, [b"b"], size=5000), keyed_batch(2, [b"c"])]
    source = put_segment(disk, f"{D}/a", batches)
    done = whole_pass(engine, disk, D, [(0, [source])], chunk=1 << 20)
    assert done.log == b"".join(batches)


def test_leftovers_in_the_files_do_not_stay(disk: CrashDisk, engine: LocalEngine) -> None:
    for file in open_targets(disk, D, 0):
        file.write_at(0, [bytes(100_000)])
    done = whole_pass(engine, disk, D, [(0, [put_segment(disk, f"{D}/a", [keyed_batch(0, [b"a"])])])])
    assert done.files == ((keyed_batch(0, [b"a"]), b"", struct.pack(">qi", 0, 0)),)


def test_a_segment_without_input_is_empty(disk: CrashDisk, engine: LocalEngine) -> None:
    engine.begin(BUFFER_BYTES, RULES)
    engine.begin_segment(7, INTERVAL_BYTES, *open_targets(disk, D, 7))
    result = engine.finish_segment()
    assert (result.size, result.end_offset, result.max_timestamp) == (0, 7, -1)


def test_a_full_map_ends_the_pass_at_a_batch(disk: CrashDisk, engine: LocalEngine) -> None:
    """The next pass begins where this one ended; together they are one."""
    batches = keyed_batches(40, keys=60)
    source = put_segment(disk, f"{D}/a", batches)
    engine.begin(24 * 40, RULES)
    position, ends = 0, [0]
    while position < source.size():
        mapped = engine.map(source, position, min(2000, source.size() - position))
        position += mapped.taken_bytes
        if mapped.is_full:
            assert mapped.end_offset > ends[-1] and mapped.end_offset % 5 == 0
            ends.append(mapped.end_offset)
            engine.begin(24 * 40, RULES)
    assert len(ends) > 3 and mapped.end_offset == 200


def flipped(source: File, position: int) -> None:
    source.write_at(position, [bytes([source.read_at(position, 1)[0] ^ 1])])


@pytest.mark.parametrize(
    ("within", "what"),
    [
        (BASE_TIMESTAMP_AT, "fails its CRC"),
        (200, "fails its CRC"),
        (7, "the one before it ends at 50"),
        (MAGIC_AT, "magic 3"),
        (LENGTH_AT, "the file ends within a batch"),
    ],
)
@pytest.mark.parametrize("step", ["map", "clean"])
def test_damage_is_named_with_its_place(
    disk: CrashDisk, engine: LocalEngine, step: str, within: int, what: str
) -> None:
    batches = keyed_batches(30)
    source = put_segment(disk, f"{D}/a", batches)
    at = sum(map(len, batches[:10]))
    engine.begin(BUFFER_BYTES, RULES)
    if step == "clean":
        map_all(engine, [source], 3000)
        engine.begin_segment(0, INTERVAL_BYTES, *open_targets(disk, D, 0))
    flipped(source, at + within)
    with pytest.raises(DamagedLog, match=what) as caught:
        (map_all if step == "map" else clean_all)(engine, [source], 3000)
    assert (caught.value.file, caught.value.position, caught.value.offset) == (f"{D}/a", at, 50)
    engine.end()
    flipped(source, at + within)
    whole_pass(engine, disk, D, [(0, [source])])


def test_a_file_that_ends_within_a_batch_is_damaged(disk: CrashDisk, engine: LocalEngine) -> None:
    batches = keyed_batches(3)
    source = put_segment(disk, f"{D}/a", batches)
    source.truncate(source.size() - 1)
    engine.begin(BUFFER_BYTES, RULES)
    with pytest.raises(DamagedLog, match="the file ends within a batch") as caught:
        map_all(engine, [source], 1 << 20)
    assert (caught.value.position, caught.value.offset) == (len(batches[0]) + len(batches[1]), 10)
    engine.begin(BUFFER_BYTES, RULES)
    with pytest.raises(DamagedLog, match="0 bytes"):
        engine.map(source, source.size(), 100)


def test_an_unknown_codec_is_damage(disk: CrashDisk, engine: LocalEngine) -> None:
    """Not a client's error: the log must not hold it."""
    batch = bytearray(keyed_batch(0, [b"a"], codec=Codec.ZSTD))
    batch[22] = 7
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    assert read_header(batch).attributes == 7
    source = put_segment(disk, f"{D}/a", [keyed_batch(0, [b"a"])])
    source.write_at(0, [batch])
    source.truncate(len(batch))
    engine.begin(BUFFER_BYTES, RULES)
    with pytest.raises(DamagedLog):
        engine.map(source, 0, source.size())


@pytest.mark.parametrize("kind", ["write", "truncate", "sync", "read"])
def test_a_disk_that_refuses_is_told_by_its_own_error(disk: CrashDisk, engine: LocalEngine, kind: str) -> None:
    source = put_segment(disk, f"{D}/a", keyed_batches(20))
    disk.inject(kind, errno.ENOSPC, suffix="a" if kind == "read" else ".log.cleaned")
    with pytest.raises(OSError) as caught:
        whole_pass(engine, disk, D, [(0, [source])])
    assert is_full(caught.value)
    engine.end()
    disk.heal()
    whole_pass(engine, disk, D, [(0, [source])])


def test_a_segment_beyond_its_index_is_refused(
    disk: CrashDisk, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "INT32_MAX", 3000)
    source = put_segment(disk, f"{D}/a", keyed_batches(40, keys=500))
    with pytest.raises(OSError, match="2 GiB") as caught:
        whole_pass(engine, disk, D, [(0, [source])])
    assert caught.value.errno == errno.EFBIG


def test_calls_out_of_order_are_refused(disk: CrashDisk, engine: LocalEngine) -> None:
    source = put_segment(disk, f"{D}/a", keyed_batches(2))
    engine.end()
    with pytest.raises(AssertionError, match="no pass"):
        engine.map(source, 0, 100)
    engine.begin(BUFFER_BYTES, RULES)
    with pytest.raises(AssertionError, match="no segment"):
        engine.clean(source, 0, 100)
    engine.begin_segment(0, INTERVAL_BYTES, *open_targets(disk, D, 0))
    with pytest.raises(AssertionError, match="before the first segment"):
        engine.map(source, 0, 100)


def test_a_closed_engine_is_lost(disk: CrashDisk, engine: LocalEngine) -> None:
    source = put_segment(disk, f"{D}/a", keyed_batches(2))
    engine.begin(BUFFER_BYTES, RULES)
    engine.close()
    with pytest.raises(CleanerLost):
        engine.map(source, 0, 100)
    engine.end()
    with pytest.raises(CleanerLost):
        engine.begin(BUFFER_BYTES, RULES)


# --- the page cache ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("was_cached", [True, False])
def test_a_pass_leaves_the_page_cache_as_it_found_it(tmp_path: Path, engine: LocalEngine, was_cached: bool) -> None:
    """Of a segment that nobody read lately, neither the bytes that it read stay there nor those that it wrote; what was
    cached stays, and so does what replaces it."""
    batches = b"".join(keyed_batches(2_000))
    path = tmp_path / "a.log"
    path.write_bytes(batches)
    disk = PosixDisk()
    directory = disk.open_dir(str(tmp_path))
    source = directory.open("a.log")
    fd = source.descriptor()
    assert fd is not None
    if is_cold(fd, 0, len(batches)) is None:
        pytest.skip("this kernel has no cachestat, or a sandbox hides it")
    os.fsync(fd)
    if not was_cached:
        drop(fd, 0, 0)
        assert is_cold(fd, 0, len(batches))
    targets = [directory.open(name, write=True, create=True) for name in ("log", "offsets", "times")]
    engine.begin(BUFFER_BYTES, RULES)
    map_all(engine, [source], 20_000)
    engine.begin_segment(0, INTERVAL_BYTES, *targets)
    clean_all(engine, [source], 20_000)
    done = engine.finish_segment()
    engine.end()
    written = targets[0].descriptor()
    assert written is not None
    assert [is_cold(fd, 0, len(batches)), is_cold(written, 0, done.size)] == [not was_cached] * 2
