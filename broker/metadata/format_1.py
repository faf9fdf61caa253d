"""Reads a `cluster.json` of format 1 as format 2 (docs/formats/cluster.md). Pure.

In format 1 one node led every partition, in the node's epoch. In format 2, that node is the only replica and in sync,
and the leader epoch of each row is the node's epoch. The first broker epoch lies above every producer id given so far
(`broker.metadata.producer_ids`).
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from broker.metadata.image import FIRST_BROKER_EPOCH, ClusterImage, Topic
from broker.metadata.producer_ids import first_epoch_above
from broker.metadata.records import Endpoint, Node, Row
from logformat.errors import Corrupt
from seams.typed_json import decoder_of

_PARTITIONS_MAX = 10_000  # partitions of a topic in format 1


class PageV1(msgspec.Struct, frozen=True):
    """An immutable page, not compressed."""

    key: str
    size: int
    crc32c: int


class NodeStarted(msgspec.Struct, frozen=True, tag="node", tag_field="t"):
    node_id: int
    directory_id: str
    incarnation: str
    host: str
    port: int


class TopicCreated(msgspec.Struct, frozen=True, tag="topic", tag_field="t"):
    topic_id: str
    name: str
    partitions: int
    configs: dict[str, str]
    internal: bool = False


class PartitionsAdded(msgspec.Struct, frozen=True, tag="partitions", tag_field="t"):
    topic_id: str
    partitions: int


class TopicConfigsSet(msgspec.Struct, frozen=True, tag="configs", tag_field="t"):
    topic_id: str
    configs: dict[str, str]


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted", tag_field="t"):
    topic_id: str


class TopicPurged(msgspec.Struct, frozen=True, tag="purged", tag_field="t"):
    topic_id: str


class ProducerIdsReserved(msgspec.Struct, frozen=True, tag="pids", tag_field="t"):
    end: int


class BrokerConfigsSet(msgspec.Struct, frozen=True, tag="brokers", tag_field="t"):
    configs: dict[str, str]
    node_id: int | None = None


Record = (
    NodeStarted
    | TopicCreated
    | PartitionsAdded
    | TopicConfigsSet
    | TopicDeleted
    | TopicPurged
    | ProducerIdsReserved
    | BrokerConfigsSet
)


class Content1(msgspec.Struct, frozen=True):
    """The image at `snapshot` (None: empty), then `records`."""

    cluster_id: str
    snapshot: PageV1 | None = None
    records: tuple[Record, ...] = ()

    @property
    def page(self) -> PageV1 | None:
        return self.snapshot


class OldNode(msgspec.Struct, frozen=True):
    node_id: int
    directory_id: str
    incarnation: str
    host: str
    port: int
    epoch: int


class OldTopic(msgspec.Struct, frozen=True):
    topic_id: str
    name: str
    partitions: int
    configs: dict[str, str]
    internal: bool


class OldImage(msgspec.Struct):
    """The content of a page."""

    topics: dict[str, OldTopic] = {}
    deleted: dict[str, OldTopic] = {}
    nodes: dict[int, OldNode] = {}
    producer_ids_end: int = 0
    cluster_configs: dict[str, str] = {}
    node_configs: dict[int, dict[str, str]] = {}

    def apply(self, record: Record) -> None:
        """Apply a record; a repetition has no effect."""
        match record:
            case NodeStarted(node_id, directory_id, incarnation, host, port):
                before = self.nodes.get(node_id)
                if before is None or before.incarnation != incarnation:
                    epoch = 0 if before is None else before.epoch + 1
                    self.nodes[node_id] = OldNode(node_id, directory_id, incarnation, host, port, epoch)
            case TopicCreated(topic_id, name, partitions, configs, internal):
                if topic_id not in self.deleted:
                    self.topics.setdefault(topic_id, OldTopic(topic_id, name, partitions, configs, internal))
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


def image_of(content: Content1, page: bytes | None) -> ClusterImage:
    """The image of `content` and its page's bytes (None: no page). Raises Corrupt. `broker.metadata.image.check` is not
    called here."""
    old = OldImage()
    if page is not None:
        try:
            old = decoder_of(OldImage).decode(page)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
            raise Corrupt(f"the page that cluster.json names is not readable: {broken}") from broken
    for record in content.records:
        old.apply(record)
    return lifted(old)


def lifted(old: OldImage) -> ClusterImage:
    """The same cluster in format 2."""
    if not 0 <= old.producer_ids_end < 1 << 62:
        raise Corrupt(f"cluster metadata holds an impossible value: producer ids up to {old.producer_ids_end}")
    first = max(FIRST_BROKER_EPOCH, first_epoch_above(old.producer_ids_end))
    nodes = {
        node_id: Node(
            node.node_id,
            first + at,
            node.directory_id,
            node.incarnation,
            "",
            (Endpoint("PLAINTEXT", node.host, node.port),),
        )
        for at, (node_id, node) in enumerate(sorted(old.nodes.items()))
    }
    row = _row_of(old.nodes)
    return ClusterImage(
        {topic_id: _lifted(topic, row) for topic_id, topic in old.topics.items()},
        {topic_id: _lifted(topic, row) for topic_id, topic in old.deleted.items()},
        nodes,
        first + len(nodes),
        old.cluster_configs,
        old.node_configs,
    )


def _row_of(nodes: dict[int, OldNode]) -> Row | None:
    """The row of every partition: led by the one node."""
    if not nodes:
        return None
    node = nodes[min(nodes)]
    # The partition epoch is not 0, because 0 means that the partition has no log anywhere.
    return Row((node.node_id,), node.node_id, node.epoch, 1, (node.node_id,), node.epoch)


def _lifted(topic: OldTopic, row: Row | None) -> Topic:
    if row is None or not 0 < topic.partitions <= _PARTITIONS_MAX:
        raise Corrupt(f"cluster metadata: topic {topic.name[:60]!r} of {topic.partitions} partitions: impossible")
    return Topic(topic.topic_id, topic.name, (row,) * topic.partitions, topic.configs, topic.internal)
