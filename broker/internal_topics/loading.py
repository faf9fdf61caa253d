"""Loads a state from a partition's snapshot and log, encodes a state as a snapshot, and tracks when a snapshot is due.

Loading and encoding yield to the loop every few ms, however large a batch, a snapshot or a state is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from broker.internal_topics.batches import Rewrite, batch_of, batches_in, chunks
from broker.internal_topics.interfaces import Live, ReplayedState, ShardLog
from seams.loop.turns import Turns, next_turn

_RECORDS_PER_TURN: Final = 250  # 15 µs each, decoded and applied
_SNAPSHOT_CHUNK: Final = 200  # 20 µs each, encoded


class Loaded(NamedTuple):
    """The result of a load: everything below `end_offset` is applied. `snapshot_end`: the end of the snapshot; None
    without a snapshot. `log_bytes`: bytes replayed from the local log."""

    end_offset: int
    snapshot_end: int | None
    log_bytes: int


async def load(shard_log: ShardLog, state: ReplayedState, keep_objects: Callable[[], None]) -> Loaded:
    """Replay into an empty state and restore it. Raises as `ShardLog.replay`. `keep_objects` is called at every turn,
    because 100 000 groups are two million lasting objects. Without these calls Python's garbage collector takes three
    fifths of the time, up to 1.1 s at once."""
    end_offset, snapshot_end, log_bytes = 0, None, 0
    is_begin, defines = True, False  # `defines`: the state began with the rewrite that is replayed
    turns = Turns(_RECORDS_PER_TURN)
    async for piece in shard_log.replay():
        is_begin = is_begin and not piece.is_snapshot
        for batch in batches_in(piece.batches):
            if batch.rewrite is Rewrite.BEGINS:
                defines = is_begin
            is_begin = False
            take = state.apply if batch.rewrite is None or defines else state.repeated
            while some := list(islice(batch.records, _RECORDS_PER_TURN)):
                take(some)
                if turns.over(len(some)):
                    keep_objects()
                    await next_turn()
            if batch.marker is not None:
                state.end_transaction(batch.marker)
            elif batch.is_gap:
                state.lost()
            end_offset = max(end_offset, batch.next_offset)
        end_offset = max(end_offset, piece.end_offset)
        if piece.is_snapshot:
            snapshot_end = piece.end_offset
            state.lost()
        else:
            log_bytes += len(piece.batches)
    for _ in state.restore():
        if turns.over():
            keep_objects()
            await next_turn()
    return Loaded(end_offset, snapshot_end, log_bytes)


async def encode(live: Live, end_offset: int, now_ms: int, batch_bytes_max: int) -> bytes:
    """The records of `live` as whole batches whose offsets end at `end_offset`; b"" without live records."""
    # Each live record came from a different offset, so there are enough offsets below the end.
    base = max(end_offset - live.records_count, 0)
    batches = bytearray()
    for chunk in chunks(live.records, _SNAPSHOT_CHUNK, batch_bytes_max):
        batches += batch_of(chunk, now_ms, base)
        base += len(chunk)
        await next_turn()
    return bytes(batches)


@dataclass(slots=True)
class _Taken:
    """A snapshot that was cut and is not confirmed; `is_behind`: the state changed after the cut."""

    end_offset: int
    cut_s: float
    is_behind: bool = False


class SnapshotBook:
    """Tracks in one leader epoch since when the bucket's snapshot of a shard lacks changes. Everything below
    `end_offset` is applied; a batch in flight is above it. Times are monotonic seconds."""

    def __init__(self, now_s: float, end_offset: int = 0, found_end: int | None = None) -> None:
        """After a load that ended at `end_offset`. `found_end`: the end of the snapshot that the load began with."""
        self.end_offset = end_offset
        self._cut_s = now_s  # time of the cut of the newest written snapshot; at first the time of the load
        self._taken: _Taken | None = None
        # Records replayed above the newest snapshot are of unknown age, so a snapshot is due now. Otherwise a broker
        # that restarts again and again would never reach the end of an interval (simulated seed 2346).
        self._is_dirty = end_offset > (found_end or 0)
        if self._is_dirty:
            self._cut_s = -math.inf

    def applied(self, end_offset: int) -> None:
        self.end_offset = max(self.end_offset, end_offset)
        self._is_dirty = True
        if self._taken is not None:
            self._taken.is_behind = True

    def found(self, end_offset: int) -> bool:
        """The bucket's snapshot ends at `end_offset` (a load from the local log does not ask the bucket). Returns
        whether this snapshot is complete."""
        if end_offset >= self.end_offset:
            self._is_dirty = False
        return not self._is_dirty

    @property
    def dirty_since_s(self) -> float | None:
        """Time since which changes would be lost with the disk. It is the time of the cut of the newest written
        snapshot; −∞ after a load that replayed records of unknown age; None without later changes. A snapshot is due
        when this time is an interval ago, so a change after a quiet time makes a snapshot due at once.
        """
        return self._cut_s if self._is_dirty else None

    def hurry(self) -> None:
        """Make a snapshot due at the next check, if the newest snapshot is incomplete."""
        self._cut_s = -math.inf

    def cut(self, now_s: float) -> int:
        """A snapshot is cut now. Returns its end. One snapshot at a time."""
        self._taken = _Taken(self.end_offset, now_s)
        return self.end_offset

    def written(self, end_offset: int) -> None:
        """The snapshot with that end is committed in the bucket."""
        if self._taken is not None and self._taken.end_offset == end_offset:
            self._cut_s, self._is_dirty = self._taken.cut_s, self._taken.is_behind
            self._taken = None
