"""The small text files of a log directory: offset checkpoints, `partition.metadata`, `meta.properties`.

Always true: decode(encode(value)) is the value, and a decoder raises Corrupt (NewerFormat for a version it does not
know) for anything it does not understand completely. Must not know: where the files lie, when they are written.
Source: Kafka's OffsetCheckpointFile, PartitionMetadata, MetaProperties (version 1), java.util.Properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logformat.checkpoint_text import format_checkpoint, parse_checkpoint, parse_integer
from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX, INT64_MAX, Buffer
from logformat.values import NewerFormat, TopicPartition, is_topic_name, uuid_from_text, uuid_text

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
REPLICATION_FILE: Final = "replication-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
META_PROPERTIES_FILE: Final = "meta.properties"

PARTITION_METADATA_VERSION: Final = 0
META_PROPERTIES_VERSION: Final = 1


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """One of the three offset checkpoints; entries sorted, so that equal checkpoints are equal bytes."""
    return format_checkpoint(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))


def decode_offsets(data: Buffer, file: str) -> dict[TopicPartition, int]:
    """Offsets by topic-partition. `file` names the checkpoint in messages. An empty file holds none."""
    offsets: dict[TopicPartition, int] = {}
    for line in parse_checkpoint(data, file, columns=3):
        topic = line.columns[0]
        if not is_topic_name(topic):
            raise Corrupt(f"{file}: {topic[:40]!r} is no topic name")
        key = TopicPartition(topic, line.integer(1, INT32_MAX))
        if key in offsets:
            raise Corrupt(f"{file}: two entries for {key}")
        offsets[key] = line.integer(2, INT64_MAX)
    return offsets


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """`topic_id`: 16 bytes."""
    return f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {uuid_text(topic_id)}".encode("ascii")


def decode_partition_metadata(data: Buffer) -> bytes:
    """The topic id, 16 bytes. Kafka takes a higher version for compatible, and so do we."""
    match = re.fullmatch(rb"version: ([0-9]{1,9})\r?\ntopic_id: ([^\r\n]*)[\r\n]*", bytes(data))
    if match is None:
        raise Corrupt(f"{PARTITION_METADATA_FILE}: not two lines `version: 0` and `topic_id: <uuid>`")
    topic_id = uuid_from_text(match[2].decode("ascii", "replace"))
    if not any(topic_id):
        raise Corrupt(f"{PARTITION_METADATA_FILE}: the topic id is all zeros")
    return topic_id


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Who a data directory belongs to: texts as Kafka writes them (UUID text form), `node_id` ≥ 0."""

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
        """Raises Corrupt when a property is missing or malformed, NewerFormat for a later version."""
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


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
# A key ends at the first separator that no backslash precedes: `=`, `:`, or white space with one of them around it.
_PROPERTY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*((?:\\.|[^\\])*)", re.DOTALL)
_ESCAPE_SEQUENCE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


def format_properties(properties: Mapping[str, str]) -> bytes:
    """java.util.Properties without comment and date, in the mapping's order, so that equal values are equal bytes."""
    return "".join(
        f"{_escape(key, every_space=True)}={_escape(value, every_space=False)}\n" for key, value in properties.items()
    ).encode("ascii")


def parse_properties(data: Buffer) -> dict[str, str]:
    """java.util.Properties: comments, escapes, continued lines. A key given twice is Corrupt (Java takes the last)."""
    properties: dict[str, str] = {}
    for line in _logical_lines(bytes(data).decode("latin-1")):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise Corrupt(f"properties: cannot read {line[:80]!r}")
        key, value = _unescape(match[1]), _unescape(match[2])
        if key in properties:
            raise Corrupt(f"properties: {key[:80]!r} is given twice")
        properties[key] = value
    return properties


def _logical_lines(text: str) -> list[str]:
    """Lines without comments, leading white space and blank ones; an odd number of backslashes continues a line."""
    lines: list[str] = []
    parts: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        lines.append("".join((*parts, line)))
        parts = []
    if parts:
        lines.append("".join(parts))
    return lines


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise Corrupt(f"properties: malformed \\u escape in {text[:80]!r}")
        return _ESCAPES.get(match[2], match[2])

    # \uXXXX is UTF-16: two surrogates that stand together are one character.
    joined = _ESCAPE_SEQUENCE.sub(plain, text)
    try:
        return joined.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Corrupt(f"properties: half a surrogate pair in {text[:80]!r}") from None


def _escape(text: str, *, every_space: bool) -> str:
    out: list[str] = []
    for place, char in enumerate(text):
        if char in _ESCAPED:
            out.append(_ESCAPED[char])
        elif char in "=:#!" or (char == " " and (every_space or place == 0)):
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be")
            out.extend(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    return "".join(out)
