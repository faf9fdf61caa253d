"""Offsets in the JSON of Spark's Kafka source: `{"topic":{"0":23,"1":-1}}`, in options and in checkpoints. Pure.

`Progress` is the content of a stream's checkpoint. A checkpoint of Spark's own Kafka source (without topic ids) parses
too. Source: Spark's "Structured Streaming + Kafka Integration Guide": assign, startingOffsets,
startingOffsetsByTimestamp.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from logformat.errors import InvalidRequest
from logformat.values import TopicPartition, is_topic_name

LATEST: Final = -1
EARLIEST: Final = -2
IDS_KEY: Final = "@topic_ids"  # not a valid topic name

PartitionOffsets = Mapping[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int | str]]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a stream: the next offset to read of every partition, and the id of each topic."""

    offsets: PartitionOffsets
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    def to_json(self) -> OffsetsJson:
        """The value for Spark's checkpoint; equal progress gives equal text (names and partitions sorted)."""
        value = offsets_to_json(self.offsets)
        if self.topic_ids:
            value[IDS_KEY] = {topic: str(self.topic_ids[topic]) for topic in sorted(self.topic_ids)}
        return value

    @staticmethod
    def from_json(value: object) -> Progress:
        """Raises InvalidRequest for the checkpoint of another source."""
        if not isinstance(value, dict):
            raise InvalidRequest(
                f"checkpoint: {_short(value)} is not a set of offsets of this source; use a new checkpointLocation"
            )
        ids = value.get(IDS_KEY, {})
        try:
            topic_ids = {str(topic): UUID(str(text)) for topic, text in dict(ids).items()}
            offsets = offsets_of(
                {topic: of for topic, of in value.items() if topic != IDS_KEY}, "checkpoint", minimum=0
            )
        except (ValueError, TypeError):
            raise InvalidRequest(f"checkpoint: {_short(value)} has no readable topic ids") from None
        return Progress(offsets, topic_ids)


def offsets_to_json(offsets: PartitionOffsets) -> OffsetsJson:
    """`{topic: {partition: offset}}`, sorted by topic and partition number."""
    value: OffsetsJson = {}
    for topic, partition in sorted(offsets):
        value.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return value


def parse_offsets(text: str, option: str, minimum: int = EARLIEST) -> dict[TopicPartition, int]:
    """The JSON of an option. Raises InvalidRequest, which names the option, also for values below `minimum`."""
    return offsets_of(_parse(text, option, '{"topicA":{"0":23,"1":-1}}'), option, minimum)


def parse_partitions(text: str, option: str) -> frozenset[TopicPartition]:
    """The JSON of `assign`: `{"topicA":[0,1],"topicB":[2,4]}`."""
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    found = set()
    for topic, partitions in _parse(text, option, example).items():
        _check_topic(topic, option)
        if not isinstance(partitions, list) or not partitions:
            raise InvalidRequest(f"option {option}: {topic} needs a list of partitions, as in {example}")
        found |= {TopicPartition(topic, _whole(partition, option, topic, 0)) for partition in partitions}
    if not found:
        raise InvalidRequest(f"option {option} names no partition; write it as {example}")
    return frozenset(found)


def check_covers(given: Iterable[TopicPartition], read: Iterable[TopicPartition], option: str) -> None:
    """Offsets by partition must name exactly the partitions that are read, as in Spark's source."""
    missing, extra = sorted(set(read) - set(given)), sorted(set(given) - set(read))
    if missing:
        raise InvalidRequest(
            f"option {option} leaves out {_names(missing)}: name every partition that is read; "
            "-2 is the earliest offset and -1 the latest"
        )
    if extra:
        raise InvalidRequest(f"option {option} names {_names(extra)}, which is not read")


def offsets_of(value: Mapping[str, object], option: str, minimum: int) -> dict[TopicPartition, int]:
    """As `parse_offsets`, from parsed JSON."""
    found = {}
    for topic, partitions in value.items():
        _check_topic(topic, option)
        if not isinstance(partitions, dict):
            raise InvalidRequest(f'option {option}: {topic} needs an object of partitions, as in {{"0":23,"1":-1}}')
        for partition, offset in partitions.items():
            if not (isinstance(partition, str) and partition.isascii() and partition.isdecimal()):
                raise InvalidRequest(f"option {option}: {_short(partition)} is not a partition of {topic}")
            found[TopicPartition(topic, int(partition))] = _whole(offset, option, topic, minimum)
    return found


def _parse(text: str, option: str, example: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"option {option}: {_short(text)} is not a JSON object; write it as {example}")
    return value


def _check_topic(topic: str, option: str) -> None:
    if not is_topic_name(topic):
        raise InvalidRequest(f"option {option}: {_short(topic)} is not a topic name")


def _whole(value: object, option: str, topic: str, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 1 << 63:
        raise InvalidRequest(
            f"option {option}: {_short(value)} of topic {topic} is not a whole number from {minimum} up"
        )
    return value


def _names(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(str(p) for p in partitions[:5])
    return shown + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")


def _short(value: object) -> str:
    return repr(value)[:80]
