"""Committed offsets and log ends through the stock admin client.

A partition without an answer (its topic is gone, it has no leader) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from thermocline.cli.clients.connection_properties import no_topic
from thermocline.cli.terminal.outcome import CommandFailed

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]
"""(topic, partition)."""


def described(admin: AdminClient, group: str) -> Any | None:
    """The client's description of a group; None when there is no such group."""
    from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing, plainly

    with failing(f"describing group {group}"):
        future = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group]
    try:
        found = future.result()
    except KafkaException as failed:
        if failed.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise CommandFailed(plainly(f"describing group {group}", failed.args[0])) from failed
    return None if found.state is ConsumerGroupState.DEAD else found


def committed(admin: AdminClient, group: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing(f"reading what group {group} committed"):
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = admin.list_consumer_group_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)[group].result()
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}


def offsets(admin: AdminClient, places: Iterable[Place], spec: Any) -> dict[Place, int]:
    """The offset of `spec` (an OffsetSpec) in each partition; −1 if no record is of that time or later."""
    from confluent_kafka import OFFSET_INVALID, KafkaException, TopicPartition

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    asked = {TopicPartition(topic, partition): spec for topic, partition in places}
    if not asked:
        return {}
    with failing("asking for offsets"):
        futures = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    found = {}
    for place, future in futures.items():
        try:
            offset = future.result().offset
        except KafkaException:
            continue  # left out; the caller reports it if needed
        if offset != OFFSET_INVALID:  # librdkafka returns it, without error, for an unreachable leader
            found[place.topic, place.partition] = offset
    return found


def first_offsets(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """The first offset of each log, in either tier."""
    from thermocline.cli.clients.stock import OffsetSpec

    return offsets(admin, places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def end_offsets(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """The high watermark of each log."""
    from thermocline.cli.clients.stock import OffsetSpec

    return offsets(admin, places, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def partitions_of(admin: AdminClient, topics: Sequence[str]) -> dict[str, list[int]]:
    """The partitions of each topic. Raises CommandFailed for an unknown topic."""
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing("listing topics"):
        known = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
    missing = [topic for topic in topics if topic not in known]
    if missing:
        raise no_topic(missing[0])
    return {topic: sorted(known[topic].partitions) for topic in topics}
