"""Offsets that are kept for markers while the store is away (TX24): they are for transactions that are open here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstore.errors import ReservationExhausted
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.errors import ThermoclineError
from logformat.transaction_marker import TransactionMarker
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import new_log
from tests.unit.hotstore.log.test_hotstore_transactions import end, in_transaction


def reserved(end_offset: int) -> PartitionLog:
    _, log = new_log(CrashDisk(), LogConfig(segment_bytes=6000, index_interval_bytes=100))
    log.reserved_end = end_offset
    return log


def marker(producer_id: int, epoch: int = 1, coordinator: int = 0, version: int = 2) -> TransactionMarker:
    return TransactionMarker(producer_id, epoch, True, coordinator, version)


def test_a_marker_that_ends_nothing_leaves_the_kept_offsets_alone() -> None:
    """Producer 2's partition was added (TV2 adds before the append), its batch found no offsets, it aborts: its marker
    took the offset that was kept for producer 1, whose commit waited for the store."""
    log = reserved(2)
    in_transaction(log, 1, 0)
    with pytest.raises(ReservationExhausted):
        in_transaction(log, 2, 0)
    with pytest.raises(ReservationExhausted) as refused:
        end(log, 2, commit=False, epoch=1, version=2)
    assert refused.value.end_offset == 3, "so many offsets are asked for"
    assert end(log, 1, commit=True, epoch=1, version=2) == 1


def test_a_refused_marker_delays_no_other_of_its_request() -> None:
    """The coordinator would send all again, and the request would be refused again."""
    log = reserved(4)
    in_transaction(log, 1, 0)
    in_transaction(log, 3, 0)
    refused, first, also_refused, second = log.append_markers([marker(2), marker(1), marker(4), marker(3)], 0, 10_000)
    assert (first, second) == (2, 3)
    assert isinstance(refused, ReservationExhausted) and isinstance(also_refused, ReservationExhausted)
    log.reserved_end = 10
    assert log.append_markers([marker(2), marker(4)], 0, 10_000) == [4, 5]


def test_a_marker_that_comes_again_is_answered_without_an_offset() -> None:
    """Its answer was lost: the coordinator would hear of it when the store is back, and the producer's next transaction
    wait for that."""
    log = reserved(3)
    in_transaction(log, 1, 0)
    assert log.append_markers([marker(1)], 0, 10_000) == [1]
    assert log.append_markers([marker(1)], 0, 10_000) == [2], "there is room: it is written as ever"
    assert log.append_markers([marker(1)], 0, 10_000) == [2] and log.log_end_offset == 3
    with pytest.raises(ReservationExhausted):
        end(log, 1, commit=True, epoch=1, coordinator=1, version=2)  # it raises a fence, so it must be in the log


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 12), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_what_is_open_can_be_ended_without_the_store(room: int, steps: list[tuple[int, int]]) -> None:
    """After any steps of four producers, whose requests may be refused: batches, markers of one or of two."""
    log = reserved(room)
    sequences, epochs = [0] * 4, [0] * 4
    opened = log.producers.transactions.first_offsets
    for what, producer_id in steps:
        other = (producer_id + 1) % 4
        if what < 2:
            try:
                in_transaction(log, producer_id, sequences[producer_id], epoch=epochs[producer_id], count=what + 1)
                sequences[producer_id] += what + 1
            except ThermoclineError:
                pass
        else:
            ended = [producer_id] if what == 2 else [other, producer_id]
            were_open = [of in opened for of in ended]
            results = log.append_markers([marker(of, epochs[of] + 1) for of in ended], 0, 10_000)
            for of, was_open, result in zip(ended, were_open, results, strict=True):
                assert isinstance(result, int) or not was_open
                if isinstance(result, int):
                    sequences[of], epochs[of] = 0, epochs[of] + 1
        assert log.log_end_offset + len(opened) <= max(room, 0)
    for producer_id in list(opened):
        assert end(log, producer_id, commit=True, epoch=epochs[producer_id] + 1, version=2) >= 0
    assert log.log_end_offset <= room
