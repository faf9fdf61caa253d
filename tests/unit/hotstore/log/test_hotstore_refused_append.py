"""An append that failed leaves the caller's bytes as they came: Produce checks and appends them again."""

from __future__ import annotations

import errno

import pytest

from hotstore.errors import (
    LeaderEpochFenced,
    LogFull,
    OutOfOrderSequence,
    RecordListTooLarge,
    ReservationExhausted,
)
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.errors import ThermoclineError
from logformat.record_batch import HEADER, check_batch
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, new_log, read_all


@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_batch_refused_for_a_full_disk_can_be_appended_again(log_append_time: bool) -> None:
    """LogAppendTime is stamped into the batch before the write; sent twice with that bit it would be refused as the
    producer's fault, with an error no client tries again after."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(log_append_time=log_append_time))
    data = batch(3)
    for _ in range(2):
        disk.inject("write", errno.ENOSPC, ".log")
        check_batch(memoryview(data), 0, len(data))
        with pytest.raises(LogFull):
            append(log, data)
    check_batch(memoryview(data), 0, len(data))
    assert append(log, data).last_offset == 2


@pytest.mark.parametrize("log_append_time", [False, True])
@pytest.mark.parametrize(
    ("why", "refusal"),
    [
        ("write", LogFull),
        ("ballast", LogFull),
        ("reservation", ReservationExhausted),
        ("epoch", LeaderEpochFenced),
        ("sequence", OutOfOrderSequence),
        ("mixed", OutOfOrderSequence),
        ("size", RecordListTooLarge),
    ],
)
def test_a_refused_run_is_as_it_came_and_leaves_nothing(
    why: str, refusal: type[ThermoclineError], log_append_time: bool
) -> None:
    """Each of its batches is then appended by itself, from the same bytes: those that are sound get their offsets."""
    disk = CrashDisk()
    _, log = new_log(disk, LogConfig(segment_bytes=600, log_append_time=log_append_time))
    append(log, of_producer(0), 3)
    first_sequence = {"sequence": 7, "mixed": 0}.get(why, 1)
    count = 9 if why == "size" else 3
    views = [memoryview(of_producer(first_sequence + number)) for number in range(count)]
    if why == "write":
        disk.inject("write", errno.ENOSPC, ".log")
    log.ballast.is_short = why == "ballast"
    if why == "reservation":
        log.reserved_end = 3
    before, sent = state_of(log), [bytes(view) for view in views]
    headers = [HEADER.unpack_from(view) for view in views]
    epoch = 2 if why == "epoch" else 3
    with pytest.raises(refusal):
        log.append_as_leader(views, headers, epoch, 20_000)
    assert state_of(log) == before and [bytes(view) for view in views] == sent
    log.ballast.is_short = False
    appended = []
    for view, header in zip(views, headers, strict=True):
        try:
            appended.append(log.append_as_leader([view], [header], epoch, 20_000).base_offset)
        except (refusal, OutOfOrderSequence):  # the second, of those after one that was refused
            continue
    taken = {"reservation": [1, 2], "epoch": [], "sequence": [], "mixed": [0, 1, 2]}
    assert appended == taken.get(why, list(range(1, count + 1)))


def of_producer(sequence: int) -> bytearray:
    return batch(1, producer_id=5, epoch=0, sequence=sequence)


def state_of(log: PartitionLog) -> tuple[object, ...]:
    return (
        read_all(log, 0),
        log.log_end_offset,
        log.local_bytes,
        log.dirty_bytes,
        log.leader_epoch,
        log.producers.at(0),
        log.active_info(),
    )
