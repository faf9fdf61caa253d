"""Consumer lag: the distance of committed positions from the high watermark.

The walk over all positions yields to the loop every few ms. A survey shows at most `SHOWN_MAX` positions (with the
largest lags), so that a client cannot make a survey grow.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from broker.groups.machine.events import GroupState
from broker.groups.shard import GroupShard
from broker.metadata.image import TopicLookup
from seams.loop.turns import Turns, next_turn

SHOWN_MAX: Final = 2_000  # positions in a survey; each is a time series (10 µs to write one)
_POSITIONS_PER_TURN: Final = 5_000  # positions a turn: 0.5 µs each

EndLookup: TypeAlias = Callable[[str, int], int | None]
"""High watermark of a topic's partition; None when this broker does not serve it."""


class Lag(NamedTuple):
    """Lag of one position. `records` between the position and the log's end is the first field, so that lags order by
    it."""

    records: int
    group_id: str
    topic: str
    partition: int


class Survey(msgspec.Struct, frozen=True):
    """The lags of a coordinator's positions. `shown`: the largest lags first. `positions`: the number of all positions,
    including those not shown."""

    shown: Sequence[Lag]
    positions: int
    states: Counter[GroupState]


async def survey(shards: Sequence[GroupShard], topics: TopicLookup, ends: EndLookup) -> Survey:
    """Visit every position of every group of these shards. A position beyond its log's end has no lag."""
    most: list[Lag] = []
    states: Counter[GroupState] = Counter()
    positions = 0
    group_turns, position_turns = Turns(), Turns(_POSITIONS_PER_TURN)
    for shard in shards:
        for group in list(shard.groups.values()):
            states[group.machine.state] += 1
            for topic, held in group.offsets.fetch(None, topics):
                for partition, value in held:
                    end = ends(topic, partition)
                    if end is None:
                        continue
                    positions += 1
                    lag = Lag(max(0, end - value.offset), group.group_id, topic, partition)
                    if len(most) < SHOWN_MAX:
                        heapq.heappush(most, lag)
                    elif lag > most[0]:
                        heapq.heapreplace(most, lag)
                if position_turns.over(len(held)):
                    await next_turn()
            if group_turns.over():
                await next_turn()
    return Survey(sorted(most, reverse=True), positions, states)
