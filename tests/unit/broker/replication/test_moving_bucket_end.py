"""A replica that restarts at the bucket's end while that end moves: it is in sync in the end (D35, D79).

The leader, its bucket and the copying are a model in virtual milliseconds with one byte an offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from broker.replication.catch_up import LaggingReplica, skips_to_bucket
from broker.replication.follower import Follower, Take
from logformat.leader_epochs import LeaderEpochs

MIB = 1 << 20
LINEAGE = LeaderEpochs().assign(1, 0)


@dataclass(frozen=True)
class Rates:
    """`restart_ms`: from a redirection until the replica fetches again; `upload_ms`: from a record to its verified
    object at the earliest."""

    produced_ms: int
    response_bytes: int
    response_ms: int
    restart_ms: int
    segment_bytes: int
    skip_bytes: int
    upload_ms: int = 100

    def log_end(self, now_ms: int) -> int:
        return 500 * MIB + self.produced_ms * now_ms

    def verified_end(self, now_ms: int) -> int:
        return self.log_end(now_ms - self.upload_ms) // self.segment_bytes * self.segment_bytes


@dataclass
class Outcome:
    restarts: int = 0
    lag_bytes: int = 0
    in_sync_ms: int | None = None


def followed(rates: Rates, for_ms: int) -> Outcome:
    """An empty replica outside the in-sync set, until it has every committed record or the time is over."""
    follower, now_ms, outcome = Follower(LeaderEpochs(), 0, 0), 0, Outcome()
    follower.begin(1)
    while now_ms < for_ms and outcome.in_sync_ms is None:
        asked = follower.next_fetch()
        assert asked is not None
        log_end, verified_end = rates.log_end(now_ms), rates.verified_end(now_ms)
        lagging = LaggingReplica(asked.offset, asked.last_fetched_epoch < 0, asked.copies_on)
        if skips_to_bucket(lagging, verified_end, lambda end, start=asked.offset: end - start, rates.skip_bytes):
            follower.leave()
            now_ms += rates.restart_ms
            follower.began_at(LINEAGE, verified_end)
            outcome.restarts += 1
            continue
        assert follower.answered(asked, None, log_end) == Take()
        now_ms += rates.response_ms
        end = min(asked.offset + rates.response_bytes, log_end)
        outcome.lag_bytes = log_end - end
        if end == log_end:
            outcome.in_sync_ms = now_ms
        follower.flushed(LINEAGE, end)
    return outcome


@pytest.mark.parametrize(
    "rates",
    [
        Rates(64 * MIB // 1000, MIB, 8, 2_000, 16 * MIB, 64 * MIB),
        Rates(14 * MIB // 1000, 256 << 10, 7, 6_000, 64 * MIB, 64 * MIB),
        Rates(8 * MIB // 1000, 256 << 10, 10, 500, MIB, 0),
    ],
    ids=["a slow bucket", "a bucket that throttles", "small segments"],
)
def test_a_replica_that_copies_faster_than_producers_write_is_in_sync_soon(rates: Rates) -> None:
    """It was sent on after each first response, because the bucket's end had moved on while it restarted."""
    found = followed(rates, 120_000)
    assert found.in_sync_ms is not None and found.restarts <= 3, found


def test_a_replica_that_copies_slower_than_producers_write_is_sent_on_again() -> None:
    """Only the bucket bounds what it lacks: it restarts there whenever its lag doubled."""
    rates = Rates(8 * MIB // 1000, 64 << 10, 10, 2_000, 4 * MIB, 8 * MIB)
    found = followed(rates, 300_000)
    assert found.in_sync_ms is None and found.restarts > 5
    assert found.lag_bytes < 100 * MIB, "without the bucket it would lack 500 MiB"
