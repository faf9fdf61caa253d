"""An append of markers that fails half-way: whoever listens hears of those that are in the log, at once.

Regression: a leader told of none until they came again, so that offsets in a transaction stayed pending, and a producer
undecided, behind a marker that was committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.marker_runs import runs_of, written_of
from hotstore.errors import InvalidProducerEpoch, LogFull, ReservationExhausted
from logformat.transaction_marker import TransactionMarker
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place
from tests.support.brokers.transaction_kit import produce_in, with_transactions


def commit(producer_id: int, epoch: int = 0) -> TransactionMarker:
    return TransactionMarker(producer_id, epoch, True, 0)


async def listening(**configs: str) -> tuple[Life, LeaderReplica, list[tuple[int, int]]]:
    """A partition, and the (producer, offset) of each marker that it tells."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log", **configs)
    partition, told = life.partition("log"), list[tuple[int, int]]()
    partition.on_marker = lambda marker, offset: told.append((marker.producer_id, offset))
    return life, partition, told


def append(partition: LeaderReplica, markers: Sequence[TransactionMarker], room: int) -> None:
    """With offsets for so many more."""
    partition.log.reserved_end = partition.log.log_end_offset + room
    with pytest.raises(ReservationExhausted):
        partition.append_markers(markers, 10_000)


async def test_the_run_before_the_failed_one_is_told() -> None:
    """A producer twice: the second marker begins another run, and finds no offset."""
    life, partition, told = await listening()
    for producer_id in (7, 8):
        assert (await produce_in(life, "log", producer_id, 0, b"a")).error_code == 0
        partition.undecided[producer_id] = None
    append(partition, [commit(7), commit(8), commit(7, 1)], room=2)
    assert told == [(7, 2), (8, 3)] and not partition.undecided
    assert partition.log.log_end_offset == 4


async def test_the_written_part_of_a_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that crosses segments is written one by one. One marker is refused, then the disk is full."""
    life, partition, told = await listening(**SMALL_SEGMENTS)
    assert (await produce_in(life, "log", 3, 0, b"a", epoch=5)).error_code == 0
    log, find = partition.log, type(partition.log)._segment_for_leader
    base, singles = log.log_end_offset, list[int]()

    def full_at_the_ninth(self: Any, size: int, end_offset: int, epoch: int, now_ms: int, count: int = 1) -> Any:
        if count == 1:
            singles.append(end_offset)
            if len(singles) == 9:
                raise LogFull("No space left on device")
        return find(self, size, end_offset, epoch, now_ms, count)

    monkeypatch.setattr(type(log), "_segment_for_leader", full_at_the_ninth)
    with pytest.raises(LogFull):
        partition.append_markers([commit(producer_id) for producer_id in range(15)], 10_000)
    assert log.log_end_offset == base + 8
    assert told == [(of, base + at) for at, of in enumerate([0, 1, 2, 4, 5, 6, 7, 8])]


def test_runs_name_no_producer_twice() -> None:
    markers = [commit(of) for of in (1, 2, 1, 1, 3, 2, 3)]
    runs = list(runs_of(markers))
    assert [marker for run in runs for marker in run] == markers
    assert [[marker.producer_id for marker in run] for run in runs] == [[1, 2], [1], [1, 3, 2], [3]]
    assert not list(runs_of([]))


def test_what_is_written_is_told_from_what_was_refused() -> None:
    """Every part of a run, with every set of refused markers."""
    run = [commit(of) for of in range(5)]
    for refused in range(32):
        taken = [marker for marker in run if not refused >> marker.producer_id & 1]

        def check(marker: TransactionMarker, refused: int = refused) -> None:
            if refused >> marker.producer_id & 1:
                raise InvalidProducerEpoch("an earlier epoch")

        for count in range(len(taken) + 1):
            expected = [(marker, 10 + at) for at, marker in enumerate(taken[:count])]
            assert written_of(run, 10, 10 + count, check) == expected
