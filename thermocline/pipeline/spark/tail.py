"""Hot tail of a partition: reads exact offsets from the running cluster, as the same rows that the bucket would give.

Rows come in offset order from `[start, end)`, and every offset is accounted for: the read ends when the cluster returns
an offset at or beyond `end`, or reports the end of the partition. Segments may move to the bucket meanwhile, because
the broker serves both tiers. Uses librdkafka (confluent-kafka) with `assign`, without a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from logformat.errors import InvalidRequest, Retryable
from logformat.jaas import parse_jaas
from logformat.record_batch import INT64_MAX, NO_TIMESTAMP
from thermocline.pipeline.rows import schema_of
from thermocline.pipeline.split import DataLoss, Loss, RowFilter

log = logging.getLogger(__name__)

MESSAGES_PER_POLL: Final = 10_000
POLL_S: Final = 0.2
WATERMARKS_TIMEOUT_S: Final = 30.0  # used only after a reset
_ANSWERS: Final = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
# A retry does not help with these; librdkafka recovers from every other error by itself.
_REFUSALS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._AUTHENTICATION,
        KafkaError._BAD_MSG,  # a wrong CRC
        KafkaError._BAD_COMPRESSION,
        KafkaError._FATAL,
    }
)
# Maps names of Kafka's Java client, which users of Spark's source set, to librdkafka's names; None: not needed.
_JAVA_NAMES: Final[Mapping[str, str | None]] = {
    "max.poll.records": None,
    "request.timeout.ms": "socket.timeout.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "default.api.timeout.ms": None,
    # of a secured cluster, with PEM files
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.type": None,
    "ssl.truststore.password": None,
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_JAAS: Final = "sasl.jaas.config"
_MILLIS_MAX: Final = INT64_MAX // 1000


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """librdkafka's configuration, and how long to wait for data."""

    settings: tuple[tuple[str, str], ...] = field(repr=False)  # may contain passwords
    poll_timeout_ms: int
    read_committed: bool = True

    @staticmethod
    def of(
        bootstrap_servers: str,
        consumer: Mapping[str, str],
        group_id_prefix: str,
        poll_timeout_ms: int,
        *,
        read_committed: bool = True,
    ) -> ConsumerSettings:
        """`consumer`: the kafka.* options without their prefix, by their Java or librdkafka names."""
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": group_id_prefix}
        for name, value in consumer.items():
            ours = _JAVA_NAMES.get(name, name)
            if name == _JAAS:
                options = parse_jaas(value, f"option kafka.{_JAAS}").options
                settings |= {f"sasl.{each}": options[each] for each in ("username", "password") if each in options}
            elif ours is not None:
                settings[ours] = value
        return ConsumerSettings(tuple(sorted(settings.items())), poll_timeout_ms, read_committed)

    def consumer(self) -> Consumer:
        """A consumer with assigned partitions, without a group or commits."""
        fixed = {
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",  # an offset below the log's start is loss, not a reset
            "isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
            "allow.auto.create.topics": "false",
        }
        defaults = {"fetch.queue.backoff.ms": "5", "check.crcs": "true", "queued.max.messages.kbytes": "32768"}
        try:
            return Consumer({**defaults, **dict(self.settings), **fixed}, logger=log)
        except KafkaException as error:
            raise InvalidRequest(f"option kafka.*: the consumer (librdkafka) refuses it: {_text(error)}") from None


@dataclass(frozen=True, slots=True)
class TailPart:
    """One task's share of a partition's tail: the offsets of `rows`, read from the cluster. `topic_id` is None if the
    brokers have no ids."""

    topic: str
    partition: int
    rows: RowFilter
    topic_id: UUID | None = None

    @property
    def offsets(self) -> int:
        return self.rows.end_offset - self.rows.start_offset

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.rows.start_offset}–{self.rows.end_offset - 1}"


def read_tail(
    connection: ConsumerSettings, part: TailPart, columns: Sequence[str], *, fail_on_data_loss: bool, loss: Loss
) -> Iterator[pa.RecordBatch]:
    """Rows of the part, at most 10 000 per batch. Raises DataLoss when the cluster no longer has them, Retryable on
    timeout.
    """
    if part.rows.start_offset >= part.rows.end_offset:
        return
    consumer = connection.consumer()
    try:
        consumer.assign([TopicPartition(part.topic, part.partition, part.rows.start_offset)])
        yield from _read(consumer, connection.poll_timeout_ms / 1000, part, columns, fail_on_data_loss, loss)
    finally:
        consumer.close()


def _read(
    consumer: Consumer, timeout_s: float, part: TailPart, columns: Sequence[str], strict: bool, loss: Loss
) -> Iterator[pa.RecordBatch]:
    end, at = part.rows.end_offset, part.rows.start_offset
    moved, trouble = time.monotonic(), "nothing came"
    while at < end:
        before = at
        rows: list[Message] = []
        # consume() blocks until it has that many messages, so never ask for more than the part has left
        for message in consumer.consume(min(MESSAGES_PER_POLL, end - at), POLL_S):
            error = message.error()
            if error is not None:
                if error.code() not in _ANSWERS:  # the client retries by itself
                    trouble = f"{error.name()}: {error.str()}"
                at = _after_error(consumer, error, message, part, at, strict, loss)
                continue
            offset = _offset(message)
            if offset < at:
                continue
            if offset > at:  # control batches, a declared gap, or compacted records
                loss.gaps.append((part.topic, part.partition, at, min(offset, end)))
            at = offset + 1
            if offset < end:
                rows.append(message)
        if rows:
            yield rows_of(rows, part.rows, columns)
        if at > before:
            moved = time.monotonic()
        elif time.monotonic() - moved > timeout_s:
            raise Retryable(
                f"{part}: no progress from offset {at} for {timeout_s:g} s ({trouble}); is the cluster of "
                "kafka.bootstrap.servers reachable from this executor? (kafkaConsumer.pollTimeoutMs sets the wait)"
            )


def _after_error(
    consumer: Consumer, error: KafkaError, message: Message, part: TailPart, at: int, strict: bool, loss: Loss
) -> int:
    """The next offset to expect. Raises when a retry cannot help."""
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        reached = _offset(message)
        if reached > at:  # there is no visible record between
            loss.gaps.append((part.topic, part.partition, at, min(reached, part.rows.end_offset)))
        return max(at, reached)
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return _after_reset(consumer, part, at, strict, loss)
    if code in _REFUSALS:
        raise Retryable(f"{part}: the cluster refuses the read at offset {at}: {error.name()}: {error.str()}")
    return at


def _after_reset(consumer: Consumer, part: TailPart, at: int, strict: bool, loss: Loss) -> int:
    """The next offset to expect when the cluster lacks offset `at`; the part's end if nothing of it is left."""
    line = f"{part}: the cluster has no offset {at} any more (retention, or the topic was created again)"
    if strict:
        raise DataLoss(f"{line}; failOnDataLoss=false continues at the first offset there is")
    try:
        marks = consumer.get_watermark_offsets(TopicPartition(part.topic, part.partition), WATERMARKS_TIMEOUT_S)
    except KafkaException as error:
        raise Retryable(f"{line}, and does not answer which offsets it has: {_text(error)}") from None
    if marks is None:
        raise Retryable(f"{line}, and does not answer within {WATERMARKS_TIMEOUT_S:g} s which offsets it has")
    first, after = marks
    if after <= at or first >= part.rows.end_offset:
        loss.damage.append(f"{line}; it holds offsets [{first}, {after}), and none of this part")
        return part.rows.end_offset
    loss.damage.append(f"{line}; reading continues at {max(first, at)}")
    consumer.assign([TopicPartition(part.topic, part.partition, max(first, at))])
    return at


def rows_of(messages: Sequence[Message], rows: RowFilter, columns: Sequence[str]) -> pa.RecordBatch:
    """Messages inside the filter's times, as rows."""
    if rows.min_timestamp_ms is not None or rows.max_timestamp_ms is not None:
        messages = [message for message in messages if _in_time(message, rows)]
    schema = schema_of(columns)
    arrays = [pa.array([_VALUE_OF[name](m) for m in messages], type=schema.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_time(message: Message, rows: RowFilter) -> bool:
    timestamp_ms = _timestamp_ms(message)
    if timestamp_ms is None:
        return False
    return (rows.min_timestamp_ms is None or timestamp_ms >= rows.min_timestamp_ms) and (
        rows.max_timestamp_ms is None or timestamp_ms < rows.max_timestamp_ms
    )


def _timestamp_ms(message: Message) -> int | None:
    """None for a record without timestamp. librdkafka gives −1 of type CreateTime for it."""
    kind, timestamp_ms = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE or timestamp_ms == NO_TIMESTAMP else timestamp_ms


def _timestamp_us(message: Message) -> int | None:
    """Null where the rows of the bucket have null: without timestamp, and beyond the microseconds of an int64."""
    timestamp_ms = _timestamp_ms(message)
    return None if timestamp_ms is None or abs(timestamp_ms) > _MILLIS_MAX else timestamp_ms * 1000


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "the consumer gave a message without an offset"
    return offset


def _headers(message: Message) -> list[dict[str, Any]] | None:
    found: Any = message.headers()
    return [{"key": key, "value": value} for key, value in found] if found else None


_VALUE_OF: Final[Mapping[str, Any]] = {
    "key": lambda message: message.key(),
    "value": lambda message: message.value(),
    "topic": lambda message: message.topic(),
    "partition": lambda message: message.partition(),
    "offset": lambda message: message.offset(),
    "timestamp": _timestamp_us,
    "timestampType": lambda message: int(message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME),
    "headers": _headers,
}


def _text(error: KafkaException) -> str:
    return str(error.args[0].str()) if error.args else str(error)
