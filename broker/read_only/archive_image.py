"""The cluster as a read-only broker shows it: what its owner's image says, with this broker as the only one.

Owns what is kept of an owner's image. Always true: topics, ids, configs and leader epochs are the owner's; this broker
leads every partition, and is its only replica; internal topics are left out, for no object holds their records; of what
was set on all brokers only topics' defaults are kept, as a setting of the owner's processes is none of this one; a
topic that did not change is the same object in both answers, so that following costs what changed. Pure. Must not know
how images come, nor who obeys them.
"""

from __future__ import annotations

from typing import Final

from broker.config.definitions import TOPIC_SYNONYMS
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Node, Row

_TOPIC_DEFAULTS: Final = frozenset(synonym.name for of in TOPIC_SYNONYMS.values() for synonym in of)


class ArchiveImages:
    """For the broker `node`: it remembers the last answer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._made: dict[str, tuple[Topic, Topic]] = {}

    def of(self, image: ClusterImage) -> ClusterImage:
        """What is shown of `image`."""
        before, made = self._made, dict[str, tuple[Topic, Topic]]()
        for topic_id, topic in image.topics.items():
            if not topic.internal:
                known = before.get(topic_id)
                made[topic_id] = known if known is not None and known[0] is topic else (topic, self._shown(topic))
        self._made = made
        return ClusterImage(
            topics={topic_id: shown for topic_id, (_, shown) in made.items()},
            deleted={topic_id: topic for topic_id, topic in image.deleted.items() if not topic.internal},
            nodes={self._node.node_id: self._node},
            cluster_configs={name: text for name, text in image.cluster_configs.items() if name in _TOPIC_DEFAULTS},
        )

    def _shown(self, topic: Topic) -> Topic:
        rows: dict[int, Row] = {}  # by leader epoch: most partitions share one
        return Topic(
            topic.topic_id,
            topic.name,
            tuple(rows.setdefault(row.leader_epoch, self._row(row.leader_epoch)) for row in topic.rows),
            topic.configs,
            topic.internal,
        )

    def _row(self, leader_epoch: int) -> Row:
        alone = (self._node.node_id,)
        return Row(alone, self._node.node_id, leader_epoch, 0, alone, leader_epoch)
