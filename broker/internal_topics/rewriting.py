"""Rewrites of an internal topic's shards: live records are appended again, so that the log below can be deleted (R11).

- Each batch has the applied values at the time of its append, when no other batch is in flight. No newer record is thus
  below the batch in the log.
- When the last batch is committed, the log start moves to the first batch. If the log start cannot move yet, a later
  check moves it without another rewrite. The root of a replicated log names the start, which must not exceed the root's
  snapshot.
- Records of open transactions are appended again as open. Their markers come after these copies in the log, because no
  record is read while a marker in the log is not applied.
- An interrupted rewrite changed nothing and starts over. Its batches are marked, so that a replay that begins below
  treats their records as repeated, not as new (`ReplayedState.repeated`). A failing shard does not delay other shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from broker.internal_topics.batches import KeyValue, Rewrite
from broker.internal_topics.interfaces import Live
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_shard import LedShard
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

log = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
_RECORDS_PER_BATCH: Final = 200  # 20 µs each, encoded
_END: Final = KeyValue(b"", None)


class Rewrites:
    def __init__(self, internal_log: InternalLog[Any]) -> None:
        self._log = internal_log
        self._failing: set[str] = set()  # shards whose failure was logged

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.write_due()

    async def write_due(self) -> None:
        """Check each shard and rewrite the shards that are due. A failed shard is due again at the next check."""
        await asyncio.gather(*[self._try(shard) for shard in self._log.shards() if shard.is_ready])

    async def _try(self, shard: LedShard[Any]) -> None:
        name = shard.shard_log.name
        try:
            await self._look(shard)
        except (ThermoclineError, OSError) as failure:
            if not shard.is_dropped and name not in self._failing:
                self._failing.add(name)
                log.warning("%s is not rewritten yet, and its log keeps growing: %s", name, failure)
        else:
            self._failing.discard(name)

    async def _look(self, shard: LedShard[Any]) -> None:
        growth = shard.growth
        if growth.is_due and growth.live_bytes is None:
            growth.live_bytes = await _size_of(shard.state.live())
        if growth.is_due:
            await self._write(shard)
        if (start := growth.start) is not None and shard.is_ready:
            if await shard.shard_log.start_at(start):
                growth.start_moved()
            else:
                shard.book.hurry()  # the log start can move after the next snapshot

    async def _write(self, shard: LedShard[Any]) -> None:
        if not shard.growth.log_bytes:
            # The log of a new disk must not begin with the rewrite: a load would take an interrupted one for complete.
            with closing(shard.state.live_again()) as live:
                await shard.append_cut(lambda: _take(live, 1), Rewrite.GOES_ON)
        # Closed now, not by the garbage collector during the next rewrite.
        with closing(shard.state.live_again()) as live:
            await self._append_all(shard, live)

    async def _append_all(self, shard: LedShard[Any], live: Iterator[KeyValue | None]) -> None:
        bytes_before, live_bytes = shard.growth.log_bytes, 0
        bytes_max = self._log.limits.append_batch_bytes_max
        start, records = await shard.append_cut(lambda: _take(live, bytes_max), Rewrite.BEGINS)
        while records:
            if not shard.is_ready:
                return  # the broker stops, or the shard was dropped
            live_bytes += sum(record.size for record in records)
            _, records = await shard.append_cut(lambda: _take(live, bytes_max), Rewrite.GOES_ON)
        shard.growth.rewritten(start, bytes_before, live_bytes)


def _take(live: Iterator[KeyValue | None], bytes_max: int) -> list[KeyValue]:
    """The next batch. Its records are read only now, because an earlier read might be outdated."""
    records: list[KeyValue] = []
    size = 0
    while len(records) < _RECORDS_PER_BATCH and size < bytes_max:
        record = next(live, _END)
        if record is _END or (record is None and records):
            break
        if record is not None:
            records.append(record)
            size += record.size
    return records


async def _size_of(live: Live) -> int:
    turns, size = Turns(_RECORDS_PER_BATCH), 0
    for record in live.records:
        size += record.size
        if turns.over():
            await next_turn()
    return size
