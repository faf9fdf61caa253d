"""Configs that affect data safety, read only from the image: min.insync.replicas (R2), unclean leader election
(KIP-106).

Two brokers that have applied the same metadata records read the same values. A broker's configuration file does not
count. Pure.
"""

from __future__ import annotations

from typing import Final

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Row

MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
DEFAULTS: Final = {MIN_IN_SYNC: "1", UNCLEAN_ELECTION: "false"}  # Kafka's defaults


def min_in_sync_set(topic: Topic, image: ClusterImage) -> int:
    """min.insync.replicas of the topic. If it is not set, the value for all brokers, and then Kafka's default."""
    return int(_value(MIN_IN_SYNC, topic, image))


def effective_min(topic: Topic, row: Row, image: ClusterImage) -> int:
    """min.insync.replicas of one partition: at most its number of replicas, as in Kafka."""
    return min(min_in_sync_set(topic, image), len(row.replicas))


def is_unclean_election_allowed(topic: Topic, image: ClusterImage) -> bool:
    """Whether a replica that may lack committed records may lead."""
    return _value(UNCLEAN_ELECTION, topic, image).lower() == "true"


def _value(name: str, topic: Topic, image: ClusterImage) -> str:
    return topic.configs.get(name) or image.cluster_configs.get(name) or DEFAULTS[name]
