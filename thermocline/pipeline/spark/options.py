"""Options of `spark.read.format("thermocline")`: the options of Spark's Kafka source, and a few of our own. Pure.

An unknown option is an error that names the nearest known one, so that a typing mistake never reads as a default. Names
are case-insensitive, as all options of Spark. Source: Spark's "Structured Streaming + Kafka Integration Guide" (4.x),
"Reading Data from Kafka".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coldstore.url import parse_bucket_url
from logformat.errors import InvalidRequest
from logformat.values import TopicPartition, is_topic_name
from thermocline.pipeline.plan import TARGET_BYTES
from thermocline.pipeline.spark.planning.offsets import (
    EARLIEST,
    LATEST,
    PartitionOffsets,
    parse_offsets,
    parse_partitions,
)

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000  # Spark's default
POLL_TIMEOUT_MS: Final = 120_000  # Spark's default: its network time-out
GROUP_ID_PREFIX: Final = "thermocline-spark"

# Spark's names, in the order of its guide; the last line is ours. The two fetchOffset options have no effect, because
# librdkafka retries by itself.
KNOWN: Final = (
    *("assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers"),
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", "startingOffsetsByTimestampStrategy"),
    *("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "failOnDataLoss", "includeHeaders"),
    *("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix"),
    *("bucket", "targetPartitionBytes", "pushFilters", "lateMs", "isolation.level"),
)
_WAYS: Final = ("assign", "subscribe", "subscribePattern")
_BY_LOWER: Final = {name.lower(): name for name in KNOWN}
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_ONLY: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
# Spark's source refuses them too, because the reader sets them.
_CONSUMER_REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "key.deserializer": "keys are always bytes; cast the column",
    "value.deserializer": "values are always bytes; cast the column",
    "interceptor.classes": "nothing may change records on their way",
    "enable.partition.eof": "the reader needs it",
}
_TIME_UNITS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS: Final = {"": 0, "b": 0} | {
    prefix + suffix: bits for prefix, bits in (("k", 10), ("m", 20), ("g", 30)) for suffix in ("", "b", "ib")
}
_AMOUNT: Final = re.compile(r"(\d{1,18})\s*([a-z]*)")


class Edge(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ByOffset:
    """An offset for every partition; -2 is the earliest and -1 the latest."""

    option: str
    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True)
class ByTimestamp:
    """The first record at or after a time (ms since 1970): one for all partitions, or one for each."""

    option: str
    timestamp_ms: int | None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)


Position = Edge | ByOffset | ByTimestamp


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions to read; exactly one field is set."""

    assign: frozenset[TopicPartition] | None = None
    subscribe: frozenset[str] | None = None
    pattern: str | None = None

    def wants(self, topic: str) -> bool:
        if self.assign is not None:
            return any(partition.topic == topic for partition in self.assign)
        if self.subscribe is not None:
            return topic in self.subscribe
        assert self.pattern is not None
        return re.fullmatch(self.pattern, topic) is not None

    @property
    def named(self) -> frozenset[str] | None:
        """The topics that must exist; None for a pattern."""
        return self.subscribe if self.assign is None else frozenset(partition.topic for partition in self.assign)


@dataclass(frozen=True, slots=True)
class Options:
    """All settings of a reader. If `starting` or `ending` is None, the default of a batch or stream applies."""

    bucket: str
    selection: Selection
    starting: Position | None = None
    ending: Position | None = None
    no_later_record_is_latest: bool = False  # startingOffsetsByTimestampStrategy=latest
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    target_partition_bytes: int = TARGET_BYTES
    push_filters: bool | None = None  # None: yes if Spark pushes filters
    late_ms: int | None = None  # maximum lateness of records; None: `timestamp < X` prunes nothing
    bootstrap_servers: str | None = None
    consumer: Mapping[str, str] = field(default_factory=dict)  # kafka.*, without the prefix
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    group_id_prefix: str = GROUP_ID_PREFIX
    read_committed: bool = True  # isolation.level: in both tiers
    given: frozenset[str] = frozenset()  # names that the user set

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Given options that have no effect in a batch; Spark's source ignores them too."""
        return tuple(name for name in STREAM_ONLY if name in self.given)

    def for_batch(self) -> tuple[Position, Position]:
        """Start and end of a batch. Raises InvalidRequest for positions that only a stream can have."""
        starting = self.starting or Edge.EARLIEST
        ending = self.ending or Edge.LATEST
        if starting is Edge.LATEST or (isinstance(starting, ByOffset) and LATEST in starting.offsets.values()):
            raise InvalidRequest("option startingOffsets: a batch cannot start at the latest offset (-1)")
        if ending is Edge.EARLIEST or (isinstance(ending, ByOffset) and EARLIEST in ending.offsets.values()):
            raise InvalidRequest("option endingOffsets: a batch cannot end at the earliest offset (-2)")
        return starting, ending

    def for_stream(self) -> Position:
        """Start of a stream without a checkpoint. Raises InvalidRequest for an end, because a stream has none."""
        ends = [name for name in BATCH_ONLY if name in self.given]
        if ends:
            raise InvalidRequest(
                f"option {ends[0]}: a stream has no end; use trigger(availableNow=True) to stop at the present"
            )
        return self.starting or Edge.LATEST


def names_source(given: Mapping[str, str]) -> bool:
    """Whether the options name a bucket and topics. The options of a query on a table need not name them."""
    names = {key.lower() for key in given}
    return "bucket" in names and not names.isdisjoint(way.lower() for way in _WAYS)


def check_names(given: Mapping[str, str]) -> None:
    """Raises InvalidRequest for an unknown option; the message names the nearest one."""
    _by_name(given)


def _by_name(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    by_name: dict[str, str] = {}
    consumer: dict[str, str] = {}
    for key, value in given.items():
        name = _BY_LOWER.get(key.lower())
        if name is not None:
            by_name[name] = value
        elif key.lower().startswith("kafka."):
            _add_consumer_option(consumer, key.lower().removeprefix("kafka."), value)
        else:
            raise InvalidRequest(_unknown(key))
    return by_name, consumer


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse Spark's options. Raises InvalidRequest, which names the wrong option and the nearest known name."""
    by_name, consumer = _by_name(given)
    if "bucket" not in by_name:
        raise InvalidRequest(
            "option bucket is missing: the bucket's URL, file:///abs/dir or s3://bucket/prefix (a table made with a "
            "list of columns loses its options: leave the list out, or use CREATE TEMPORARY VIEW)"
        )
    bootstrap = by_name.get("kafka.bootstrap.servers")
    if consumer and bootstrap is None:
        raise InvalidRequest(
            f"option kafka.{min(consumer)} needs kafka.bootstrap.servers: without it no broker is asked"
        )
    read_committed = _isolation(by_name, consumer)
    return Options(
        bucket=parse_bucket_url(by_name["bucket"]).printed(),
        selection=_selection(by_name),
        starting=_position(by_name, "starting"),
        ending=_position(by_name, "ending"),
        no_later_record_is_latest=_strategy(by_name),
        fail_on_data_loss=_truth(by_name, "failOnDataLoss", True),
        include_headers=_truth(by_name, "includeHeaders", False),
        min_partitions=_count(by_name, "minPartitions"),
        max_records_per_partition=_count(by_name, "maxRecordsPerPartition"),
        max_offsets_per_trigger=_count(by_name, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_count(by_name, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=_duration_ms(by_name, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        target_partition_bytes=_size(by_name, "targetPartitionBytes", TARGET_BYTES),
        push_filters=_truth(by_name, "pushFilters", True) if "pushFilters" in by_name else None,
        late_ms=_whole(by_name, "lateMs", minimum=0) if "lateMs" in by_name else None,
        bootstrap_servers=bootstrap,
        consumer=consumer,
        poll_timeout_ms=_count(by_name, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
        group_id_prefix=by_name.get("groupIdPrefix", GROUP_ID_PREFIX),
        read_committed=read_committed,
        given=frozenset(by_name),
    )


def _unknown(key: str) -> str:
    if key.lower() == "path":
        return "load() takes no path here: name the bucket with option bucket and topics with subscribe"
    near = difflib.get_close_matches(key.lower(), _BY_LOWER, n=1, cutoff=0.0)
    return f"unknown option {key!r}; did you mean {_BY_LOWER[near[0]]!r}? Known: {', '.join(KNOWN)}, kafka.*"


def _add_consumer_option(consumer: dict[str, str], name: str, value: str) -> None:
    if name in _CONSUMER_REFUSED:
        raise InvalidRequest(f"option kafka.{name} is not supported: {_CONSUMER_REFUSED[name]}")
    consumer[name] = value


def _isolation(by_name: Mapping[str, str], consumer: dict[str, str]) -> bool:
    """Whether records of open and aborted transactions are left out. One level holds for both tiers: Spark's
    `kafka.isolation.level` means the same as our `isolation.level`."""
    name, levels = "isolation.level", ("read_committed", "read_uncommitted")
    level = _one_of(by_name, name, levels, "read_committed")
    of_kafka = consumer.pop(name, level)
    if of_kafka not in levels:
        raise InvalidRequest(f"option kafka.{name}: {of_kafka!r} is none of {', '.join(levels)}")
    if name in by_name and of_kafka != level:
        raise InvalidRequest(
            f"options {name}={level} and kafka.{name}={of_kafka}: set one of them, or both to the same level"
        )
    return of_kafka == "read_committed"


def _selection(by_name: Mapping[str, str]) -> Selection:
    chosen = [way for way in _WAYS if way in by_name]
    if len(chosen) != 1:
        raise InvalidRequest(
            f"give exactly one of the options {', '.join(_WAYS)}; given: {', '.join(chosen) or 'none'}"
        )
    text = by_name[chosen[0]].strip()
    if chosen[0] == "assign":
        return Selection(assign=parse_partitions(text, "assign"))
    if chosen[0] == "subscribe":
        topics = [topic.strip() for topic in text.split(",") if topic.strip()]
        wrong = [topic for topic in topics if not is_topic_name(topic)]
        if wrong or not topics:
            raise InvalidRequest(
                f"option subscribe: {(wrong or [text])[0]!r} is not a topic name; write it as topicA,topicB"
            )
        return Selection(subscribe=frozenset(topics))
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequest(f"option subscribePattern: {text!r} is not a regular expression: {error}") from None
    if not text:
        raise InvalidRequest("option subscribePattern is empty")
    return Selection(pattern=text)


def _position(by_name: Mapping[str, str], side: str) -> Position | None:
    """Spark's precedence: one timestamp, then timestamps by partition, then offsets."""
    timestamp, timestamps, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if timestamp in by_name:
        return ByTimestamp(timestamp, _whole(by_name, timestamp, minimum=0))
    if timestamps in by_name:
        return ByTimestamp(timestamps, None, parse_offsets(by_name[timestamps], timestamps, minimum=0))
    if offsets not in by_name:
        return None
    text = by_name[offsets].strip()
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    if not text.startswith("{"):
        raise InvalidRequest(
            f'option {offsets}: {text!r} is neither earliest, latest nor JSON as {{"topicA":{{"0":23}}}}'
        )
    return ByOffset(offsets, parse_offsets(text, offsets))


def _strategy(by_name: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return _one_of(by_name, name, ("error", "latest"), "error") == "latest"


def _truth(by_name: Mapping[str, str], name: str, default: bool) -> bool:
    return _one_of(by_name, name, ("true", "false"), str(default).lower()) == "true"


def _one_of(by_name: Mapping[str, str], name: str, choices: Iterable[str], default: str) -> str:
    value = by_name.get(name, default).strip().lower()
    if value not in choices:
        raise InvalidRequest(f"option {name}: {by_name[name]!r} is none of {', '.join(choices)}")
    return value


def _count(by_name: Mapping[str, str], name: str) -> int | None:
    return _whole(by_name, name, minimum=1) if name in by_name else None


def _whole(by_name: Mapping[str, str], name: str, minimum: int) -> int:
    text = by_name[name].strip()
    if not (text.isascii() and text.isdecimal() and minimum <= int(text) < 1 << 63):
        raise InvalidRequest(f"option {name}: {by_name[name]!r} is not a whole number from {minimum} up")
    return int(text)


def _duration_ms(by_name: Mapping[str, str], name: str, default: int) -> int:
    found = _AMOUNT.fullmatch(by_name.get(name, str(default)).strip().lower())
    if found is None or found[2] not in _TIME_UNITS:
        raise InvalidRequest(
            f"option {name}: {by_name[name]!r} is not a duration; write it as 90s, 15m or 1h (bare: ms)"
        )
    return int(found[1]) * _TIME_UNITS[found[2]]


def _size(by_name: Mapping[str, str], name: str, default: int) -> int:
    found = _AMOUNT.fullmatch(by_name.get(name, str(default)).strip().lower())
    if found is None or found[2] not in _SIZE_UNITS or not int(found[1]):
        raise InvalidRequest(f"option {name}: {by_name[name]!r} is not a size; write it as 268435456, 256m or 256MiB")
    return int(found[1]) << _SIZE_UNITS[found[2]]
