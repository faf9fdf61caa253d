"""A cleaned segment replaces a run of sealed ones: what is read, what a power cut or kill at any step leaves."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from hotstore.errors import DamagedLog
from hotstore.file_names import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, offset_file
from hotstore.flush.durability import write_whole
from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.log.log_swap import SegmentRun
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.segment_swap import cleaned_file, remove_cleaned
from logformat.gap import gap_batches
from logformat.indexes.segment_index import SegmentIndexer
from logformat.record_batch import read_header, walk
from logformat.records import Record, encode_batch
from logformat.transaction_marker import TransactionMarker, marker_of
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    LOG_PATH,
    ORDERS,
    append,
    batch,
    flush,
    new_log,
    open_log,
    read_all,
    seal,
)
from tests.support.disk.power_cut import PowerCut, cut_before

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
KEEPS = (0.0, 0.5, 1.0)


def sealed_log(disk: CrashDisk) -> PartitionLog:
    return sealed(disk)[1]


def sealed(disk: CrashDisk) -> tuple[DataDir, PartitionLog]:
    """A log of six segments, the last one active, all synced, with an idempotent producer."""
    directory, log = new_log(disk, CONFIG)
    sequence = 0
    while len(log.sealed_segments()) < 5:
        data = batch(2, size=60, timestamp=1_000 + sequence, producer_id=7, epoch=0, sequence=sequence)
        append(log, data, leader_epoch=0)
        sequence += 2
        flush(log)
        seal(log)
    directory.checkpoints.sample([log]).run()
    return directory, log


def sealed_with_aborted(disk: CrashDisk) -> tuple[DataDir, PartitionLog]:
    """As `sealed`, with an aborted transaction in most segments."""
    abort = TransactionMarker(9, 0, is_commit=False, coordinator_epoch=0)
    aborted = encode_batch([Record(0, 1_000, b"k", b"v")], producer_id=9, producer_epoch=0, transactional=True)
    directory, log = new_log(disk, CONFIG)
    while len(log.sealed_segments()) < 5:
        append(log, batch(2, size=60))
        data = memoryview(bytearray(aborted))
        log.append_transactional(data, read_header(data), 0, 10_000)
        log.append_markers([abort], 0, 10_000)
    flush(log)
    seal(log)
    return directory, log


def write_cleaned(log: PartitionLog, run: SegmentRun) -> int:
    """The first batch of the run, its markers, and filler for the rest; its size in bytes. As the cleaner leaves it:
    synced."""
    content, *others = read_all(log, run.base_offset, limit=run.end_offset)
    at = read_header(content).next_offset
    for data in others:
        if marker_of(data) is not None:
            offset = read_header(data).base_offset
            content, at = content + b"".join(gap_batches(at, offset, 0)) + data, offset + 1
    content += b"".join(gap_batches(at, run.end_offset, 0))
    indexer = SegmentIndexer(run.base_offset, CONFIG.index_interval_bytes)
    for position, header in walk(content):
        indexer.add_run((header,), header.base_offset, position)
    indexer.seal()
    file = log.directory.open(cleaned_file(run.base_offset, LOG), write=True, create=True)
    file.write_at(0, [content])
    file.sync()
    file.close()
    write_whole(log.directory, cleaned_file(run.base_offset, OFFSET_INDEX), indexer.offset_index.to_bytes())
    write_whole(log.directory, cleaned_file(run.base_offset, TIME_INDEX), indexer.time_index.to_bytes())
    return len(content)


def swapped(log: PartitionLog, first: int = 1, count: int = 3) -> SegmentRun:
    """Swap in a cleaned segment for `count` segments from number `first` on."""
    run = SegmentRun(tuple(log.sealed_runs()[first : first + count]))
    cleaned = log.open_cleaned(run, write_cleaned(log, run))
    log.swap_in(run, cleaned)
    log.name_swapped(run)
    cleaned.release_indexes()
    return run


def names(log: PartitionLog) -> list[str]:
    return [name for name in log.directory.list() if name.endswith((".log", ".swap", ".cleaned", ".deleted"))]


def test_reads_take_the_cleaned_segment_and_its_files_have_its_names() -> None:
    disk = CrashDisk()
    log = sealed_log(disk)
    bases = [segment.base_offset for segment in log.sealed_segments()]
    before = read_all(log, 0)
    run = swapped(log)
    inside = [data for data in before if run.base_offset + 2 <= int.from_bytes(data[:8], "big") < run.end_offset]
    after = read_all(log, 0)
    gaps = list(gap_batches(run.base_offset + 2, run.end_offset, 0))
    assert [data for data in after if data not in gaps] == [data for data in before if data not in inside]
    assert [segment.base_offset for segment in log.sealed_segments()] == [bases[0], bases[1], bases[4]]
    assert log.local_bytes == sum(len(data) for data in after)
    assert not [name for name in names(log) if not name.endswith(".log")]
    _, again = open_log(disk.kill(), CONFIG)
    assert read_all(again, 0) == after and again.recovery.scanned_bytes <= 600
    assert again.producers.at(again.log_end_offset).state() == log.producers.at(log.log_end_offset).state()


def test_a_reader_in_flight_keeps_the_file_it_reads() -> None:
    log = sealed_log(CrashDisk())
    run = SegmentRun(tuple(log.sealed_runs()[1:4]))
    found = log.read(run.segments[1].base_offset, 1 << 20, log.log_end_offset, min_one=True)
    assert found is not None
    data = found.file.read_at(found.position, found.length)
    swapped(log)
    assert found.file.read_at(found.position, found.length) == data
    assert log.is_checked(found) and log.sound(found) == found


def test_a_fetch_inside_the_filler_steps_over_it() -> None:
    log = sealed_log(CrashDisk())
    run = swapped(log)
    for offset in range(run.base_offset + 2, run.end_offset):
        found = log.read(offset, 1 << 20, log.log_end_offset, min_one=True)
        assert found is not None
        assert next(walk(found.file.read_at(found.position, found.length)))[1].next_offset == run.end_offset


def test_retention_stops_before_a_swap_that_has_no_names_yet() -> None:
    log = sealed_log(CrashDisk())
    run = SegmentRun(tuple(log.sealed_runs()[1:4]))
    cleaned = log.open_cleaned(run, write_cleaned(log, run))
    log.swap_in(run, cleaned)
    assert [segment.base_offset for segment in log.delete_local_before(log.log_end_offset)] == [0]
    log.name_swapped(run)
    cleaned.release_indexes()
    assert [segment.base_offset for segment in log.delete_local_before(run.end_offset)] == [run.base_offset]


def test_a_run_that_retention_shortened_is_not_the_logs_any_more() -> None:
    log = sealed_log(CrashDisk())
    run = SegmentRun(tuple(log.sealed_runs()[0:3]))
    assert log.holds(run)
    log.delete_local_before(run.segments[0].end_offset)
    assert not log.holds(run)


def scenario(disk: CrashDisk) -> None:
    swapped(sealed_log(disk))


def begun(disk: CrashDisk) -> None:
    sealed_log(disk)


def effects(work: Callable[[CrashDisk], None]) -> int:
    disk = CrashDisk()
    work(disk)
    return sum(count for kind, count in disk.hits.items() if not kind.startswith("fault"))


BEGUN = effects(begun)
ALL = effects(scenario)


def old_and_new() -> tuple[list[bytes], list[bytes]]:
    log = sealed_log(CrashDisk())
    old = read_all(log, 0)
    swapped(log)
    return old, read_all(log, 0)


def test_the_swap_is_worth_cutting() -> None:
    assert ALL - BEGUN > 25


@pytest.mark.parametrize("keep", KEEPS)
def test_power_cut_before_every_effect_leaves_the_old_or_the_new(keep: float) -> None:
    """Never both, never neither; a second power cut after the recovery changes nothing."""
    old, new = old_and_new()
    found: set[bool] = set()
    for number in range(BEGUN + 1, ALL + 2):
        disk = CrashDisk()
        disk.on_effect = cut_before(number, disk)
        with contextlib.suppress(PowerCut):
            scenario(disk)
        after = disk.crash(SeededRng(number), keep)
        _, log = open_log(after, CONFIG)
        read = read_all(log, 0)
        assert read in (old, new), number
        found.add(read == new)
        assert not [name for name in names(log) if not name.endswith(".log")], number
        _, again = open_log(after.crash(SeededRng(number), 0.0), CONFIG)
        assert read_all(again, 0) == read, number
    assert found == {True, False}


def test_the_recovery_is_cut_before_each_of_its_effects() -> None:
    old, new = old_and_new()
    for number in range(BEGUN + 1, ALL + 2):
        disk = CrashDisk()
        disk.on_effect = cut_before(number, disk)
        with contextlib.suppress(PowerCut):
            scenario(disk)
        for inner in range(1, 20):
            first = disk.crash(SeededRng(number), 0.5)
            first.on_effect = cut_before(inner, first)
            with contextlib.suppress(PowerCut):
                open_log(first, CONFIG)
            _, log = open_log(first.crash(SeededRng(inner), 0.5), CONFIG)
            assert read_all(log, 0) in (old, new), (number, inner)


def part(found: list[bytes], whole: list[bytes]) -> bool:
    """Whether `found` are consecutive batches of `whole`."""
    return any(whole[at : at + len(found)] == found for at in range(len(whole) - len(found) + 1))


def next_swap(directory: DataDir, log: PartitionLog) -> None:
    """Another run of the same pass."""
    swapped(log, first=2, count=1)


def next_pass(directory: DataDir, log: PartitionLog) -> None:
    """One that merges the cleaned segment with the one before it."""
    remove_cleaned(log.directory)
    swapped(log, first=0, count=2)


def cut_behind(directory: DataDir, log: PartitionLog) -> None:
    _cut(directory, log, log.sealed_segments()[1].end_offset)


def cut_the_active(directory: DataDir, log: PartitionLog) -> None:
    """Behind the cleaned segment: no producer file is removed first, which would sync the directory."""
    _cut(directory, log, log.sealed_segments()[-1].end_offset)


def cut_inside(directory: DataDir, log: PartitionLog) -> None:
    _cut(directory, log, log.sealed_segments()[1].base_offset + 2)


def _cut(directory: DataDir, log: PartitionLog, offset: int) -> None:
    directory.checkpoints.lower_recovery_point(ORDERS, offset)
    log.truncate_to(offset, 10_000)


def begin_elsewhere(directory: DataDir, log: PartitionLog) -> None:
    log.start_at(1000, log.epochs, ())


def retain(directory: DataDir, log: PartitionLog) -> None:
    log.delete_local_before(log.sealed_segments()[1].end_offset)
    log.unlink()


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.7])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (1, next_swap), (1, next_pass), (1, cut_behind), (1, cut_inside), (1, begin_elsewhere), (1, retain),
        (3, cut_the_active),
    ],
)  # fmt: skip
def test_power_cut_in_what_follows_a_swap(
    first: int, then: Callable[[DataDir, PartitionLog], None], keep: float
) -> None:
    """The last names of a swap are not synced: they may be lost beside any change that follows, until its sync."""
    tiered = replace(CONFIG, tiered=True)  # its first segments may be missing
    states: list[list[bytes]] = []
    swapped_at: list[int] = []

    def work(disk: CrashDisk) -> None:
        directory, log = sealed(disk)
        swapped(log, first=first, count=2)
        states.append(read_all(log, 0))
        swapped_at.append(sum(count for kind, count in disk.hits.items() if not kind.startswith("fault")))
        then(directory, log)
        states.append(read_all(log, log.local_log_start_offset))

    last = effects(work)
    swap, whole = swapped_at[0], states[:2]
    for number in range(swap, last + 2):
        for seed in range(6):
            disk = CrashDisk()
            disk.on_effect = cut_before(number, disk)
            with contextlib.suppress(PowerCut):
                work(disk)
            _, log = open_log(disk.crash(SeededRng(f"{number} {seed}"), keep), tiered)
            found = read_all(log, log.local_log_start_offset)
            assert any(part(found, state) for state in whole), (number, seed)
            assert found or then is begin_elsewhere
            assert not [name for name in names(log) if not name.endswith(".log")], (number, seed)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_power_cut_keeps_the_aborted_transactions_of_all_replaced_segments(keep: float) -> None:
    """Nothing can rebuild the transaction index once the replaced segments are gone."""

    def worked(disk: CrashDisk) -> PartitionLog:
        log = sealed_with_aborted(disk)[1]
        disk.hits["began"] = sum(count for kind, count in disk.hits.items() if not kind.startswith("fault"))
        swapped(log)
        return log

    disk = CrashDisk()
    log = worked(disk)
    wanted = log.aborted_between(0, log.log_end_offset)
    assert len(wanted) > 5
    began = disk.hits.pop("began")
    for number in range(began + 1, sum(disk.hits.values()) + 2):
        for seed in range(3):
            disk = CrashDisk()
            disk.on_effect = cut_before(number, disk)
            with contextlib.suppress(PowerCut):
                worked(disk)
            _, log = open_log(disk.crash(SeededRng(f"{number} {seed}"), keep), CONFIG)
            assert log.aborted_between(0, log.log_end_offset) == wanted, (number, seed)


def test_a_segment_whose_transaction_index_waits_for_room_is_not_replaced() -> None:
    """The index was written after the swap, in the place of the cleaned segment's, and named fewer transactions."""
    disk = CrashDisk()
    directory, log = sealed_with_aborted(disk)
    wanted = log.aborted_between(0, log.log_end_offset)
    directory.checkpoints.sample([log]).run()
    base = log.sealed_segments()[1].base_offset
    file = log.directory.open(offset_file(base, TRANSACTION_INDEX), write=True)
    file.truncate(file.size() - 1)
    file.sync()
    disk = disk.kill()
    disk.inject("write", errno.ENOSPC, f"{TRANSACTION_INDEX}.tmp")
    _, log = open_log(disk, CONFIG)
    assert log.durability.pending_seals and log.aborted_between(0, log.log_end_offset) == wanted
    if len(log.sealed_runs()) >= 4:
        swapped(log)
    seal(log)
    _, log = open_log(disk.kill(), CONFIG)
    assert log.aborted_between(0, log.log_end_offset) == wanted


def test_a_full_disk_refuses_the_transaction_index_before_readers_see_the_swap() -> None:
    """Seed 215056 of three brokers: the index was written after the swap, and the log went offline."""
    disk = CrashDisk()
    _, log = sealed_with_aborted(disk)
    wanted = log.aborted_between(0, log.log_end_offset)
    run = SegmentRun(tuple(log.sealed_runs()[:2]))
    size = write_cleaned(log, run)
    disk.inject("write", errno.ENOSPC, f"{TRANSACTION_INDEX}.cleaned")
    with pytest.raises(OSError, match=r"txnindex\.cleaned"):
        log.open_cleaned(run, size)
    assert log.holds(run) and log.aborted_between(0, log.log_end_offset) == wanted


def test_what_a_swap_costs() -> None:
    """A cleaner's syncs delay those of producers on the same disk: a bound that only a reason may raise."""
    disk = CrashDisk()
    log = sealed_log(disk)
    for first, count in ((1, 3), (0, 1)):
        run = SegmentRun(tuple(log.sealed_runs()[first : first + count]))
        cleaned = log.open_cleaned(run, write_cleaned(log, run))
        log.swap_in(run, cleaned)
        before = disk.hits["sync"], disk.hits["sync_dir"]
        log.name_swapped(run)
        assert (disk.hits["sync"] - before[0], disk.hits["sync_dir"] - before[1]) == (0, 2)
        cleaned.release_indexes()


def test_a_swap_that_is_not_whole_is_refused_and_nothing_changes() -> None:
    """Kafka's own has holes; a damaged one would lose what it replaced."""
    disk = CrashDisk()
    log = sealed_log(disk)
    run = SegmentRun(tuple(log.sealed_runs()[1:4]))
    write_cleaned(log, run)
    name = f"{run.base_offset:020d}.log"
    log.directory.rename(name + ".cleaned", name + ".swap")
    log.directory.sync()
    after = disk.kill()
    after.flip_bit(f"{LOG_PATH}/{name}.swap", 100, 0)
    before = after.list_dir(LOG_PATH)
    with pytest.raises(DamagedLog, match="compaction was interrupted"):
        open_log(after, CONFIG)
    assert after.list_dir(LOG_PATH) == before
