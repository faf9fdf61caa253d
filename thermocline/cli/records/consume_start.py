"""Start of `thermocline consume`: parses `-o`, and resolves it to an offset in each partition.

A topic, partition or offset that does not exist is reported, never replaced silently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from thermocline.cli.terminal.outcome import CommandFailed, no_partition
from thermocline.cli.terminal.output import note
from thermocline.cli.terminal.times import TIME_HELP, Instant, noted_ms, parse_time

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class At:
    offset: int


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    count: int


class StartEdge(Enum):
    """The beginning or end at the time of the first fetch."""

    BEGINNING = "beginning"
    END = "end"


Start = StartEdge | At | BeforeEnd | Instant


def parse_start(text: str) -> Start:
    """`beginning`, `end`, N, -N, or @TIME. Raises ValueError or InvalidRequest otherwise."""
    if text in ("beginning", "end"):
        return StartEdge(text)
    if text.startswith("@"):
        return parse_time(text)
    if not _NUMBER.fullmatch(text) or abs(int(text)) > _OFFSET_MAX:
        raise ValueError(f"{text!r} is not an offset; write beginning, end, N, -N, or a time: {TIME_HELP}")
    return BeforeEnd(-int(text)) if text.startswith("-") else At(int(text))


def starts(consumer: Consumer, topic: str, partition: int | None, start: Start) -> list[TopicPartition]:
    """Each partition (or the given one) with its start offset. Raises CommandFailed when the topic or partition does
    not exist."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing(f"reading topic {topic}"):
        found = consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(topic)
    if found is None:
        from thermocline.cli.clients.connection_properties import no_topic

        raise no_topic(topic)
    if partition is not None and partition not in found.partitions:
        raise no_partition(topic, partition, len(found.partitions))
    indexes = sorted(found.partitions) if partition is None else [partition]
    if isinstance(start, Instant):
        return _at_time(consumer, topic, indexes, noted_ms(start))
    asked = [TopicPartition(topic, index) for index in indexes]
    for one in asked:
        if isinstance(start, StartEdge):
            one.offset = OFFSET_BEGINNING if start is StartEdge.BEGINNING else OFFSET_END
        else:
            one.offset = _near(consumer, one, start)
    return asked


def _at_time(consumer: Consumer, topic: str, indexes: Sequence[int], ms: int) -> list[TopicPartition]:
    from confluent_kafka import KafkaException, TopicPartition

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing(f"asking for the time in {topic}"):
        asked = [TopicPartition(topic, index, ms) for index in indexes]
        found = list(consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S))
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
    return found


def _near(consumer: Consumer, partition: TopicPartition, start: At | BeforeEnd) -> int:
    """The offset, or the nearest existing offset with a note. The client's own reset would be silent."""
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    where = f"{partition.topic}-{partition.partition}"
    with failing(f"asking for the end of {where}"):
        found = consumer.get_watermark_offsets(partition, timeout=REQUEST_TIMEOUT_S)
    if found is None:
        raise CommandFailed(f"the end of {where} is not known: no answer in time")
    first, end = found
    if isinstance(start, BeforeEnd):
        return max(first, end - start.count)
    offset = min(max(start.offset, first), end)
    if offset != start.offset:
        note(f"thermocline: {where} holds offsets {first} to {end}, not {start.offset}: reading from {offset}")
    return offset
