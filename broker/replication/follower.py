"""The follower's state machine of one partition: fetch, truncate where the logs diverge, or append (R3, KIP-101, 279,
595). Pure.

- Every leader epoch begins with a fetch that may show divergence, also if the leader stays the same (KAFKA-7164).
  Before the first response without divergence the follower does not append, and its high watermark does not move
  (KAFKA-14704).
- It fetches only from its flushed end, so a fetch is its durable acknowledgement.
- The high watermark is min(leader's, own end) and never falls within an epoch. No record below the high watermark is
  truncated, unless the row names an unclean start that this replica has not seen.
- The bucket's end moves while a log restarts there, so after a restart the replica copies from its leader until it has
  every committed record. If producers are faster than the copy, the leader sends the replica to the bucket again.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import msgspec

from logformat.leader_epochs import UNDEFINED_EPOCH, EpochEnd, LeaderEpochs

_LAG_GROWTH_MAX: Final = 2  # above 1, because the lag of a copying replica varies


class Phase(Enum):
    RECONCILING = "reconciling"  # until the first response without divergence
    CUTTING = "cutting"  # the log is being truncated or restarted
    FOLLOWING = "following"
    OFFLINE = "offline"  # the log diverges below committed records: waits for an operator or an unclean start


class FetchPosition(NamedTuple):
    """A follower's position for a fetch. `last_fetched_epoch`: the epoch of the last record before `offset`, or −1
    without such a record. `log_start_offset`: this replica's durable log start, for the leader's DeleteRecords (R7).
    `copies_on`: the leader has to send records from its log, because the replica could not use the bucket's data or
    catches up after a restart. `clean_end`: as `Lease.clean_end`, 0 if the topic is not compacted. Both cleaners keep
    tombstones above the least one of all replicas."""

    offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int = 0
    copies_on: bool = False
    clean_end: int = 0


class Cut(msgspec.Struct, frozen=True):
    """The caller truncates the log to `offset`, drops the epochs that begin there or later, and calls `cut`."""

    offset: int


class Take(msgspec.Struct, frozen=True):
    """The caller appends and flushes the records, and calls `flushed`."""


class Follower:
    """State of one follower replica. `end`: its flushed end. `seen_epoch`: the last leader epoch with a response
    without divergence; the caller makes it durable. `log_start_offset`: the durable log start (R26). `copies_on`: the
    replica could not use the bucket's data."""

    def __init__(self, lineage: LeaderEpochs, end: int, high_watermark: int, seen_epoch: int = UNDEFINED_EPOCH) -> None:
        self.lineage = lineage
        self.end = end
        self.high_watermark = min(high_watermark, end)
        self.seen_epoch = seen_epoch
        self.log_start_offset = 0
        self.copies_on = False
        self._catches_up = False  # true from a restart at the bucket's end until this replica has all committed records
        self._lag_max: int | None = None  # in offsets; None before the first record after a restart
        self.phase = Phase.RECONCILING
        self._leader_epoch = UNDEFINED_EPOCH
        self._unclean_epoch = UNDEFINED_EPOCH
        self._leader_high_watermark = 0

    def begin(self, leader_epoch: int, unclean_epoch: int = UNDEFINED_EPOCH) -> None:
        """Follow in this leader epoch. `unclean_epoch`: the last epoch that began uncleanly."""
        assert leader_epoch > self._leader_epoch, (leader_epoch, self._leader_epoch)
        self._leader_epoch = leader_epoch
        self._unclean_epoch = unclean_epoch
        self._leader_high_watermark = 0
        if self.phase is not Phase.OFFLINE or unclean_epoch > self.seen_epoch:
            self.phase = Phase.RECONCILING

    def next_fetch(self) -> FetchPosition | None:
        """The next fetch; None while the log is being truncated or restarted, or is offline."""
        if self._asks_nothing:
            return None
        copies_on = self.copies_on or (self._catches_up and not self._falls_behind)
        return FetchPosition(self.end, self._last_epoch, self._leader_epoch, self.log_start_offset, copies_on)

    @property
    def _lag(self) -> int:
        return self._leader_high_watermark - self.end

    @property
    def _falls_behind(self) -> bool:
        """Whether the replica lacks more than twice what it lacked after its restart. Then copying is slower than the
        producers."""
        return self._lag_max is not None and self._lag > self._lag_max

    def is_at(self, asked: FetchPosition) -> bool:
        """Whether the response to `asked` fits the replica's current position."""
        return (
            asked.offset == self.end
            and asked.leader_epoch == self._leader_epoch
            and not self._asks_nothing
            and asked.last_fetched_epoch == self._last_epoch
        )

    @property
    def _asks_nothing(self) -> bool:
        return self.phase is Phase.CUTTING or self.phase is Phase.OFFLINE

    @property
    def _last_epoch(self) -> int:
        last = self.lineage.epoch_for(self.end - 1) if self.end else None
        return UNDEFINED_EPOCH if last is None else last

    def answered(
        self, asked: FetchPosition, diverging: EpochEnd | None, leader_high_watermark: int
    ) -> Cut | Take | None:
        """Handle the leader's response to `asked`. Returns the next step; None if the response is outdated, or no step
        is allowed. `diverging`: the leader's last epoch that is not above the epoch in `asked`, and the end of that
        epoch in the leader's log."""
        if not self.is_at(asked):
            return None
        if diverging is not None:
            return self._diverged(diverging)
        if self.phase is Phase.RECONCILING and self._led_without_a_record:
            self.phase = Phase.CUTTING
            return Cut(self.end)
        self._agrees(leader_high_watermark)
        return Take()

    def _agrees(self, leader_high_watermark: int) -> None:
        self.phase = Phase.FOLLOWING
        self.seen_epoch = self._leader_epoch
        self._leader_high_watermark = max(self._leader_high_watermark, leader_high_watermark)
        if self._lag <= 0:
            self._catches_up = False
        self._advance()

    @property
    def _led_without_a_record(self) -> bool:
        """Whether an epoch begins at the log's end, because this replica led in that epoch without appending a record.
        The leader's record at that offset may have an older epoch, and the epochs of a log must not decrease
        (KAFKA-10706).
        """
        latest = self.lineage.latest
        return latest is not None and latest.start_offset >= self.end

    def _diverged(self, leaders: EpochEnd) -> Cut | None:
        """Truncate where the two lineages part."""
        mine = self.lineage.end_offset_for(leaders.epoch, self.end)
        at = min(self.end, leaders.end_offset)
        if mine.end_offset >= 0:  # the end of that epoch in this log, or of the epoch before it
            at = min(at, mine.end_offset)
        if at < self.high_watermark and self._unclean_epoch <= self.seen_epoch:
            self.phase = Phase.OFFLINE
            return None
        self.phase = Phase.CUTTING
        return Cut(at)

    def cut(self, lineage: LeaderEpochs, end: int) -> None:
        """The log ends at `end` now. The next fetch may show that the previous epoch diverges even earlier."""
        assert self.phase is Phase.CUTTING, self.phase
        self.lineage, self.end, self.phase = lineage, end, Phase.RECONCILING
        self.high_watermark = min(self.high_watermark, end)  # lower after an unclean start

    def leave(self) -> None:
        """The leader's log no longer has the records at this log's end. The caller restarts the log at another offset,
        and calls `began_at`."""
        assert self.phase is not Phase.OFFLINE
        self.phase = Phase.CUTTING

    def began_at(self, lineage: LeaderEpochs, end: int) -> None:
        """The log restarted at `end`. All records below `end` are committed, and are verified in the bucket or
        expired."""
        self.cut(lineage, end)
        self.high_watermark, self._catches_up, self._lag_max = end, True, None

    def began_with(self, lineage: LeaderEpochs, end: int, leader_high_watermark: int) -> None:
        """The log restarted with the records of a response without divergence of this epoch. They are durable, and
        `end` is their end. The response's high watermark is applied, because a leader sends it once.
        """
        self.cut(lineage, end)
        self._agrees(leader_high_watermark)

    def flushed(self, lineage: LeaderEpochs, end: int) -> None:
        """The records below `end` are durable. The next fetch reports them."""
        assert self.phase is Phase.FOLLOWING and end >= self.end, (self.phase, end, self.end)
        if self._catches_up and self._lag_max is None:
            self._lag_max = _LAG_GROWTH_MAX * self._lag
        self.lineage, self.end = lineage, end
        self._advance()

    def starts_at(self, offset: int) -> None:
        """The log start moved to `offset`. Only committed records are deleted, so the high watermark rises to `offset`,
        or to the log end if that is lower."""
        self.high_watermark = max(self.high_watermark, min(offset, self.end))

    def knows_committed(self, offset: int) -> bool:
        """Whether the leader reported, in this epoch, that all records below `offset` are committed."""
        return offset <= self._leader_high_watermark

    def _advance(self) -> None:
        self.high_watermark = max(self.high_watermark, min(self._leader_high_watermark, self.end))
