"""The effective configuration of a topic: explicit values override the broker's values, which override defaults.

Only explicit values can contradict each other (`changes` checks them when they are set). Explicit values override a
contradicting default, so that accepted configs remain valid after changes of the broker's configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, NamedTuple

import msgspec

from broker.config.broker_config import BrokerConfig, configs_of
from broker.config.definitions import TOPIC, TOPIC_SYNONYMS, topic_definition
from broker.config.values import Value
from hotstore.log.log_config import LogConfig
from logformat.compression import Compression
from logformat.errors import InvalidRequest
from logformat.recompression import CODECS
from logformat.record_batch import INT32_MAX
from logformat.values import TOPIC_NAME_CHARS_MAX

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_SHOWN_CHARS_MAX = TOPIC_NAME_CHARS_MAX + 2  # with quotes; DescribeProducers repeats the message for each partition

_SEGMENT_BYTES_MIN = 61  # one batch header; Kafka's internal.segment.bytes has no limit
_INDEX_BYTES_MIN = 24  # Kafka allows 4, which is less than one entry of either index


class InvalidTopicName(InvalidRequest):
    """A name that no topic may have; Kafka's INVALID_TOPIC_EXCEPTION."""


def check_topic_name(name: str) -> None:
    """Kafka's rule: 1–249 of `[a-zA-Z0-9._-]`, not `.` or `..`. Raises InvalidTopicName."""
    if not name:
        raise InvalidTopicName("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopicName(f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicName(
            f"Topic name is invalid: the length of '{name[:32]}…' is longer than the max allowed length 249"
        )
    if not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicName(
            f"Topic name is invalid: {name!r:.{_SHOWN_CHARS_MAX}} contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )


class MessageTimestampType(Enum):
    """The source of a record's timestamp."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class Origin(Enum):
    """The source of a topic's value, strongest first."""

    TOPIC = "topic"
    BROKER = "broker"
    DEFAULT = "default"


class ResolvedConfig(NamedTuple):
    """A value's canonical text (None = null), and its origin."""

    text: str | None
    origin: Origin


class TopicConfig(msgspec.Struct, frozen=True):
    """A topic's effective configuration. Times in ms, sizes in bytes; -1 = no limit for retention.

    `local_retention_*` are resolved: they are never -2, and a default never exceeds total retention.
    """

    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    segment_bytes: int
    segment_ms: Annotated[int, "segment.ms"]
    segment_index_bytes: Annotated[int, "segment.index.bytes"]
    index_interval_bytes: Annotated[int, "index.interval.bytes"]
    max_message_bytes: Annotated[int, "max.message.bytes"]
    message_timestamp_type: MessageTimestampType
    message_timestamp_before_max_ms: Annotated[int, "message.timestamp.before.max.ms"]
    message_timestamp_after_max_ms: Annotated[int, "message.timestamp.after.max.ms"]
    min_insync_replicas: Annotated[int, "min.insync.replicas"]
    cleanup_policy: tuple[str, ...]
    compacts: bool  # the cleaner keeps the newest record of each key; snapshots rewrite internal topics instead
    min_cleanable_dirty_ratio: Annotated[float, "min.cleanable.dirty.ratio"]
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: Annotated[int, "delete.retention.ms"]
    compression: Compression | None  # codec of stored batches; None: as the producer compressed them
    flush_sync: bool
    flush_messages: Annotated[int, "flush.messages"]
    flush_ms: Annotated[int, "flush.ms"]
    remote_storage_enable: bool
    remote_log_copy_disable: Annotated[bool, "remote.log.copy.disable"]
    remote_log_delete_on_disable: Annotated[bool, "remote.log.delete.on.disable"]
    producer_id_expiration_ms: int
    internal: bool

    @property
    def log_append_time(self) -> bool:
        """The broker's clock stamps batches."""
        return self.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME

    @property
    def deletes(self) -> bool:
        """Records may be deleted, by retention or DeleteRecords."""
        return "delete" in self.cleanup_policy


def log_config_of(config: TopicConfig) -> LogConfig:
    """The configuration of a partition's local log. A size that is too small for an index or a batch header is replaced
    by the smallest possible one."""
    return LogConfig(
        segment_bytes=min(max(config.segment_bytes, _SEGMENT_BYTES_MIN), INT32_MAX),
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        segment_index_bytes=max(config.segment_index_bytes, _INDEX_BYTES_MIN),
        flush_sync=config.flush_sync,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        local_retention_ms=config.local_retention_ms,
        local_retention_bytes=config.local_retention_bytes,
        tiered=config.remote_storage_enable,
        log_append_time=config.log_append_time,
        uses_ballast=config.internal,
        compacts=config.compacts,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
    )


def find_value(
    broker: BrokerConfig, overrides: Mapping[str, str], name: str, *, internal: bool = False
) -> ResolvedConfig:
    """The text of a topic config, before the rules that combine several configs."""
    if name in overrides:
        return ResolvedConfig(overrides[name], Origin.TOPIC)
    for synonym in TOPIC_SYNONYMS.get(name, ()):
        text = broker.configured.get(synonym.name)
        if text is not None:
            return ResolvedConfig(_scaled(text, synonym.scale, name), Origin.BROKER)
    return ResolvedConfig(_default(broker, name, internal=internal), Origin.DEFAULT)


def _scaled(text: str, scale: int, name: str) -> str:
    if name == "retention.ms" and int(text) < 0:
        return "-1"  # as in Kafka, a negative retention in any unit means for ever
    return text if scale == 1 else str(int(text) * scale)


def _default(broker: BrokerConfig, name: str, *, internal: bool) -> str | None:
    if internal and name in _INTERNAL:
        return str(broker.offsets_topic_segment_bytes) if name == "segment.bytes" else _INTERNAL[name]
    if name == "remote.storage.enable":
        return "true" if broker.tiering_enabled else "false"
    return TOPIC[name].default


# Group offsets do not expire by retention, and snapshots replace tiering (design 5).
_INTERNAL = {
    "cleanup.policy": "compact",
    "segment.bytes": "",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "remote.storage.enable": "false",
}


class _Reader:
    """Typed values of one topic. Internal topics ignore the broker's retention, so that offsets are not lost."""

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str], *, internal: bool) -> None:
        self._broker = broker
        self._overrides = overrides
        self._internal = internal

    def found(self, name: str) -> ResolvedConfig:
        if self._internal and name in _INTERNAL and name not in self._overrides:
            return ResolvedConfig(_default(self._broker, name, internal=True), Origin.DEFAULT)
        return find_value(self._broker, self._overrides, name, internal=self._internal)

    def value(self, name: str) -> Value:
        return TOPIC[name].parse(self.found(name).text)

    def number(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def flag(self, name: str) -> bool:
        return self.value(name) is True

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        assert isinstance(value, tuple), name
        return value


def resolve_topic(broker: BrokerConfig, overrides: Mapping[str, str], *, internal: bool = False) -> TopicConfig:
    """The effective configuration. Raises InvalidConfig for an unknown name or an unreadable value."""
    for name in overrides:
        topic_definition(name)
    read = _Reader(broker, overrides, internal=internal)
    cleanup_policy = tuple(dict.fromkeys(read.texts("cleanup.policy")))
    expires = "delete" in cleanup_policy
    retention_ms = read.number("retention.ms") if expires else -1
    retention_bytes = read.number("retention.bytes") if expires else -1
    segment_bytes = read.value("internal.segment.bytes")
    min_lag_ms, max_lag_ms = _compaction_lags(read)
    values: dict[str, Any] = {field: read.value(name) for field, name in configs_of(TopicConfig).items()}
    return TopicConfig(
        retention_ms=retention_ms,
        retention_bytes=max(retention_bytes, -1),
        local_retention_ms=_local(read, "local.retention.ms", retention_ms),
        local_retention_bytes=_local(read, "local.retention.bytes", retention_bytes),
        segment_bytes=segment_bytes if isinstance(segment_bytes, int) else read.number("segment.bytes"),
        message_timestamp_type=MessageTimestampType(read.value("message.timestamp.type")),
        cleanup_policy=cleanup_policy,
        compacts="compact" in cleanup_policy and not internal,
        min_compaction_lag_ms=min_lag_ms,
        max_compaction_lag_ms=max_lag_ms,
        compression=None if internal else _compression(read),
        flush_sync=broker.flush_sync,
        remote_storage_enable=not internal and tiered(broker, overrides),
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
        internal=internal,
        **values,
    )


def tiered(broker: BrokerConfig, overrides: Mapping[str, str]) -> bool:
    """Whether a topic that is not internal is tiered: its own config decides. Without this config, a topic is tiered if
    the broker enables tiering and cleanup.policy is delete."""
    explicit = overrides.get("remote.storage.enable")
    if explicit is not None:
        return TOPIC["remote.storage.enable"].parse(explicit) is True
    policy = TOPIC["cleanup.policy"].parse(find_value(broker, overrides, "cleanup.policy").text)
    return broker.tiering_enabled and policy == ("delete",)


def _local(read: _Reader, name: str, retention: int) -> int:
    """Local retention: -2 follows total retention; a value that the topic does not set is limited to total
    retention."""
    found = read.found(name)
    value = read.number(name)
    if value == -2 or (found.origin is Origin.DEFAULT and read.flag("remote.log.copy.disable")):
        return max(retention, -1)
    if found.origin is Origin.TOPIC or retention < 0:
        return value
    return retention if value < 0 else min(value, retention)


def _compression(read: _Reader) -> Compression | None:
    name = read.value("compression.type")
    if name == "producer":
        return None
    level = f"compression.{name}.level"
    return Compression(CODECS[str(name)], read.number(level) if level in TOPIC else 0)


def _compaction_lags(read: _Reader) -> tuple[int, int]:
    """The minimum and the maximum compaction lag. If a change of the broker's configs makes them contradict each other,
    the value that the topic does not set is adjusted. If the topic sets neither or both, the maximum is adjusted.
    """
    low, high = read.number("min.compaction.lag.ms"), read.number("max.compaction.lag.ms")
    if low <= high:
        return low, high
    is_low_default = read.found("min.compaction.lag.ms").origin is not Origin.TOPIC
    if is_low_default and read.found("max.compaction.lag.ms").origin is Origin.TOPIC:
        return high, high
    return low, low
