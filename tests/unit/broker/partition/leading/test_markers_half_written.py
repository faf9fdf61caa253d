"""An append of markers that fails half-way: whoever listens hears of those that are in the log, at once.

Regression: a leader told of none until they came again, so that offsets in a transaction stayed pending, and a producer
undecided, behind a marker that was committed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.partition.leading.leader_replica import LeaderReplica
from hotstore.errors import LogFull, ReservationExhausted
from hotstore.log.log_append import marker_runs
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


async def test_a_marker_without_offset_delays_no_other() -> None:
    """A producer twice: the second marker begins another run, ends nothing, and finds no offset."""
    life, partition, told = await listening()
    for producer_id in (7, 8):
        assert (await produce_in(life, "log", producer_id, 0, b"a")).error_code == 0
        partition.undecided[producer_id] = None
    partition.log.reserved_end = partition.log.log_end_offset + 2
    results = partition.append_markers([commit(7), commit(8), commit(7, 1)], 10_000)
    assert results[:2] == [2, 3] and isinstance(results[2], ReservationExhausted)
    assert told == [(7, 2), (8, 3)] and not partition.undecided
    assert partition.log.log_end_offset == 4


async def test_a_marker_that_came_before_keeps_the_end_of_the_run() -> None:
    """It needs no offset: its answer is the last one before the run, and the run's end is that of what was written."""
    life, partition, told = await listening()
    for producer_id in (7, 8):
        assert (await produce_in(life, "log", producer_id, 0, b"a")).error_code == 0
    assert partition.append_markers([commit(8)], 10_000) == [2]
    partition.log.reserved_end = partition.log.log_end_offset + 1
    assert partition.append_markers([commit(7), commit(8)], 10_000) == [3, 2]
    assert told == [(8, 2), (7, 3), (8, 2)]
    await asyncio.sleep(1)
    assert partition.log.log_end_offset == partition.high_watermark == 4


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
    runs = list(marker_runs(markers))
    assert [marker for run in runs for marker in run] == markers
    assert [[marker.producer_id for marker in run] for run in runs] == [[1, 2], [1], [1, 3, 2], [3]]
    assert not list(marker_runs([]))
