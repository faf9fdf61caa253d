"""Consumer fetches from a followed partition (KIP-392), served from this disk and cache without the leader.

The partition serves records below the follower's own high watermark, which is the lesser of the leader's high watermark
and the follower's log end. `FollowerReplica.readable` makes a `FollowerFetch` after the first clean response of the
leader epoch (KAFKA-14704). The `FollowerFetch` ends with the role. Offsets below the local log are in the bucket,
because a follower deletes only segments that its leader found complete in the bucket.
"""

from __future__ import annotations

from uuid import UUID

from broker.partition.leading.delayed_operations import DelayedOperations, Watchable, Watcher
from broker.partition.local_reads import LocalReads
from broker.partition.log_failures import LogFailures
from broker.replication.follower import Follower
from hotstore.errors import DamagedLog
from hotstore.host.lease import Lease
from logformat.leader_epochs import EpochEnd
from tiering.opening.cold_view import ColdView


class FollowerFetch(Watchable):
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
        self.tier = tier
        self.local = LocalReads(lease, self._damaged)
        self.waiters = DelayedOperations()
        self.fetched_answers = self.fetched_bytes = 0
        self._log_failures = log_failures
        self._told = (-1, -1)

    @property
    def high_watermark(self) -> int:
        return self.follower.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset of the replica's own log, up to its own high watermark (TX8). Deleted segments have no
        open transaction (TX27). The marker of a transaction that is open here may be above the high watermark, even if
        the marker is in the bucket already.
        """
        high_watermark = self.follower.high_watermark
        stable = self.log.last_stable_offset(high_watermark)
        if stable < high_watermark:
            bucket_only_end = min(self.tier.remote_end_offset, self.log.local_log_start_offset)
            stable = min(max(stable, self.log_start_offset, bucket_only_end), high_watermark)
        return stable

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

    def epoch_end(self, epoch: int) -> EpochEnd:
        """The end of `epoch` in this replica's log. Up to its end, this log agrees with the leader's log."""
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

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
