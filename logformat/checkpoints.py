"""Small text files of a data directory: offset checkpoints, `partition.metadata`, `meta.properties`.

A decoder raises Corrupt for text that it does not understand completely, NewerFormat for an unknown version. Source:
Kafka's OffsetCheckpointFile, PartitionMetadata, MetaProperties (version 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from logformat.checkpoint_text import format_checkpoint, parse_checkpoint, parse_integer
from logformat.errors import Corrupt
from logformat.properties import MalformedEscape, format_properties, properties_in
from logformat.record_batch import INT32_MAX, INT64_MAX, Buffer
from logformat.values import NewerFormat, TopicPartition, is_topic_name, uuid_from_text, uuid_text

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
REPLICATION_FILE: Final = "replication-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_FILE: Final = "cleaner-offset-checkpoint"
"""First dirty offset of each compacted log."""
SEEN_EPOCH_FILE: Final = "leader-epoch-seen-checkpoint"
"""An offset checkpoint with leader epochs instead of offsets. Kafka has no such file."""
PARTITION_METADATA_FILE: Final = "partition.metadata"
META_PROPERTIES_FILE: Final = "meta.properties"

PARTITION_METADATA_VERSION: Final = 0
META_PROPERTIES_VERSION: Final = 1


CHECKSUM_ENTRY: Final = TopicPartition("__thermocline.crc32c", 0)
"""Name of the last entry, whose "offset" is the CRC32C of all others. Kafka's format has no checksum, and one flipped
digit of a log start would delete records. Kafka looks entries up by name and ignores this one. At any other position it
is the entry of a log: a client may use this name for a topic, and a program without checksums writes it in sorted
order.
"""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint: sorted entries, then the checksum. Equal checkpoints give equal bytes. Without entries
    there is no checksum, as in Kafka."""
    entries = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    if entries:
        entries.append(f"{CHECKSUM_ENTRY.topic} {CHECKSUM_ENTRY.partition} {_checksum(offsets)}")
    return format_checkpoint(entries)


def _checksum(offsets: Mapping[TopicPartition, int]) -> int:
    text = "".join(f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items()))
    return crc32c(text.encode("ascii"))


def decode_offsets(data: Buffer, file: str) -> dict[TopicPartition, int]:
    """Offsets by topic-partition. `file` names the checkpoint in messages. An empty file has no entries. A file that
    Kafka wrote has no checksum and is accepted.
    """
    offsets: dict[TopicPartition, int] = {}
    lines = parse_checkpoint(data, file, columns=3)
    name, index = CHECKSUM_ENTRY
    written = None
    if lines and lines[-1].columns[:2] == (name, str(index)):
        written = lines.pop().integer(2, INT64_MAX)
    for line in lines:
        topic = line.columns[0]
        if not is_topic_name(topic):
            raise Corrupt(f"{file}: {topic[:40]!r} is not a topic name")
        key = TopicPartition(topic, line.integer(1, INT32_MAX))
        if key in offsets:
            raise Corrupt(f"{file}: two entries for {key}")
        offsets[key] = line.integer(2, INT64_MAX)
    if written is not None and written != _checksum(offsets):
        raise Corrupt(
            f"{file}: its entries do not match their checksum; restore the file, or correct the entry by hand"
        )
    return offsets


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """`topic_id`: 16 bytes."""
    return f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {uuid_text(topic_id)}".encode("ascii")


def decode_partition_metadata(data: Buffer) -> bytes:
    """The topic id, 16 bytes. A higher version counts as compatible, as in Kafka."""
    match = re.fullmatch(rb"version: ([0-9]{1,9})\r?\ntopic_id: ([^\r\n]*)[\r\n]*", bytes(data))
    if match is None:
        raise Corrupt(f"{PARTITION_METADATA_FILE}: it must hold the two lines `version: 0` and `topic_id: <uuid>`")
    topic_id = uuid_from_text(match[2].decode("ascii", "replace"))
    if not any(topic_id):
        raise Corrupt(f"{PARTITION_METADATA_FILE}: the topic id is all zeros")
    return topic_id


class MetaProperties(msgspec.Struct, frozen=True):
    """The owner of a data directory. UUIDs are in Kafka's text form; `node_id` ≥ 0."""

    cluster_id: str
    node_id: int
    directory_id: str

    def to_bytes(self) -> bytes:
        return format_properties(
            {
                "version": str(META_PROPERTIES_VERSION),
                "cluster.id": self.cluster_id,
                "node.id": str(self.node_id),
                "directory.id": self.directory_id,
            }
        )

    @classmethod
    def from_bytes(cls, data: Buffer) -> MetaProperties:
        """Raises Corrupt if a property is missing or malformed, NewerFormat for a later version."""
        properties = parse_properties(data)
        try:
            version = parse_integer(META_PROPERTIES_FILE, properties["version"], INT32_MAX)
            if version > META_PROPERTIES_VERSION:
                raise NewerFormat(f"{META_PROPERTIES_FILE}: version {version}, known is {META_PROPERTIES_VERSION}")
            return cls(
                cluster_id=properties["cluster.id"],
                node_id=parse_integer(META_PROPERTIES_FILE, properties["node.id"], INT32_MAX),
                directory_id=properties["directory.id"],
            )
        except KeyError as error:
            raise Corrupt(f"{META_PROPERTIES_FILE}: property {error} is missing") from None


def parse_properties(data: Buffer) -> dict[str, str]:
    """A properties file of a data directory. A duplicate key is Corrupt (Java takes the last)."""
    properties: dict[str, str] = {}
    try:
        for key, value in properties_in(bytes(data).decode("latin-1")):
            if key in properties:
                raise Corrupt(f"properties: {key[:80]!r} is given twice")
            properties[key] = value
    except MalformedEscape as refused:
        raise Corrupt(f"properties: {refused}") from None
    return properties
