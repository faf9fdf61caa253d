"""The cluster as a value: `image = apply(records)`.

Owns what the records mean. Always true: applying the same records in the same order gives the same image; a record that
was applied before changes nothing (a commit whose answer was lost is applied again); epochs only grow. Must not know
the bucket, the broker's partitions or Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from broker.metadata.records import (
    BrokerConfigsSet,
    MetadataRecord,
    NodeStarted,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)


class Topic(msgspec.Struct, frozen=True):
    """A topic that exists; `configs` are its explicit overrides. `topic_id`: a UUID in canonical text form."""

    topic_id: str
    name: str
    partitions: int
    configs: dict[str, str]
    internal: bool


class Node(msgspec.Struct, frozen=True):
    """The broker process that serves as `node_id`. `epoch` counts its starts: the leader epoch of all it leads."""

    node_id: int
    directory_id: str
    incarnation: str
    host: str
    port: int
    epoch: int


class ClusterImage(msgspec.Struct):
    """Topics by id, deleted topics whose bytes remain, nodes, the exclusive end of the producer ids given out, configs
    set on all brokers and on nodes by id."""

    topics: dict[str, Topic] = {}
    deleted: dict[str, Topic] = {}
    nodes: dict[int, Node] = {}
    producer_ids_end: int = 0
    cluster_configs: dict[str, str] = {}
    node_configs: dict[int, dict[str, str]] = {}

    def configs_of(self, node_id: int) -> tuple[dict[str, str], dict[str, str]]:
        """What was set on all brokers, and on this one."""
        return self.cluster_configs, self.node_configs.get(node_id, {})

    def topic_named(self, name: str) -> Topic | None:
        """A scan: for decisions, not for the request path (broker.partition.registry has the index)."""
        return next((topic for topic in self.topics.values() if topic.name == name), None)

    def apply(self, record: MetadataRecord) -> None:
        """Take one record in."""
        match record:
            case NodeStarted():
                self._start(record)
            case TopicCreated():
                if record.topic_id not in self.deleted:
                    self.topics.setdefault(
                        record.topic_id,
                        Topic(record.topic_id, record.name, record.partitions, record.configs, record.internal),
                    )
            case PartitionsAdded(topic_id, partitions):
                if (topic := self.topics.get(topic_id)) is not None:
                    self.topics[topic_id] = replace(topic, partitions=max(topic.partitions, partitions))
            case TopicConfigsSet(topic_id, configs):
                if (topic := self.topics.get(topic_id)) is not None:
                    self.topics[topic_id] = replace(topic, configs=configs)
            case TopicDeleted(topic_id):
                if (topic := self.topics.pop(topic_id, None)) is not None:
                    self.deleted[topic_id] = topic
            case TopicPurged(topic_id):
                self.deleted.pop(topic_id, None)
            case ProducerIdsReserved(end):
                self.producer_ids_end = max(self.producer_ids_end, end)
            case BrokerConfigsSet(configs, None):
                self.cluster_configs = configs
            case BrokerConfigsSet(configs, int(node_id)):
                self.node_configs = {**self.node_configs, node_id: configs}

    def _start(self, record: NodeStarted) -> None:
        before = self.nodes.get(record.node_id)
        if before is not None and before.incarnation == record.incarnation:
            return
        epoch = 0 if before is None else before.epoch + 1
        self.nodes[record.node_id] = Node(
            record.node_id, record.directory_id, record.incarnation, record.host, record.port, epoch
        )

    def with_records(self, records: Iterable[MetadataRecord]) -> ClusterImage:
        """A new image; this one stays as it is."""
        image = ClusterImage(
            dict(self.topics),
            dict(self.deleted),
            dict(self.nodes),
            self.producer_ids_end,
            self.cluster_configs,
            self.node_configs,
        )
        for record in records:
            image.apply(record)
        return image
