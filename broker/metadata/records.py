"""The typed facts a cluster is made of.

Owns the record kinds stored in `cluster.json` and its snapshot pages. Always true: the image is what applying the
records in order gives (image.py); a kind, once released, keeps its meaning; fields are only added, with defaults.
Must not know where the records are kept.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX
from logformat.values import is_topic_name


class NodeStarted(msgspec.Struct, frozen=True, tag="node", tag_field="t"):
    """A broker process began to serve: every partition it leads enters a new leader epoch."""

    node_id: int
    directory_id: str
    incarnation: str
    host: str
    port: int


class TopicCreated(msgspec.Struct, frozen=True, tag="topic", tag_field="t"):
    """A topic exists from now on. `topic_id` is a UUID in its canonical text form; `configs` are explicit overrides."""

    topic_id: str
    name: str
    partitions: int
    configs: dict[str, str]
    internal: bool = False


class PartitionsAdded(msgspec.Struct, frozen=True, tag="partitions", tag_field="t"):
    """The topic has `partitions` partitions in all."""

    topic_id: str
    partitions: int


class TopicConfigsSet(msgspec.Struct, frozen=True, tag="configs", tag_field="t"):
    """The topic's explicit overrides are exactly these."""

    topic_id: str
    configs: dict[str, str]


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted", tag_field="t"):
    """The name is free again; local files and objects of the id are still to be removed."""

    topic_id: str


class TopicPurged(msgspec.Struct, frozen=True, tag="purged", tag_field="t"):
    """Nothing of a deleted topic is left, on disk or in the bucket."""

    topic_id: str


class ProducerIdsReserved(msgspec.Struct, frozen=True, tag="pids", tag_field="t"):
    """Producer ids below `end` may have been given out."""

    end: int


class BrokerConfigsSet(msgspec.Struct, frozen=True, tag="brokers", tag_field="t"):
    """What was set on brokers while they run is exactly this: of the node, or (None) of every broker."""

    configs: dict[str, str]
    node_id: int | None = None


MetadataRecord = (
    NodeStarted
    | TopicCreated
    | PartitionsAdded
    | TopicConfigsSet
    | TopicDeleted
    | TopicPurged
    | ProducerIdsReserved
    | BrokerConfigsSet
)


def check_topic(topic_id: str, name: str, partitions: int) -> None:
    """Raises Corrupt unless a controller can have made this topic: its name becomes a local path, its id a key."""
    try:
        is_id = str(UUID(topic_id)) == topic_id
    except ValueError:
        is_id = False
    if not is_id or not is_topic_name(name) or not 0 < partitions <= INT32_MAX:
        raise Corrupt(
            f"cluster metadata: topic {name[:60]!r} of id {topic_id[:40]!r}, {partitions} partitions: impossible"
        )
