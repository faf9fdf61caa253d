"""What a follower of one partition does next: fetch, cut its log where it diverges, or append (R3, KIP-101, 279, 595).

Owns how far the replica agrees with its leader, and its high watermark. Always true: every leader epoch begins with a
fetch that may show divergence, also under the same leader (KAFKA-7164); before the first answer without divergence
nothing is appended and the high watermark stands (KAFKA-14704); it asks only for what follows its flushed end, so that
its next fetch is its durable acknowledgement; the high watermark is min(leader's, own end), and never falls in an
epoch; nothing below it is cut, unless the row names an unclean start that this replica has not seen. Pure.
`broker.partition.following.follower_replica` runs it. Must not know requests, files, connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from logformat.leader_epochs import UNDEFINED_EPOCH, EpochEnd, LeaderEpochs


class Phase(Enum):
    """How far it is in this leader epoch."""

    RECONCILING = "reconciling"  # nothing is known to agree
    CUTTING = "cutting"  # it diverges, and its log is being cut
    FOLLOWING = "following"
    OFFLINE = "offline"  # what it would have to cut is committed: a person decides, or an unclean start


class FetchPosition(NamedTuple):
    """What to ask the leader for. `last_fetched_epoch`: of the last record before `offset`; −1: there is none.
    `log_start_offset`: where this replica's log starts, durably: the leader answers DeleteRecords by it (R7).
    `copies_on`: what the bucket holds there is of no use: copied is all that the leader has."""

    offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int = 0
    copies_on: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Drop what lies at or above `offset`, epochs that begin there too, then say `cut`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Take:
    """Append what came, flush it, then say `flushed`."""


class Follower:
    """Of one replica. `end`: its flushed end; `seen_epoch`: the last leader epoch in which it had a clean
    answer (who runs it makes that durable); `log_start_offset`: what is durable of its log start (R26); `copies_on`:
    see `FetchPosition`."""

    def __init__(self, lineage: LeaderEpochs, end: int, high_watermark: int, seen_epoch: int = UNDEFINED_EPOCH) -> None:
        self.lineage = lineage
        self.end = end
        self.high_watermark = min(high_watermark, end)
        self.seen_epoch = seen_epoch
        self.log_start_offset = 0
        self.copies_on = False
        self.phase = Phase.RECONCILING
        self._leader_epoch = UNDEFINED_EPOCH
        self._unclean_epoch = UNDEFINED_EPOCH
        self._leader_high_watermark = 0

    def begin(self, leader_epoch: int, unclean_epoch: int = UNDEFINED_EPOCH) -> None:
        """Follow in this epoch from now on, whoever leads; `unclean_epoch`: the last one that began uncleanly."""
        assert leader_epoch > self._leader_epoch, (leader_epoch, self._leader_epoch)
        self._leader_epoch = leader_epoch
        self._unclean_epoch = unclean_epoch
        self._leader_high_watermark = 0
        if self.phase is not Phase.OFFLINE or unclean_epoch > self.seen_epoch:
            self.phase = Phase.RECONCILING

    def next_fetch(self) -> FetchPosition | None:
        """None while it has to be cut, or is offline."""
        if self._asks_nothing:
            return None
        return FetchPosition(self.end, self._last_epoch, self._leader_epoch, self.log_start_offset, self.copies_on)

    def is_at(self, asked: FetchPosition) -> bool:
        """Whether what comes for `asked` goes on where the replica is now."""
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
        """The leader's answer to `asked`; None: it is of another epoch, comes twice, or nothing may be done.

        `diverging`: the leader's last epoch that is not above the one asked for, and where that ends there."""
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
        self._advance()

    @property
    def _led_without_a_record(self) -> bool:
        """Whether an epoch begins at its end: one that it led itself. The leader may go on in an older one there, whose
        records would not follow it (KAFKA-10706)."""
        latest = self.lineage.latest
        return latest is not None and latest.start_offset >= self.end

    def _diverged(self, leaders: EpochEnd) -> Cut | None:
        """Cut where the two lineages part: what follows is of an epoch that the leader does not have there."""
        mine = self.lineage.end_offset_for(leaders.epoch, self.end)
        at = min(self.end, leaders.end_offset)
        if mine.end_offset >= 0:  # where we lack that epoch, our own of before ends here, and is asked for next
            at = min(at, mine.end_offset)
        if at < self.high_watermark:
            if self._unclean_epoch <= self.seen_epoch:
                self.phase = Phase.OFFLINE
                return None
            self.high_watermark = at
        self.phase = Phase.CUTTING
        return Cut(at)

    def cut(self, lineage: LeaderEpochs, end: int) -> None:
        """The log ends there now: ask again, the epoch before may part earlier still."""
        assert self.phase is Phase.CUTTING, self.phase
        self.lineage, self.end, self.phase = lineage, end, Phase.RECONCILING

    def leave(self) -> None:
        """Its log does not go on where its leader's still is: it is to begin elsewhere, then say `began_at`."""
        assert self.phase is not Phase.OFFLINE
        self.phase = Phase.CUTTING

    def began_at(self, lineage: LeaderEpochs, end: int) -> None:
        """The log begins at `end` now, below which all is committed and in the bucket, verified, or expired."""
        self.high_watermark = max(self.high_watermark, end)
        self.cut(lineage, end)

    def began_with(self, lineage: LeaderEpochs, end: int, leader_high_watermark: int) -> None:
        """The log was begun anew with what a clean answer of this epoch brought, and ends with that, durably: what the
        answer said holds. A leader says it once."""
        self.cut(lineage, end)
        self._agrees(leader_high_watermark)

    def flushed(self, lineage: LeaderEpochs, end: int) -> None:
        """What was taken is durable: the next fetch says so."""
        assert self.phase is Phase.FOLLOWING and end >= self.end, (self.phase, end, self.end)
        self.lineage, self.end = lineage, end
        self._advance()

    def hears_of(self, offset: int) -> bool:
        """Whether its leader said, in this epoch, that all below `offset` is committed."""
        return offset <= self._leader_high_watermark

    def _advance(self) -> None:
        self.high_watermark = max(self.high_watermark, min(self._leader_high_watermark, self.end))
