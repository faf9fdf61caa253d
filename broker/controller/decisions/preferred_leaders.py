"""Which leaderships go back to the first assigned replica, and that they do (auto.leader.rebalance.enable). Pure.

Owns which preferred elections are due, and how many go into one commit. Always true: only an in-sync replica with a
session that says of itself that it is fit gets one, and only where another leads: what nobody leads is another matter;
a partition that is being moved is left alone, its move names its leader. Must not know when it is asked, nor commits.
Source: Kafka's ReplicationControlManager.maybeBalancePartitionLeaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from broker.controller.decisions.decision import Decision
from broker.controller.decisions.fitness import Unfit, may_lead
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, LogPlace, Row
from broker.metadata.rows import elected, rows_set

ELECTIONS_MAX: Final = 1_000
"""In one commit, as in Kafka: 35 KiB of rows."""


def due(topic: Topic, image: ClusterImage, unfit: Unfit) -> Iterator[LogPlace]:
    """Of one topic. 10 000 partitions, all led by their first replica, take 1 ms."""
    for index, row in enumerate(topic.rows):
        if row.leader != row.replicas[0] and _may_go_back(image, (topic.topic_id, index), row, unfit):
            yield topic.topic_id, index


def balanced(image: ClusterImage, places: Iterable[LogPlace], unfit: Unfit) -> Decision[int]:
    """Let those of `places` be led by their first replicas for which that is due now; how many."""
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
