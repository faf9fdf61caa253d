"""Which set a leader proposes: who joins, who leaves, and what settles a doubt (R4, R17)."""

from __future__ import annotations

from msgspec.structs import replace

from broker.replication.in_sync import AppliedRow
from broker.replication.isr_policy import LagSamples, wanted
from broker.replication.leader import Leader, LogExtent, Report

SESSIONS = {0: 10, 1: 11, 2: 12}
ROW = AppliedRow(5, 1, frozenset((0, 1, 2)), 2, frozenset((0, 1, 2)), SESSIONS)


def leader(row: AppliedRow = ROW, own_end: int = 9) -> Leader:
    return Leader(0, row, epoch_start=0, high_watermark=0, own_end=own_end)


def reported(led: Leader, *ends: int) -> Leader:
    for node_id, end in enumerate(ends, start=1):
        led.reported(node_id, Report(end, led.in_sync.row.sessions[node_id]), 5)
    return led


def test_the_end_of_a_while_ago_is_what_a_replica_has_to_hold() -> None:
    """Under load nobody reaches the end there is now: 100 records a second, 3 s, judged every half second."""
    behind, lag_ms = LagSamples(), 3_000
    for now_ms in range(0, 60_000, 500):
        end = behind.sample(now_ms, LogExtent(now_ms // 10), lag_ms).end
        if now_ms < lag_ms:
            assert end == -1
        else:
            assert now_ms - lag_ms * 5 // 4 - 500 <= end * 10 <= now_ms - lag_ms
    assert len(behind._samples) <= 6


def test_who_lags_leaves_and_never_below_the_minimum() -> None:
    """Those without a session go first; a replica that never reported in this epoch lags like any other."""
    assert wanted(reported(leader(), 9, 9), LogExtent(9)) is None
    assert wanted(reported(leader(), 9, 8), LogExtent(9)) == {0, 1}
    assert wanted(reported(leader(), 9), LogExtent(9)) == {0, 1}
    assert wanted(leader(), LogExtent(9)) == {0, 2}, "two are to stay"
    assert wanted(leader(replace(ROW, sessions={0: 10, 1: 11})), LogExtent(9)) == {0, 1}, "2 has no session"
    assert wanted(leader(replace(ROW, min_in_sync=3)), LogExtent(9)) is None
    assert wanted(leader(), LogExtent(-1)) is None, "an epoch that just began judges nobody"


def test_who_does_not_know_where_the_log_starts_leaves_too() -> None:
    """It holds every record, and stopped asking: DeleteRecords waits for it, and for it alone, as long as it is in the
    set and in session."""
    led = reported(leader(), 9, 9)
    led.reported(1, Report(9, 11, 4), 5)
    assert not led.all_know_start(4)
    assert wanted(led, LogExtent(9, 0), 4) is None, "the start moved a moment ago"
    assert wanted(led, LogExtent(9, 4), 4) == {0, 1}
    led.reported(2, Report(9, 12, 4), 5)
    assert wanted(led, LogExtent(9, 4), 4) is None and led.all_know_start(4)


def test_who_caught_up_joins() -> None:
    """Also in the very proposal in which another leaves."""
    row = replace(ROW, in_sync=frozenset((0, 1)), min_in_sync=1)
    assert wanted(reported(leader(row), 9), LogExtent(-1)) is None
    assert wanted(reported(leader(row), 9, 8), LogExtent(-1)) is None
    assert wanted(reported(leader(row), 9, 9), LogExtent(-1)) == {0, 1, 2}
    assert wanted(reported(leader(row), 5, 9), LogExtent(9)) == {0, 2}


def test_cluster_d69_a_proposal_of_unknown_outcome_is_settled_by_the_set_as_it_is() -> None:
    """The candidate may be dead by now: a row, also an unchanged one, ends the waiting for it."""
    row = replace(ROW, in_sync=frozenset((0, 1)), min_in_sync=1)
    led = reported(leader(row), 9, 9)
    led.propose(frozenset((0, 1, 2)))
    assert wanted(led, LogExtent(9)) == {0, 1}
    led.propose(frozenset((0, 1)))
    assert led.in_sync.union == {0, 1, 2} and wanted(led, LogExtent(9)) == {0, 1}
    led.applied(replace(row, partition_epoch=2))
    assert led.in_sync.union == {0, 1} and wanted(led, LogExtent(9)) == {0, 1, 2}, "now it may be proposed again"
