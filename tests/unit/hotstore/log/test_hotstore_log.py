"""Appending to and reading from one log: offsets, rolls, limits, indexes, times."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hotstore.errors import (
    DamagedLog,
    LeaderEpochFenced,
    LogFull,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
    ReservationExhausted,
)
from hotstore.file_names import parse_partition_dir
from hotstore.flush.durability import write_index_files
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState, PartitionLog
from hotstore.log.segment import IndexCache, IndexNeeded
from logformat.gap import gap_batches
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.record_batch import HEADER, INT32_MAX, check_stored, read_header
from logformat.records import iter_records
from seams import crash_points
from seams.files.disk import File, read_file
from seams.files.posix_disk import PosixDisk
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    LOG_PATH,
    TOPIC_ID,
    append,
    batch,
    flush,
    new_log,
    open_log,
    read_all,
    seal,
)

CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=200)


def fresh(config: LogConfig = CONFIG, start_offset: int = 0) -> PartitionLog:
    return new_log(CrashDisk(), config, start_offset)[1]


def bases(log: PartitionLog) -> list[int]:
    return [info.base_offset for info in (*log.sealed_segments(), log.active_info())]


def test_offsets_and_epoch_are_stamped_in_place() -> None:
    """The producer's own buffer becomes what is stored; its CRC stays right."""
    log = fresh(start_offset=100)
    data = batch(3)
    done = append(log, data, leader_epoch=7)
    assert (done.base_offset, done.last_offset, done.log_append_time_ms) == (100, 102, -1)
    header = check_stored(data, 0, len(data))
    assert (header.base_offset, header.leader_epoch) == (100, 7)
    assert read_all(log, 100) == [bytes(data)]
    assert log.epochs == LeaderEpochs((EpochStart(7, 100),))


def test_several_batches_are_one_write() -> None:
    """One pwrite for all; offsets go on inside."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    before = disk.hits["write"]
    done = append(log, batch(2) + batch(3) + batch(1))
    assert (done.base_offset, done.last_offset) == (0, 5)
    assert disk.hits["write"] == before + 1
    assert [read_header(data).base_offset for data in read_all(log, 0)] == [0, 2, 5]


def test_a_refused_batch_among_several_writes_none() -> None:
    """Idempotence is checked for all before anything is written."""
    log = fresh()
    good, bad = batch(1, producer_id=1, epoch=0, sequence=0), batch(1, producer_id=1, epoch=0, sequence=5)
    with pytest.raises(OutOfOrderSequence):
        append(log, good + bad)
    assert log.log_end_offset == 0 and log.local_bytes == 0
    assert not append(log, good).duplicate


def test_log_append_time_is_stamped() -> None:
    """The broker's clock replaces the records' timestamps, CRC renewed, and stands in the answer."""
    log = fresh(LogConfig(log_append_time=True))
    done = append(log, batch(2, timestamp=5), now_ms=777)
    assert done.log_append_time_ms == 777
    (data,) = read_all(log, 0)
    check_stored(data, 0, len(data))
    assert [record.timestamp for record in iter_records(data)] == [777, 777]
    assert log.max_timestamp() == (777, 0, 0)


@pytest.mark.parametrize(
    ("config", "appends", "expected"),
    [
        (LogConfig(segment_bytes=300), [(0, 100)] * 4, [0, 1, 2, 3]),
        (LogConfig(segment_bytes=100_000, segment_ms=50), [(0, 1), (50, 1), (51, 1), (60, 1)], [0, 2]),
        (LogConfig(index_interval_bytes=0, segment_index_bytes=48), [(0, 1)] * 9, [0, 4, 8]),
    ],
    ids=["segment.bytes", "segment.ms since the first append", "index full"],
)
def test_a_segment_rolls(config: LogConfig, appends: list[tuple[int, int]], expected: list[int]) -> None:
    """By size before it would be exceeded, by the broker's clock, or when an index is full."""
    log = fresh(config)
    for number, (now_ms, size) in enumerate(appends):
        append(log, batch(size=size, timestamp=1000 + number), now_ms=now_ms)
    assert bases(log) == expected


def test_an_append_larger_than_a_segment_is_refused() -> None:
    """Nothing is written, nothing rolls."""
    log = fresh()
    append(log, batch())
    with pytest.raises(RecordListTooLarge):
        append(log, batch(size=2_000))
    assert bases(log) == [0] and log.log_end_offset == 1


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_that_spans_more_offsets_than_an_index_can_tell_is_refused_before_it_is_written(first: int) -> None:
    """Headers of few bytes may claim 2^31 offsets each: together they fit no segment, one by one they do."""
    log = fresh(LogConfig(index_interval_bytes=0))
    for _ in range(first):
        append(log, batch())
    size = log.local_bytes
    wide = bytearray(batch(3))
    header = read_header(wide)
    HEADER.pack_into(wide, 0, *header._replace(last_offset_delta=INT32_MAX))
    run = [memoryview(bytearray(wide)) for _ in range(2)]
    with pytest.raises(RecordListTooLarge, match="offsets"):
        log.append_as_leader(run, [read_header(one) for one in run], 0, 5)
    assert (log.log_end_offset, log.local_bytes, bases(log)) == (first, size, [0])
    for one in run:
        log.append_as_leader([one], [read_header(one)], 0, 5)
    assert log.log_end_offset == first + 2 * (INT32_MAX + 1)
    assert len(bases(log)) == 2 + first


def test_gaps_roll_where_offsets_would_not_fit() -> None:
    """A hole of several 2^31 offsets closes with one segment a batch; a fetch anywhere in it gets that batch."""
    log = fresh()
    append(log, batch(3))
    end = 3 + 2 * INT32_MAX + 10
    gaps = list(gap_batches(3, end, 4))
    for gap in gaps:
        log.append_gap(gap, 5)
    assert log.log_end_offset == end and len(gaps) == 3
    assert bases(log) == [0, 3, 3 + INT32_MAX, 3 + 2 * INT32_MAX]
    found = log.read(3 + INT32_MAX + 77, 1, end, min_one=True)
    assert found is not None
    assert found.file.read_at(found.position, found.length) == gaps[1]
    done = append(log, batch(1), leader_epoch=4)
    assert done.base_offset == end and log.epochs.latest == EpochStart(4, 3)


def test_no_append_crosses_the_reserved_end() -> None:
    """Up to it is allowed, beyond is not; raising it is enough to go on (design 6)."""
    log = fresh()
    log.reserved_end = 5
    append(log, batch(5))
    with pytest.raises(ReservationExhausted):
        append(log, batch(1))
    assert log.log_end_offset == 5
    log.reserved_end = 6
    append(log, batch(1))


def test_an_older_leader_is_fenced() -> None:
    """The log knows the latest epoch that wrote to it."""
    log = fresh()
    append(log, batch(), leader_epoch=5)
    with pytest.raises(LeaderEpochFenced):
        append(log, batch(), leader_epoch=4)


def test_a_full_disk_refuses_appends_and_goes_on_by_itself() -> None:
    """Cut back after the short write, reads and flushed data untouched, full until an append succeeds (fault D6)."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=10_000))
    kept = batch(2)
    append(log, kept)
    flush(log)
    space = disk.space("/")
    disk.capacity_bytes = space.total - space.free + 30
    with pytest.raises(LogFull, match="free space"):
        append(log, batch(5))
    assert log.state is LogState.FULL and log.log_end_offset == 2
    assert disk.stat(f"{LOG_PATH}/{0:020d}.log") is not None
    assert len(read_file(disk, f"{LOG_PATH}/{0:020d}.log")) == log.local_bytes
    assert read_all(log, 0) == [bytes(kept)]
    disk.capacity_bytes = 1 << 40
    append(log, batch(5))
    assert log.state is LogState.ONLINE and disk.hits["fault:full"] == 1


def test_no_space_for_a_new_segment_file_is_full_too() -> None:
    """The roll did not happen, and happens at the next append."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    append(log, batch(size=800))
    disk.inject("create", errno.ENOSPC, ".log")
    with pytest.raises(LogFull):
        append(log, batch(size=800))
    assert log.state is LogState.FULL and bases(log) == [0]
    append(log, batch(size=800))
    assert bases(log) == [0, 1]


def test_reads_never_pass_the_limit() -> None:
    """Bytes at or above the limit's batch stay, wherever the limit lies; None where nothing is left."""
    log = fresh()
    batches = []
    for count in (2, 3, 4, 1, 5, 2):
        data = batch(count, size=60)
        append(log, data)
        batches.append(data)
    ends = [2, 5, 9, 10, 15, 17]
    for limit in range(18):
        visible = [bytes(data) for data, end in zip(batches, ends, strict=True) if end <= limit]
        assert read_all(log, 0, limit=limit) == visible
    assert log.read(17, 100, 17, min_one=True) is None
    assert log.read(17, 100, 99, min_one=True) is None
    with pytest.raises(OffsetOutOfRange):
        log.read(18, 100, 17, min_one=True)


def test_reads_below_the_start_are_out_of_range() -> None:
    """After DeleteRecords and after local retention."""
    log = fresh()
    for _ in range(6):
        append(log, batch(2, size=300))
    flush(log)
    seal(log)
    log.advance_log_start(3)
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 100, 12, min_one=True)
    assert log.read(3, 100, 12, min_one=True) is not None
    log.delete_local_before(6)
    assert log.local_log_start_offset > 3
    with pytest.raises(OffsetOutOfRange):
        log.read(3, 100, 12, min_one=True)
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(13)
    assert not log.advance_log_start(2) and log.log_start_offset == 3


def test_small_reads_end_where_batches_end() -> None:
    """A limit in bytes gives whole batches; the first one even when larger, if asked for; otherwise nothing."""
    log = fresh(LogConfig(index_interval_bytes=200))
    sizes = []
    for _ in range(20):
        data = batch(1, size=100)
        append(log, data)
        sizes.append(len(data))
    for wanted in (1, sizes[0] - 1, sizes[0], sizes[0] + 1, 3 * sizes[0], 1_000, 10**6):
        found = log.read(0, wanted, 20, min_one=True)
        assert found is not None
        assert found.length % sizes[0] == 0 and found.length <= max(wanted, sizes[0])
        # An index entry is a border that costs no search; it lies at most an interval and a batch before the limit.
        assert found.length >= max(sizes[0], min(wanted, sum(sizes)) - 200 - 2 * sizes[0])
    nothing = log.read(0, sizes[0] - 1, 20, min_one=False)
    assert nothing is not None and nothing.length == 0


class CountingFile:
    """Counts reads of the file it stands for."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.reads = 0

    def read_at(self, position: int, length: int) -> bytes:
        self.reads += 1
        return self.file.read_at(position, length)

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_readers_at_the_tail_touch_no_file() -> None:
    """Positions of recent appends and of the high watermark are remembered; whoever reads on pays one header."""
    log = fresh(LogConfig(index_interval_bytes=200))
    for _ in range(300):
        append(log, batch(2, size=50))
    counting = CountingFile(log.active_segment.file)
    log.active_segment.file = counting  # type: ignore[assignment]
    for offset in range(400, 600, 2):
        found = log.read(offset, 1 << 20, 598, min_one=True)
        assert (found is None) == (offset == 598)
    assert counting.reads == 0
    reader, steps = 0, 0
    while (found := log.read(reader, 2_000, 600, min_one=True)) is not None:
        data = counting.file.read_at(found.position, found.length)
        at = 0
        while at < len(data):
            header = read_header(data, at)
            reader, at = header.next_offset, at + header.size
        steps += 1
    assert steps > 20 and counting.reads <= steps + 1


def test_indexes_are_kafkas() -> None:
    """An entry (last offset of the batch, its position) before which more than the interval went by; the time index
    follows and gets a last entry when the segment rolls; a recovered segment gets the same files."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=2_000, index_interval_bytes=300))
    places, position = [], 0
    for number in range(12):
        data = batch(2, size=20, timestamp=1000 + 10 * number)
        places.append((number, position))
        position += len(data)
        append(log, data)
    size = len(data)
    log.roll()
    flush(log)
    seal(log)
    offsets = OffsetIndex(0, read_file(disk, f"{LOG_PATH}/{0:020d}.index"))
    times = TimeIndex(0, read_file(disk, f"{LOG_PATH}/{0:020d}.timeindex"))
    step = 300 // size + 1
    wanted = [(2 * number + 1, at) for number, at in places[step::step]]
    assert list(offsets.entries()) == wanted
    stamps = [(1000 + 10 * number + 1, 2 * number + 1) for number, _ in places[step::step]]
    assert list(times.entries()) == [*stamps, (1111, 23)][: len(stamps) + (stamps[-1][1] != 23)]
    before = {name: read_file(disk, f"{LOG_PATH}/{name}") for name in disk.list_dir(LOG_PATH) if "index" in name}
    for name in (*before, f"{24:020d}.producers"):
        disk.unlink(f"{LOG_PATH}/{name}")
    disk = disk.kill()
    open_log(disk, LogConfig(segment_bytes=2_000, index_interval_bytes=300))
    assert {name: read_file(disk, f"{LOG_PATH}/{name}") for name in before} == before


@given(
    stamps=st.lists(st.integers(-1, 40), min_size=1, max_size=25),
    wanted=st.integers(0, 45),
    start=st.integers(0, 30),
    reopened=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_offsets_by_time(stamps: list[int], wanted: int, start: int, reopened: bool) -> None:
    """Against a list of records: the first that is not older, at or above the log start, whatever the order."""
    disk = CrashDisk()
    config = LogConfig(segment_bytes=400, index_interval_bytes=100)
    directory, log = new_log(disk, config)
    records: list[tuple[int, int]] = []
    for stamp in stamps:
        records += [(stamp + index, len(records) + index) for index in range(2)]
        append(log, batch(2, size=10, timestamp=stamp))
    flush(log)
    seal(log)
    log.advance_log_start(min(start, log.log_end_offset))
    if reopened:
        log.close(clean=True)
        directory.checkpoints.sample([log]).run()
        directory.mark_clean()
        _, log = open_log(disk.kill(), config)
    live = [record for record in records if record[1] >= log.log_start_offset]
    first = next((record for record in live if record[0] >= wanted), None)
    found = log.offset_for_timestamp(wanted)
    assert (None if found is None else found[:2]) == first
    greatest = max(stamp for stamp, _ in records)
    top = log.max_timestamp()
    assert top is not None and top[:2] == next(record for record in records if record[0] == greatest)


def test_index_files_of_an_earlier_stop_hide_no_timestamp() -> None:
    """A log goes on after a clean stop, rolls, is synced and checkpointed, and killed before the rolled segment's
    files are written: those beside it are the stop's."""
    disk = CrashDisk()
    directory, log = new_log(disk, LogConfig())
    append(log, batch(timestamp=1_000))
    log.close(clean=True)
    directory.checkpoints.sample([log]).run()
    directory.mark_clean()
    disk = disk.kill()
    directory, log = open_log(disk, LogConfig())
    for timestamp in (5_000, 10):
        append(log, batch(timestamp=timestamp))
    log.roll()
    append(log, batch(timestamp=20))
    flush(log)
    directory.checkpoints.sample([log]).run()
    _, found = open_log(disk.kill(), LogConfig())
    at = found.offset_for_timestamp(3_000)
    assert at is not None and at[:2] == (5_000, 1)
    top = found.max_timestamp()
    assert top is not None and top[:2] == (5_000, 1)


def test_crash_points_stand_where_they_say() -> None:
    """A roll's file exists before its point; an unlink's first file is gone and the others are not."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    seen: list[tuple[str, list[str]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_points, "reach", lambda point: seen.append((point, disk.list_dir(LOG_PATH))))
        append(log, batch(size=800))
        append(log, batch(size=800))
        flush(log)
        seal(log)
        log.delete_local_before(1)
        log.unlink()
    points = [point for point, _ in seen]
    assert points[:4] == ["append.written", "roll.created", "append.written", "flush.synced"]
    assert f"{1:020d}.log" in seen[1][1]
    assert points[4] == "expire.local_unlinked"
    assert [name for name in seen[4][1] if name.startswith(f"{0:020d}")] == [
        f"{0:020d}.log.deleted" if suffix == "log" else f"{0:020d}.{suffix}.deleted"
        for suffix in ("index", "timeindex")
    ]


def test_a_deleted_segment_is_still_read_by_who_holds_it() -> None:
    """A slice that is being sent outlives its segment, on a real disk."""
    import tempfile

    with tempfile.TemporaryDirectory() as path:
        log = PartitionLog.create(PosixDisk(), f"{path}/t-0", "t", 0, TOPIC_ID, CONFIG, staged=f"{path}/t-0.new")
        data = batch(size=800)
        append(log, data)
        append(log, batch(size=800))
        flush(log)
        seal(log)
        found = log.read(0, 10_000, 1, min_one=True)
        assert found is not None and found.sealed
        log.delete_local_before(1)
        log.unlink()
        assert found.file.read_at(found.position, found.length) == bytes(data)
        log.close(clean=False)


def test_a_known_damage_keeps_no_frames_of_the_reads_that_met_it() -> None:
    """An error object collects the frames of each raise, and the damage is raised until the log is closed."""
    segment = fresh().active_segment
    segment.damage = DamagedLog(segment.file.path, 0, 0, "damaged", "restore it")
    frames = set()
    for _ in range(3):
        with pytest.raises(DamagedLog) as met:
            segment.sound_bytes(0, 100)
        frames.add(len(met.traceback))
    assert len(frames) == 1


def test_old_indexes_are_loaded_on_demand() -> None:
    """Sealed segments keep no index in memory. A read on the loop asks a worker for it."""
    log = fresh()
    for _ in range(8):
        append(log, batch(size=400))
    flush(log)
    seal(log)
    assert log.read_loaded(log.log_end_offset - 1, 100, 8, min_one=True) is not None
    with pytest.raises(IndexNeeded) as needed:
        log.read_loaded(1, 100, 8, min_one=True)
    needed.value.load()
    assert log.read_loaded(1, 100, 8, min_one=True) is not None


def test_the_index_cache_is_bounded_and_forgets_the_oldest() -> None:
    """In bytes, over all logs of a data directory; what is in use stays."""
    log = fresh(LogConfig(segment_bytes=500, index_interval_bytes=100))
    for _ in range(12):
        append(log, batch(size=300))
    flush(log)
    seal(log)
    segments = list(log._locator.segments[:-1])
    cache = IndexCache(bytes_max=2_000)
    for segment in segments:
        cache.get(segment)
        cache.get(segments[0])
    kept = [segment for segment in segments if cache.loaded(segment) is not None]
    assert segments[0] in kept and segments[-1] in kept and 2 <= len(kept) <= 3


@pytest.mark.parametrize("released", [False, True])
def test_the_indexes_of_a_range_are_its_segments_own(released: bool) -> None:
    """Whole, they are the segment's; of its rest, those behind the first byte, positions counted from there. A log
    whose entries are too far apart, and a file that is no longer the log's, have none."""
    log = fresh(LogConfig(index_interval_bytes=200))
    for number in range(30):
        append(log, batch(2, size=60, timestamp=10 * number))
    segment = log.active_segment
    whole = segment.indexer
    assert whole is not None
    seal(log)
    flush(log)
    if released:
        write_index_files(segment)
        segment.release_indexes()
    (everything,) = log.batch_ranges(0, 60)
    found = log.batch_indexes(everything, 200)
    assert found is not None and len(found.offsets) > 5
    assert found.offsets.to_bytes() == whole.offset_index.to_bytes()
    (rest,) = log.batch_ranges(30, 60)
    found = log.batch_indexes(rest, 4096)
    assert found is not None
    assert [(e.offset, e.position + rest.position) for e in found.offsets.entries()] == [
        (e.offset, e.position) for e in whole.offset_index.entries() if e.position > rest.position
    ]
    assert set(found.times.entries()) <= set(whole.time_index.entries()) and len(found.times) == len(found.offsets)
    assert log.batch_indexes(rest, 199) is None
    assert log.batch_indexes(replace(rest, file=fresh().active_segment.file), 4096) is None


def test_a_worker_may_look_while_the_loop_appends() -> None:
    """An index entry that is half written is passed over."""
    log = fresh(LogConfig(index_interval_bytes=100))
    for number in range(20):
        append(log, batch(2, size=60, timestamp=10 * number))
    indexer = log.active_segment.indexer
    assert indexer is not None
    del indexer.offset_index._positions[-1]
    del indexer.time_index._offsets[-1]
    found = log.offset_for_timestamp(191)
    assert found is not None and found[:2] == (191, 39)
    assert log.batch_ranges(39, 40)[0].length == len(read_all(log, 39)[0])
    some = log.batch_indexes(log.batch_ranges(0, 40)[0], 100)
    assert some is not None and len(some.offsets.columns[0]) == len(some.offsets.columns[1]) > 5


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-12", ("a-b", 12)),
        ("orders-01", None),
        ("orders", None),
        ("orders-0.0123456789abcdef0123456789abcdef-delete", None),
        ("orders-99999999999", None),
        ("..-1", None),
    ],
)
def test_directory_names(name: str, parsed: tuple[str, int] | None) -> None:
    """Only what Kafka would have written is a log."""
    assert parse_partition_dir(name) == parsed


def test_a_response_under_way_keeps_its_file_when_the_log_is_closed(tmp_path: Path) -> None:
    """A topic is deleted while sendfile is in the middle of its segment: the rest still comes from that file, never
    from one that got the same descriptor since; the last holder closes it."""
    disk = PosixDisk()
    log = PartitionLog.create(
        disk, f"{tmp_path}/log-0", "log", 0, TOPIC_ID, LogConfig(), staged=f"{tmp_path}/log-0.new"
    )
    data = batch(5)
    append(log, data)
    found = log.read(0, 1 << 20, 5, min_one=True)
    assert found is not None
    descriptor = found.file.descriptor()
    assert descriptor is not None
    log.close(clean=False)
    (tmp_path / "other").write_bytes(b"secret" * 100)
    others = [disk.open(str(tmp_path / "other")) for _ in range(20)]
    assert descriptor not in [other.descriptor() for other in others]
    assert found.file.descriptor() == descriptor
    assert os.pread(descriptor, found.length, found.position) == bytes(data)
    with pytest.raises(OSError, match="closed"):
        log.active_segment.file.size()
    del found
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
