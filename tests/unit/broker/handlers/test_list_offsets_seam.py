"""ListOffsets by time while local segments leave the disk: nothing that moved to the bucket meanwhile is skipped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from broker.context import Context
from broker.handlers.fetch.list_offsets import _by_time
from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.messages import ListOffsetsResponsePartition


def test_records_that_change_tiers_during_the_search_are_found() -> None:
    """One record an offset, its timestamp too. Wanted is 15; the local log starts at 10, and at 20 after the cold look
    that found nothing below 10."""
    log = SimpleNamespace(local_log_start_offset=10, epochs=SimpleNamespace(epoch_for=lambda _: 3))

    async def cold(timestamp: int, before: int) -> tuple[int, int] | None:
        log.local_log_start_offset = 20
        return (timestamp, timestamp) if timestamp < before else None

    async def local(timestamp: int) -> SimpleNamespace:
        first = max(timestamp, log.local_log_start_offset)
        return SimpleNamespace(timestamp=first, offset=first)

    partition = SimpleNamespace(
        topic="t",
        index=0,
        log=log,
        log_start_offset=0,
        high_watermark=100,
        tier=SimpleNamespace(offset_for_timestamp=cold),
        local=SimpleNamespace(offset_for_timestamp=local),
    )
    context = SimpleNamespace(config=SimpleNamespace(list_offsets_wait_ms_max=1000))
    answer = ListOffsetsResponsePartition()
    asyncio.run(_by_time(cast(Context, context), cast(LeaderReplica, partition), 15, answer, is_committed=False))
    assert (answer.timestamp, answer.offset, answer.leader_epoch) == (15, 15, 3)
