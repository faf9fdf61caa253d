"""Whether a log shows that the coordinators were asked about its newest gap (TX32)."""

from __future__ import annotations

import pytest

from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.gap import gap_batches
from logformat.record_batch import read_header
from logformat.transaction_marker import TransactionMarker
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, copied, new_log, read_all
from tests.unit.hotstore.log.test_hotstore_transactions import end, in_transaction
from tiering.expiry.local_gaps import local_gaps
from tiering.opening import unanswered_gap
from tiering.opening.unanswered_gap import is_unanswered

CONFIG = LogConfig(segment_bytes=6000, index_interval_bytes=100)


def with_gap() -> PartitionLog:
    """A record, a transaction that is committed, and a gap at the offsets 3 to 9."""
    _, log = new_log(CrashDisk(), CONFIG)
    append(log, batch())
    in_transaction(log, 7, 0)
    end(log, 7, commit=True)
    for gap in gap_batches(3, 10, 1):
        log.append_gap(gap, 10_000)
    assert local_gaps(log) == ((3, 10),)
    return log


def asked(log: PartitionLog, *in_bucket: tuple[int, int]) -> bool:
    return is_unanswered(log, (*in_bucket, *local_gaps(log)))


def later(log: PartitionLog, producer_id: int, sequence: int = 0) -> None:
    """As `in_transaction`, in the gap's epoch."""
    _, other = new_log(CrashDisk(), CONFIG)
    in_transaction(other, producer_id, sequence)
    (data,) = read_all(other, 0)
    view = memoryview(bytearray(data))
    log.append_transactional(view, read_header(view), 1, 10_000)


def test_no_gap_asks_nothing() -> None:
    _, log = new_log(CrashDisk(), CONFIG)
    append(log, batch())
    assert not asked(log)


def test_only_a_transaction_that_began_behind_the_gap_proves_an_answer() -> None:
    """Neither plain records nor a marker do: it may be the one that commits what is lost."""
    log = with_gap()
    assert asked(log)
    append(log, batch(), 1)
    assert asked(log)
    later(log, 8)
    assert not asked(log), "it is open"


def test_it_is_proved_for_the_next_leader_when_nothing_is_open_any_more() -> None:
    log = with_gap()
    later(log, 8)
    _, copy = new_log(CrashDisk(), CONFIG)
    copied(copy, read_all(log, 0))
    assert not asked(copy)
    log.append_markers([TransactionMarker(8, 0, True, 0, 0)], 1, 10_000)
    assert not asked(log)


def test_a_gap_of_the_bucket_counts_when_the_log_here_begins_behind_it() -> None:
    _, log = new_log(CrashDisk(), CONFIG)
    append(log, batch())
    assert is_unanswered(log, [(-7, 0)])
    in_transaction(log, 7, 0)
    assert not is_unanswered(log, [(-7, 0)])


@pytest.mark.parametrize("look", [1, 100, 1 << 20])
def test_the_look_is_bounded(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none begins for long, the coordinators are asked again: they abort at most what wrote nothing here."""
    monkeypatch.setattr(unanswered_gap, "LOOK_BYTES", look)
    monkeypatch.setattr(unanswered_gap, "_READ_BYTES", 100)
    log = with_gap()
    for _ in range(20):
        append(log, batch(), 1)
    later(log, 8)
    log.append_markers([TransactionMarker(8, 0, False, 0, 0)], 1, 10_000)
    assert asked(log) == (look < 1 << 20)
