"""Returns leadership to the first assigned replica (auto.leader.rebalance.enable), once per interval while this broker
is the controller.

The first replica takes over from another leader if it is in sync, has a session and is not unfit. Leaderless partitions
and partitions under reassignment are not changed. Each commit decides again on the current image. Source: Kafka's
ReplicationControlManager.maybeBalancePartitionLeaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions.decision import Decision
from broker.controller.decisions.fitness import Unfit, may_lead
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, LogPlace, Row
from broker.metadata.rows import elected, rows_set
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

ELECTIONS_MAX: Final = 1_000  # elections in one commit, as in Kafka: 35 KiB of rows


def due(topic: Topic, image: ClusterImage, unfit: Unfit) -> Iterator[LogPlace]:
    """The partitions of one topic whose first replica should lead again. 10 000 partitions led by their first replica
    take 1 ms."""
    for index, row in enumerate(topic.rows):
        if row.leader != row.replicas[0] and _may_go_back(image, (topic.topic_id, index), row, unfit):
            yield topic.topic_id, index


def balanced(image: ClusterImage, places: Iterable[LogPlace], unfit: Unfit) -> Decision[int]:
    """Elect the first replica for those of `places` that still need it. Returns the number of elections."""
    made = {}
    for place in places:
        topic = image.topics.get(place[0])
        if topic is None or place[1] >= topic.partitions:
            continue
        if _may_go_back(image, place, topic.rows[place[1]], unfit):
            after = elected(image, topic, place[1])
            if after is not None:
                made[place] = after
    return Decision(rows_set(made), len(made))


def _may_go_back(image: ClusterImage, place: LogPlace, row: Row, unfit: Unfit) -> bool:
    first = row.replicas[0]
    return (
        row.leader not in (first, NO_LEADER)
        and not row.target
        and first in row.in_sync
        and image.nodes[first].active
        and may_lead(place, first, unfit)
    )


log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class LeaderRebalance:
    """The periodic rebalance. `unfit` returns the brokers of an image that should not lead every partition, by their
    reports."""

    _commit_queue: CommitQueue
    _metadata: MetadataCache
    _node_id: int
    _unfit: Callable[[ClusterImage], Unfit]
    _interval_s: float

    async def keep(self) -> None:
        """Rebalance periodically until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._metadata.is_decided_by(self._node_id):
                await self._balance()

    async def _balance(self) -> None:
        places = await self._due()
        done = 0
        try:
            for at in range(0, len(places), ELECTIONS_MAX):
                some = places[at : at + ELECTIONS_MAX]
                done += await self._commit_queue.decide(
                    lambda image, some=some: balanced(image, some, self._unfit(image))  # type: ignore[misc]
                )
        except (ThermoclineError, OSError) as refused:
            log.warning("%d partitions are not led by their first replica yet: %s", len(places) - done, refused)
        if done:
            log.info("%d partitions are led by their first replica again", done)

    async def _due(self) -> list[LogPlace]:
        image, turns, found = self._metadata.image, Turns(), list[LogPlace]()
        unfit = self._unfit(image)
        for topic in image.topics.values():
            found += due(topic, image, unfit)
            if turns.over(1 + topic.partitions // 8):
                await next_turn()
        return found
