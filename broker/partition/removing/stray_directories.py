"""Logs that lie here and that the image does not give to this broker: which they are. Pure.

Owns the judgement. Always true: nothing is judged by an image without this broker (D43); what a deleted topic left is
no stray, it has a proof and is removed by it (R24); a stray is moved aside, never removed. Must not know directories,
nor who moves them. Source: Kafka's `-stray` directories (KAFKA-13127, 14616).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from broker.metadata.image import ClusterImage
from broker.metadata.rebuilt import is_rebuilt
from logformat.values import TopicPartition


def assigned(image: ClusterImage, node_id: int) -> set[TopicPartition]:
    """Where the logs lie that `node_id` is to have. 10 000 take 4 ms."""
    return {
        TopicPartition(topic.name, index)
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if node_id in row.replicas or node_id in row.target
    }


def strays(found: Mapping[TopicPartition, UUID], image: ClusterImage, node_id: int) -> dict[TopicPartition, UUID]:
    """Those of the logs `found` here, by place, that nobody gave to `node_id`. An image that was rebuilt knows too
    little to say (R29)."""
    if is_rebuilt(image):
        return {}
    return {place: topic_id for place, topic_id in found.items() if is_stray(place, topic_id, image, node_id)}


def is_assigned(image: ClusterImage, topic_id: str, index: int, node_id: int) -> bool:
    """Whether `node_id` holds the partition by `image`, or is to."""
    topic = image.topics.get(topic_id)
    if topic is None or index >= topic.partitions:
        return False
    row = topic.rows[index]
    return node_id in row.replicas or node_id in row.target


def is_stray(place: TopicPartition, topic_id: UUID, image: ClusterImage, node_id: int) -> bool:
    if str(topic_id) in image.deleted or node_id not in image.nodes:
        return False
    return not is_assigned(image, str(topic_id), place.partition, node_id)
