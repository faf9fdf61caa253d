"""ListOffsets by time while records leave the disk or the log: nothing that is still there is skipped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from broker.context import Context
from broker.handlers.fetch.list_offsets import _by_time
from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.messages import ListOffsetsResponsePartition


class Moving:
    """A partition with one record an offset, its timestamp too. The local log starts at 10, the log at 0. The first
    look into the bucket ends after `local_start` and `start` moved there."""

    def __init__(self, *, local_start: int = 10, start: int = 0) -> None:
        self.topic, self.index, self.high_watermark, self.log_start_offset = "t", 0, 100, 0
        self.log = SimpleNamespace(local_log_start_offset=10, epochs=SimpleNamespace(epoch_for=lambda _: 3))
        self.tier = SimpleNamespace(offset_for_timestamp=self._cold)
        self.local = SimpleNamespace(offset_for_timestamp=self._hot)
        self._after = local_start, start

    async def _cold(self, timestamp: int, before: int) -> tuple[int, int] | None:
        first = max(timestamp, self.log_start_offset)
        self.log.local_log_start_offset, self.log_start_offset = self._after
        return (first, first) if first < before else None

    async def _hot(self, timestamp: int) -> SimpleNamespace:
        first = max(timestamp, self.log.local_log_start_offset)
        return SimpleNamespace(timestamp=first, offset=first)

    def found(self, timestamp: int) -> tuple[int, int, int]:
        context = SimpleNamespace(config=SimpleNamespace(list_offsets_wait_ms_max=1000))
        answer = ListOffsetsResponsePartition()
        partition = cast(LeaderReplica, self)
        asyncio.run(_by_time(cast(Context, context), partition, timestamp, answer, is_committed=False))
        return answer.timestamp, answer.offset, answer.leader_epoch


def test_records_that_change_tiers_during_the_search_are_found() -> None:
    """Wanted is 15; the local log starts at 20 after the cold look that found nothing below 10."""
    assert Moving(local_start=20).found(15) == (15, 15, 3)


def test_records_above_a_log_start_that_moves_during_the_search_are_found() -> None:
    """Wanted is 2, the record that retention takes meanwhile: the answer was that no record is as new, which sends a
    client to the end of the log."""
    assert Moving(start=5).found(2) == (5, 5, 3)
