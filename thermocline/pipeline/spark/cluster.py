"""The running cluster as the driver sees it: topics, first and last offsets. Used only with `kafka.bootstrap.servers`.

An end offset is the last stable offset, so that planned rows read the same later. During an election of a partition's
leader the query waits; the partition does not count as empty.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from logformat.errors import InvalidRequest, Retryable
from logformat.values import TopicPartition
from thermocline.pipeline.spark.tail import ConsumerSettings

log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 30.0
_HALF: Final = (1 << 64) - 1
_ONE_ASK_S: Final = 5.0  # per request, so that a dead leader is not waited for
_AGAIN_S: Final = 0.2
_BETWEEN_LEADERS: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)
_CONSUMER_ONLY: Final = ("group.id",)  # librdkafka's admin client warns about these configs


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic of the cluster. `topic_id` None: the brokers are too old for ids."""

    topic: str
    topic_id: UUID | None
    partitions: int
    is_internal: bool


class Cluster:
    """An admin client of the cluster behind `connection`, with a deadline on every request."""

    def __init__(self, connection: ConsumerSettings) -> None:
        connection.consumer().close()  # refuses unknown kafka.* options now, not in a task
        settings: dict[str, Any] = {name: value for name, value in connection.settings if name not in _CONSUMER_ONLY}
        self._isolation = (
            IsolationLevel.READ_COMMITTED if connection.read_committed else IsolationLevel.READ_UNCOMMITTED
        )
        self._servers = dict(connection.settings)["bootstrap.servers"]
        self._admin = AdminClient(settings, logger=log)

    def topics(self) -> dict[str, ClusterTopic]:
        """All topics by name, also internal topics."""
        try:
            names = [
                name for name, topic in self._admin.list_topics(timeout=ASK_TIMEOUT_S).topics.items() if not topic.error
            ]
        except KafkaException as error:
            raise self._unreachable("its topics", error.args[0]) from None
        if not names:
            return {}
        answers = self._admin.describe_topics(TopicCollection(names), request_timeout=ASK_TIMEOUT_S)
        found = {}
        for name, answer in answers.items():
            try:
                described = answer.result(ASK_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # deleted between the two requests
                raise self._unreachable(f"topic {name}", error.args[0]) from None
            found[name] = ClusterTopic(
                name, _uuid(described.topic_id), len(described.partitions), described.is_internal
            )
        return found

    def topic_id(self, topic: str) -> UUID | None:
        """The topic's id; None if it does not exist. Raises InvalidRequest, Retryable."""
        answers = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ASK_TIMEOUT_S)
        try:
            return _uuid(answers[topic].result(ASK_TIMEOUT_S).topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._unreachable(f"topic {topic}", error.args[0]) from None

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition, in any tier."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()), "first offsets")  # type: ignore[no-untyped-call]

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset of each partition; with read_uncommitted the high watermark."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()), "last offsets")  # type: ignore[no-untyped-call]

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset with a record of that time or later; None if there is none."""
        asked = {tp: OffsetSpec.for_timestamp(time_ms) for tp, time_ms in times_ms.items()}
        return {tp: None if offset < 0 else offset for tp, offset in self._offsets(asked, "offsets of times").items()}

    def _offsets(self, asked: Mapping[TopicPartition, Any], what: str) -> dict[TopicPartition, int]:
        if not asked:
            return {}
        found: dict[TopicPartition, int] = {}
        until_s = time.monotonic() + ASK_TIMEOUT_S
        while len(found) < len(asked):
            left = {tp: spec for tp, spec in asked.items() if tp not in found}
            answered, unanswered = self._offsets_now(left, what)
            found |= answered
            if unanswered and time.monotonic() >= until_s:
                tp, why = next(iter(unanswered.items()))
                raise self._unreachable(f"{what} of {tp}", why)
            if unanswered:
                time.sleep(_AGAIN_S)
                self._refresh_metadata()
        return found

    def _refresh_metadata(self) -> None:
        """Fetch metadata: until then librdkafka asks the leaders that it knows, even dead leaders."""
        try:
            self._admin.list_topics(timeout=_ONE_ASK_S)
        except KafkaException as error:
            raise self._unreachable("who leads", error.args[0]) from None

    def _offsets_now(
        self, asked: Mapping[TopicPartition, Any], what: str
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
        """Offsets that leaders returned, and the errors of partitions between two leaders."""
        answers: dict[ClientTopicPartition, Future[Any]] = self._admin.list_offsets(
            {ClientTopicPartition(*tp): spec for tp, spec in asked.items()},
            isolation_level=self._isolation,
            request_timeout=_ONE_ASK_S,
        )
        found, unanswered = {}, {}
        for place, answer in answers.items():
            tp = TopicPartition(place.topic, place.partition)
            try:
                offset = int(answer.result(ASK_TIMEOUT_S).offset)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() not in _BETWEEN_LEADERS:
                    raise self._unreachable(f"{what} of {tp}", reason) from None
                unanswered[tp] = reason
            else:
                if offset == OFFSET_INVALID:  # librdkafka returns it, without error, for an unreachable leader
                    unanswered[tp] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                else:
                    found[tp] = offset
        return found, unanswered

    def _unreachable(self, what: str, reason: KafkaError) -> Exception:
        text = f"kafka.bootstrap.servers {self._servers}: no answer about {what}: {reason.name()}: {reason.str()}"
        if reason.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return InvalidRequest(f"{text}; this user may not read it")
        return Retryable(f"{text}; without kafka.bootstrap.servers the bucket alone is read")


def _uuid(found: Any) -> UUID | None:
    """librdkafka's topic id, two signed halves; None for all zeros (the broker sent none)."""
    if found is None:
        return None
    high, low = found.get_most_significant_bits() & _HALF, found.get_least_significant_bits() & _HALF
    return UUID(int=high << 64 | low) if high | low else None
