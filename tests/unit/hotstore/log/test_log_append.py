"""The two modes of appending: what a leader is held to, and that a follower's log is its leader's, byte for byte."""

from __future__ import annotations

import errno

import pytest

from hotstore.errors import DivergingAppend, LogFailed, LogFull, OutOfOrderSequence, ReservationExhausted
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState, PartitionLog
from logformat.gap import gap_batches
from logformat.record_batch import read_header
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, copied, flush, headers_of, new_log, open_log, read_all

CONFIG = LogConfig(segment_bytes=600)


def leader() -> PartitionLog:
    return new_log(CrashDisk(), LogConfig(segment_bytes=1 << 20))[1]


def test_a_followers_log_is_its_leaders_byte_for_byte() -> None:
    """Offsets, epochs and a LogAppendTime topic's times are kept; each epoch enters the lineage where it begins."""
    source = new_log(CrashDisk(), LogConfig(log_append_time=True))[1]
    for epoch in (2, 2, 5, 7):
        append(source, batch(3), epoch, now_ms=70_000 + epoch)
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=400))
    copied(log, read_all(source, 0))
    assert read_all(log, 0) == read_all(source, 0)
    assert log.epochs == source.epochs and log.epochs.entries == ((2, 0), (5, 6), (7, 9))
    assert log.log_end_offset == 12 and log.leader_epoch == 7
    flush(log)
    _, found = open_log(disk.crash(SeededRng(1), 0.0), CONFIG)
    assert read_all(found, 0) == read_all(source, 0) and found.epochs == source.epochs


def test_one_call_is_one_write() -> None:
    """A fetch answer of many batches costs a replica one system call."""
    source = leader()
    for _ in range(5):
        append(source, batch(3))
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    before = disk.hits["write"]
    copied(log, read_all(source, 0))
    assert disk.hits["write"] == before + 1


def test_cluster_d28_a_follower_asks_for_no_reservation() -> None:
    """D28: a leader that outran this replica's file of reservations must not stop the copy."""
    source = leader()
    append(source, batch(3))
    _, log = new_log(CrashDisk(), CONFIG)
    log.reserved_end = 2
    with pytest.raises(ReservationExhausted):
        append(log, batch(3))
    copied(log, read_all(source, 0))
    assert log.log_end_offset == 3


def test_cluster_d28_a_follower_takes_sequences_as_they_come_and_remembers_them() -> None:
    """Its producers are those of the leader when it leads; what the leader let pass it does not judge."""
    source = leader()
    for sequence in (0, 2):
        append(source, batch(2, producer_id=9, epoch=0, sequence=sequence))
    _, log = new_log(CrashDisk(), CONFIG)
    log.start_at(2, log.epochs, ())
    copied(log, read_all(source, 2))  # its first batch here is of sequence 2
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(2, producer_id=9, epoch=0, sequence=9))
    again = append(log, batch(2, producer_id=9, epoch=0, sequence=2))
    assert again.duplicate and again.base_offset == 2


@pytest.mark.parametrize("broken", ["a hole before", "behind the end", "a hole between", "an older epoch", "falling"])
def test_what_does_not_continue_the_log_is_refused_whole(broken: str) -> None:
    """Nothing is written then, and the log takes what does continue it."""
    source = leader()
    for epoch in (3, 3, 4, 4):
        append(source, batch(2), epoch)
    batches = read_all(source, 0)
    _, log = new_log(CrashDisk(), CONFIG)
    copied(log, batches[:1])
    wrong = {
        "a hole before": batches[2:],
        "behind the end": batches[:2],
        "a hole between": [batches[1], batches[3]],
        "an older epoch": [with_epoch(batches[1], 2)],
        "falling": [batches[1], batches[2], with_epoch(batches[3], 3)],
    }[broken]
    with pytest.raises(DivergingAppend):
        copied(log, wrong)
    assert read_all(log, 0) == batches[:1] and log.epochs.entries == ((3, 0),) and log.dirty_bytes == len(batches[0])
    copied(log, batches[1:])
    assert read_all(log, 0) == batches


def test_batches_larger_than_a_segment_get_one_of_their_own() -> None:
    """segment.bytes may have come down since its leader wrote them: refused, the replica would stop for ever."""
    source = leader()
    for _ in range(3):
        append(source, batch(4, size=80))
    _, log = new_log(CrashDisk(), LogConfig(segment_bytes=500))
    copied(log, read_all(source, 0)[:1])
    copied(log, read_all(source, 4))
    assert read_all(log, 0) == read_all(source, 0)
    assert [segment.base_offset for segment in log.sealed_segments()] == [0]
    assert log.active_info().bytes > 500


def test_a_follower_with_a_full_or_failing_disk_says_so() -> None:
    """As a leader: a full disk passes, a failed one does not."""
    source = leader()
    append(source, batch(3))
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    disk.inject("write", errno.ENOSPC, ".log")
    with pytest.raises(LogFull):
        copied(log, read_all(source, 0))
    assert log.state is LogState.FULL and log.log_end_offset == 0 and not log.epochs.entries
    copied(log, read_all(source, 0))
    assert log.state is LogState.ONLINE
    append(source, batch(3))
    disk.inject("write", errno.EIO, ".log")
    for _ in range(2):
        with pytest.raises(LogFailed):
            copied(log, read_all(source, 3))


def test_a_gap_is_a_leaders_append() -> None:
    """It is bound by the reservation and by the epochs of the log, and stays as it is: it names its offsets."""
    _, log = new_log(CrashDisk(), LogConfig(log_append_time=True))
    append(log, batch(3), 1)
    (gap,) = gap_batches(3, 10, 2)
    log.reserved_end = 9
    with pytest.raises(ReservationExhausted):
        log.append_gap(gap, 5)
    log.reserved_end = 10
    assert log.append_gap(gap, 5).last_offset == 9
    assert read_all(log, 3) == [gap] and log.epochs.entries == ((1, 0), (2, 3))
    assert [header.leader_epoch for header in headers_of(read_all(log, 0))] == [1, 2]


def with_epoch(data: bytes, epoch: int) -> bytes:
    """The same batch of another leader: no CRC covers that field."""
    changed = data[:12] + epoch.to_bytes(4, "big") + data[16:]
    assert read_header(changed).leader_epoch == epoch
    return changed


def test_a_reader_may_begin_and_end_inside_a_run() -> None:
    """The position of a run's end alone is remembered; the index and the headers know the batches in between."""
    log = leader()
    runs = [[batch(1 + (number + at) % 3, size=40 * at) for at in range(5)] for number in range(12)]
    stored: list[bytes] = []
    for run in runs:
        base = log.log_end_offset
        appended = append(log, bytearray(b"".join(run)))
        assert (appended.base_offset, appended.last_offset) == (base, log.log_end_offset - 1)
        stored += run
    headers = headers_of(read_all(log, 0))
    assert [header.size for header in headers] == [len(one) for one in stored]
    for first, start in enumerate(headers):
        for offset in (start.base_offset, start.last_offset):
            for last, limit in enumerate(headers[first:], first):
                found = log.read(offset, 1 << 20, limit.next_offset, min_one=True)
                assert found is not None
                size = sum(len(one) for one in stored[first : last + 1])
                at = sum(len(one) for one in stored[:first])
                assert (found.position, found.length) == (at, size)
