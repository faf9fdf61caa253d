"""Consumer fetches from a followed partition (KIP-392), served from this disk and cache without the leader.

The partition serves records below the follower's own high watermark, which is the lesser of the leader's high watermark
and the follower's log end. `FollowerReplica.readable` makes a `FollowerFetch` after the first clean response of the
leader epoch (KAFKA-14704). The `FollowerFetch` ends with the role. Offsets below the local log are in the bucket,
because a follower deletes only segments that its leader found complete in the bucket.
"""

from __future__ import annotations

from uuid import UUID

from broker.partition.leading.delayed_operations import DelayedOperations, Watcher
from broker.partition.local_reads import LocalReadable, LocalReads
from broker.partition.log_failures import LogFailures
from broker.replication.follower import Follower
from hotstore.errors import DamagedLog
from hotstore.host.lease import Lease
from tiering.opening.cold_view import ColdView


class FollowerFetch(LocalReadable):
    """Consumers' reads from one replica in one leader epoch. Every method runs on the loop."""

    __slots__ = (
        "_log_failures",
        "_told",
        "fetched_answers",
        "fetched_bytes",
        "follower",
        "index",
        "leader_epoch",
        "lease",
        "local",
        "log",
        "tier",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self, lease: Lease, follower: Follower, leader_epoch: int, tier: ColdView, log_failures: LogFailures
    ) -> None:
        log = lease.log
        self.topic = log.topic
        self.topic_id = UUID(bytes=log.topic_id)
        self.index = log.partition
        self.log = log
        self.lease = lease
        self.follower = follower
        self.leader_epoch = leader_epoch
        self.tier: ColdView = tier
        self.local = LocalReads(lease, self._damaged)
        self.waiters = DelayedOperations()
        self.fetched_answers = self.fetched_bytes = 0
        self._log_failures = log_failures
        self._told = (-1, -1)

    @property
    def high_watermark(self) -> int:
        return self.follower.high_watermark

    @property
    def log_start_offset(self) -> int:
        """The log start that the leader reported last."""
        return self.log.log_start_offset

    @property
    def is_end_known(self) -> bool:
        return True

    def end_visible(self, wait_s: float) -> None:
        """Do nothing: a follower does not wait."""

    def lacks(self, offset: int) -> bool:
        """Whether the records below `offset` are committed, but this log lacks some of them. The leader reported them,
        or the bucket holds them: an answer from the bucket may end above all that the leader reported."""
        is_committed = self.follower.knows_committed(offset) or offset <= self.tier.known_end_offset
        return offset > self.log.log_end_offset and is_committed

    def advanced(self) -> None:
        """The replica applied a response: wake readers if an offset moved."""
        now = (self.follower.high_watermark, self.log.log_start_offset)
        if now != self._told:
            self._told = now
            self.waiters.wake()

    def wake(self) -> None:
        """This replica stopped serving: readers retry at the leader."""
        self.waiters.wake()

    def _damaged(self, damaged: DamagedLog) -> None:
        self._log_failures.damaged((str(self.topic_id), self.index), str(damaged))

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────
    def watch(self, watcher: Watcher, *, at_tail: bool = False) -> None:
        """Call `watcher` whenever more may be readable, until `unwatch`. Nothing beyond the high watermark is served,
        so `at_tail` has no effect."""
        self.waiters.watch(watcher)

    def hurry(self) -> None:
        """Do nothing: the fetcher syncs at once."""
