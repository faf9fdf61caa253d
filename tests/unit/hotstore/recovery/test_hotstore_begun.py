"""A log that is made, or begins elsewhere: whatever a crash leaves opens, and a thousand of them cost few writes."""

from __future__ import annotations

import pytest

from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.recovery.log_creation import Begin
from hotstore.recovery.log_loading import make_log, recover_log
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import BatchRecord, ProducerEntry, ProducerState, encode_producer_state
from logformat.values import TopicPartition
from seams.files.disk import replace_file
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    DATA,
    LOG_PATH,
    META,
    ORDERS,
    TOPIC_ID,
    append,
    batch,
    flush,
    new_log,
    open_log,
)
from tests.support.disk.power_cut import cut_off

TIERED = LogConfig(tiered=True)
LINEAGE = LeaderEpochs((EpochStart(3, 0), EpochStart(5, 700)))
BEGUN = LINEAGE.truncate_from_start(1000)  # no checkpoint says that the log starts below its first segment
PRODUCERS = (ProducerEntry(7, 0, (BatchRecord(0, 4, 990, 994, 10_000),), 10_000),)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 1.0])
def test_a_log_that_begins_elsewhere_knows_lineage_and_producers_wherever_it_is_cut_off(keep: float) -> None:
    """One file decides it, with both inside: where that survives, all of it comes true at the next open."""
    number, ends = 0, set()
    while True:
        disk = CrashDisk()
        _, log = new_log(disk, TIERED)
        append(log, batch(9, producer_id=5, epoch=0, sequence=0))
        flush(log)
        done = cut_off(disk, number, lambda log=log: log.start_at(1000, LINEAGE, PRODUCERS))  # type: ignore[misc]
        _, again = open_log(disk.crash(SeededRng(f"{keep}/{number}"), keep), TIERED)
        ends.add(again.log_end_offset)
        if again.log_end_offset == 1000:
            assert again.epochs == BEGUN
            assert [entry.producer_id for entry in again.producers.at(1000).state().producers] == [7]
        else:
            assert not done and again.log_end_offset == 9, number
            assert [entry.producer_id for entry in again.producers.at(9).state().producers] == [5]
        if done:
            break
        number += 1
    assert ends == {9, 1000}


def test_a_restart_that_an_earlier_version_decided_is_finished() -> None:
    """Its marker has the epochs alone; the producers lie in a file beside it."""
    disk = CrashDisk()
    _, log = new_log(disk, TIERED)
    append(log, batch(9))
    flush(log)
    staged = encode_producer_state(ProducerState(1000, PRODUCERS))
    replace_file(disk, f"{LOG_PATH}/{1000:020}.restart-producers", staged)
    replace_file(disk, f"{LOG_PATH}/{1000:020}.restart", LINEAGE.to_bytes())
    for _ in range(2):
        disk = disk.kill()
        _, again = open_log(disk, TIERED)
        assert again.log_end_offset == again.local_log_start_offset == 1000 and again.epochs == BEGUN
        assert [entry.producer_id for entry in again.producers.at(1000).state().producers] == [7]
    assert not [name for name in disk.list_dir(LOG_PATH) if ".restart" in name]


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 1.0])
def test_a_log_whose_making_was_cut_off_anywhere_opens_empty_or_is_not_there(keep: float) -> None:
    """Both its names may be new at once: an empty segment without a topic id is a log that nobody wrote to."""
    number = 0
    while True:
        disk = CrashDisk()
        directory = DataDir.open(disk, DATA)
        directory.format(META)
        disk.sync_dir("/")
        done = cut_off(disk, number, lambda at=directory: make_log(at, ORDERS, TOPIC_ID, TIERED))  # type: ignore[misc]
        after = DataDir.open(disk.crash(SeededRng(f"{keep}/{number}"), keep), DATA)
        if ORDERS in after.partitions():
            again = recover_log(after, ORDERS, TIERED, 0, TOPIC_ID)
            assert again.log_end_offset == 0 and again.topic_id == TOPIC_ID
        assert not done or ORDERS in after.partitions()
        if done:
            break
        number += 1
    assert number > 5


def test_a_log_that_is_made_elsewhere_without_producers_has_no_files_of_them() -> None:
    """A thousand are made by a restore, two syncs each. That there are none is what every later start reads, and it
    scans what it would have scanned: from its first segment on."""
    scanned = set()
    for producers in ((), PRODUCERS):
        disk = CrashDisk()
        directory = DataDir.open(disk, DATA)
        directory.format(META)
        log = make_log(directory, ORDERS, TOPIC_ID, TIERED, Begin(1000, LINEAGE, producers))
        files = [name for name in disk.list_dir(LOG_PATH) if name.endswith((".snapshot", ".producers"))]
        assert len(files) == (2 if producers else 0)
        log.reserved_end = 2000
        append(log, batch(9), leader_epoch=5)
        flush(log)
        for _ in range(2):
            disk = disk.kill()
            _, again = open_log(disk, TIERED)
            assert again.log_end_offset == 1009
            assert len(again.producers.at(1009).state().producers) == len(producers)
            scanned.add(again.recovery.scanned_bytes)
    assert len(scanned) == 1


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 1.0])
def test_a_log_that_is_made_elsewhere_is_there_with_lineage_and_producers_or_not_at_all(keep: float) -> None:
    """A restore makes them where the bucket ends. What a crash leaves of one goes like a deleted log, and is in
    nobody's way."""
    number = 0
    begin = Begin(1000, LINEAGE, PRODUCERS)
    while True:
        disk = CrashDisk()
        directory = DataDir.open(disk, DATA)
        directory.format(META)
        disk.sync_dir("/")
        done = cut_off(disk, number, lambda at=directory: make_log(at, ORDERS, TOPIC_ID, TIERED, begin))  # type: ignore[misc]
        after = DataDir.open(disk.crash(SeededRng(f"{keep}/{number}"), keep), DATA)
        if ORDERS in after.partitions():
            again = recover_log(after, ORDERS, TIERED, 0, TOPIC_ID)
            assert again.local_log_start_offset == again.log_end_offset == 1000 and again.epochs == BEGUN, number
            assert [entry.producer_id for entry in again.producers.at(1000).state().producers] == [7]
            assert not after.deleted_directories()
        else:
            assert not done
            assert make_log(after, ORDERS, TOPIC_ID, TIERED).log_end_offset == 0
            for path in after.deleted_directories():
                after.remove_deleted(path)
        if done:
            break
        number += 1
    assert number > 10


def test_what_is_being_made_is_not_removed_as_what_was_deleted() -> None:
    """A topic's purge may run beside the making of another's logs."""
    disk = CrashDisk()
    directory, _ = new_log(disk, TIERED)
    with directory.staged_path("orders", 1, TOPIC_ID) as staged:
        disk.make_dirs(staged)
        assert directory.deleted_directories() == []
    assert directory.deleted_directories() == [staged]


def test_a_removal_that_listed_a_failed_making_leaves_the_next_one_alone() -> None:
    """The first found no room. What is made again under that name, or is about to be while that is removed, lost its
    producers to the removal (found by reading)."""
    disk = CrashDisk()
    directory, _ = new_log(disk, TIERED)
    with directory.staged_path("orders", 1, TOPIC_ID) as failed:
        disk.make_dirs(failed)
    (listed,) = directory.deleted_directories()
    with directory.staged_path("orders", 1, TOPIC_ID) as staged:
        disk.make_dirs(staged)
        directory.remove_deleted(listed)
        assert disk.stat(staged) is not None
    directory._being_removed.add(listed)  # as another worker would, half way through
    with directory.staged_path("orders", 1, TOPIC_ID) as staged:
        assert staged != listed


def test_a_log_that_is_made_writes_no_checkpoint_of_others() -> None:
    """A thousand logs that are made wrote the checkpoints of all of them a thousand times, ever longer."""
    disk = CrashDisk()
    directory, log = new_log(disk, TIERED)
    directory.checkpoints.sample([log]).run()
    append(log, batch(9))
    flush(log)
    directory.checkpoints.sample([log])  # noted, and not written yet
    before = disk.hits["sync"], disk.hits["sync_dir"]
    make_log(directory, TopicPartition("orders", 1), TOPIC_ID, TIERED)
    assert (disk.hits["sync"] - before[0], disk.hits["sync_dir"] - before[1]) == (1, 2)


def test_what_a_log_costs_that_is_made_where_the_bucket_ends() -> None:
    """As below, where there was none."""
    disk = CrashDisk()
    directory, _ = new_log(disk, TIERED)
    before = disk.hits["sync"], disk.hits["sync_dir"]
    make_log(directory, TopicPartition("orders", 1), TOPIC_ID, TIERED, Begin(1000, LINEAGE, PRODUCERS))
    assert (disk.hits["sync"] - before[0], disk.hits["sync_dir"] - before[1]) == (4, 2)


def test_what_a_log_costs_that_begins_where_the_bucket_ends() -> None:
    """A restore does it for each partition, and syncs are most of its time: a bound that only a reason may raise."""
    disk = CrashDisk()
    _, log = new_log(disk, TIERED)
    before = disk.hits["sync"], disk.hits["sync_dir"]
    log.start_at(1000, LINEAGE, PRODUCERS)
    assert (disk.hits["sync"] - before[0], disk.hits["sync_dir"] - before[1]) == (4, 3)
