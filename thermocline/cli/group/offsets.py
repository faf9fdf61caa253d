"""What a group committed, and what its topics hold, as the stock admin client tells it.

Owns the questions and how their failures are called. Always true: what cannot be answered for one partition (its topic
is gone, it has no leader) is left out, not an error of all. Must not know what a command makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from thermocline.cli.clients.absent import no_topic
from thermocline.cli.terminal.outcome import CommandFailed

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]
"""Topic and partition."""


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
    """Every position the group committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing(f"reading what group {group} committed"):
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = admin.list_consumer_group_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)[group].result()
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}


def offsets(admin: AdminClient, places: Iterable[Place], spec: Any) -> dict[Place, int]:
    """What `spec` (an OffsetSpec) stands for in each partition; −1 where no record is of that time or later."""
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
            continue  # this partition's business; whoever needs it says so
        if offset != OFFSET_INVALID:  # librdkafka's word for a leader that it did not reach: no answer, no error
            found[place.topic, place.partition] = offset
    return found


def first_offsets(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """Where each log begins, in either tier."""
    from thermocline.cli.clients.stock import OffsetSpec

    return offsets(admin, places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def end_offsets(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """The end of each log that consumers see."""
    from thermocline.cli.clients.stock import OffsetSpec

    return offsets(admin, places, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def partitions_of(admin: AdminClient, topics: Sequence[str]) -> dict[str, list[int]]:
    """The partitions of each topic. CommandFailed names one that does not exist."""
    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing

    with failing("listing topics"):
        known = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
    missing = [topic for topic in topics if topic not in known]
    if missing:
        raise no_topic(missing[0])
    return {topic: sorted(known[topic].partitions) for topic in topics}
