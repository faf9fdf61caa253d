"""A followed partition as consumers read it (KIP-392): from this disk and this broker's cache, without its leader.

Owns who waits here, and what was served. Always true: nothing at or above the follower's own high watermark is given,
which is min(leader's, own end); it is made after the first clean answer of the leader epoch (`Followed.readable`,
KAFKA-14704), serves while the replica follows, and is over with the role. What lies below the local log is in the
bucket: a copy drops only what its leader saw there, whole. Must not know who is sent here, nor requests.
"""

from __future__ import annotations

from uuid import UUID

from broker.partition.leading.delayed_operations import DelayedOperations, WaitedFor, Watcher
from broker.partition.local_reads import LocalReads
from broker.partition.log_failures import LogFailures
from broker.replication.follower import Follower
from hotstore.errors import DamagedLog
from hotstore.host.lease import Lease
from logformat.leader_epochs import EpochEnd
from tiering.opening.cold_view import ColdView


class FollowerFetch(WaitedFor):
    """Of one replica in one leader epoch. Every method runs on the loop."""

    __slots__ = (
        "_told",
        "_troubles",
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
        self._troubles = log_failures
        self._told = (-1, -1)

    @property
    def high_watermark(self) -> int:
        return self.follower.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """All transactions below are decided, as for the leader."""
        return self.follower.high_watermark

    @property
    def log_start_offset(self) -> int:
        """As the leader said last."""
        return self.log.log_start_offset

    @property
    def is_end_known(self) -> bool:
        """Of a log whose leader is asked for its end."""
        return True

    def settling(self, wait_s: float) -> None:
        """Nothing is waited for: who asks a follower looks at this replica as it is."""

    def lacks(self, offset: int) -> bool:
        """Whether its leader said that it is committed, and it is not here yet."""
        return offset > self.log.log_end_offset and self.follower.hears_of(offset)

    def epoch_end(self, epoch: int) -> EpochEnd:
        """In its own log, which agrees with the leader's as far as it reaches."""
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    def look(self) -> None:
        """The replica took something: wake who waits, where it moved for them."""
        now = (self.follower.high_watermark, self.log.log_start_offset)
        if now != self._told:
            self._told = now
            self.waiters.wake()

    def wake(self) -> None:
        """It serves no more for now, or for good: who waits looks again, and is sent to the leader."""
        self.waiters.wake()

    def _damaged(self, damaged: DamagedLog) -> None:
        self._troubles.damaged((str(self.topic_id), self.index), str(damaged))

    # ── who waits ────────────────────────────────────────────────────────────────────────────────────────────────
    def watch(self, watcher: Watcher, *, at_tail: bool = False) -> None:
        """Call `watcher` whenever something new may be readable, until `unwatch`. Nobody reads beyond it here."""
        self.waiters.watch(watcher)

    def hurry(self) -> None:
        """The fetcher syncs all that came at once."""
