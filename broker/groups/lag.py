"""How far behind groups are: what they committed against the end that consumers see.

Owns the walk over all positions, and which of them are shown. Always true: the walk takes turns with everybody else, so
that the parts of a survey are a few ms apart; a survey holds at most `SHOWN_MAX` positions, those that lag most,
however many there are, so that no client can make it grow. Must not know logs, nor how a survey is shown.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from broker.groups.machine.events import GroupState
from broker.groups.shard import GroupShard
from broker.metadata.topic_facts import TopicLookup
from seams.turns import Turns, next_turn

SHOWN_MAX: Final = 2_000
"""Positions a survey shows; each is a time series to whoever scrapes it (10 µs to write one)."""
_POSITIONS_PER_TURN: Final = 5_000  # 0.5 µs each

EndLookup: TypeAlias = Callable[[str, int], int | None]
"""The high watermark of a topic's partition; None when this broker does not serve it."""


class Lag(NamedTuple):
    """Records between a committed position and the end; first, so that lags order by it."""

    records: int
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Survey:
    """`shown`: the largest lags first. `positions`: how many there are, those not shown too."""

    shown: Sequence[Lag]
    positions: int
    states: Counter[GroupState]


async def survey(shards: Sequence[GroupShard], topics: TopicLookup, ends: EndLookup) -> Survey:
    """Look at every position of every group of these shards. One beyond its log's end does not lag."""
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
