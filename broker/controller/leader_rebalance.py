"""Leaderships that go back by themselves: the look at the interval, and the commits (auto.leader.rebalance.enable).

Owns the task. Always true: it does something only while this broker decides, once an interval, in turns; what is due is
decided anew on the image at hand, as many in one commit as Kafka's. Must not know which are due (preferred_leaders).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions.fitness import Unfit
from broker.controller.decisions.preferred_leaders import ELECTIONS_MAX, balanced, due
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace
from logformat.errors import ThermoclineError
from seams.turns import Turns, next_turn

log = logging.getLogger(__name__)


class LeaderRebalance:
    """Of one broker. `unfit`: those sessions of an image that say that they are not fit to lead everything."""

    def __init__(
        self,
        commit_queue: CommitQueue,
        metadata: MetadataCache,
        node_id: int,
        unfit: Callable[[ClusterImage], Unfit],
        interval_s: float,
    ) -> None:
        self._commit_queue = commit_queue
        self._metadata = metadata
        self._node_id = node_id
        self._unfit = unfit
        self._interval_s = interval_s

    async def keep(self) -> None:
        """Until cancelled."""
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
