"""How many replicas have to hold a record before it counts: min.insync.replicas as the image has it (R2). Pure.

Owns the one reading of that config that decides about data, the controller's and the leaders'. Always true: two brokers
at one position read the same; no file of a broker is asked. Must not know who asks.
"""

from __future__ import annotations

from typing import Final

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Row

CONFIG: Final = "min.insync.replicas"
DEFAULT: Final = "1"
"""As in Kafka, where nobody says anything."""


def min_in_sync_set(topic: Topic, image: ClusterImage) -> int:
    """As set on the topic, or else on all brokers, or else Kafka's default."""
    return int(topic.configs.get(CONFIG) or image.cluster_configs.get(CONFIG) or DEFAULT)


def effective_min(topic: Topic, row: Row, image: ClusterImage) -> int:
    """Of one of its partitions: never more than it has replicas, as in Kafka."""
    return min(min_in_sync_set(topic, image), len(row.replicas))
