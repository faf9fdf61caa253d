"""Topic configs: what is accepted, with Kafka's rules, and what comes out of overrides, broker values and defaults."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.api.alterations import Alteration, AlterOperation
from broker.config.api.describe import ConfigSource, describe_broker, describe_topic
from broker.config.broker_config import BrokerConfig
from broker.config.resolve import resolve
from broker.config.topic.changes import altered_configs, configs_at_creation
from broker.config.topic.topic_config import (
    InvalidTopicName,
    MessageTimestampType,
    check_topic_name,
    log_config_of,
    resolve_topic,
)
from broker.config.values import InvalidConfig, double_text
from logformat.compression import Compression
from logformat.errors import InvalidRequest
from logformat.record_batch import Codec

DAY_MS = 86_400_000


def broker(*sets: str) -> BrokerConfig:
    return resolve({"log.dirs": "/data"}, sets, {}, None)


BROKER = broker()


def pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


TIERED = "remote.storage.enable=true "

# What Apache Kafka 4.3.1's LogConfig.validate answers (test_config_kafka_peer asks it again), tiering on in the broker.
ACCEPTED = [
    "retention.ms=-1",
    "segment.bytes=1048576",
    "segment.bytes=+1048576",
    "cleanup.policy=delete",
    "cleanup.policy=",
    "cleanup.policy=delete,delete",
    "cleanup.policy=compact",
    "cleanup.policy=compact,delete",
    "cleanup.policy=delete,compact",
    "cleanup.policy=compact,compact",
    "cleanup.policy=compact message.timestamp.type=LogAppendTime",
    "min.cleanable.dirty.ratio=0",
    "min.cleanable.dirty.ratio=1",
    "min.cleanable.dirty.ratio=5e-4",
    "min.compaction.lag.ms=9223372036854775807",
    "min.compaction.lag.ms=5 max.compaction.lag.ms=5",
    "max.compaction.lag.ms=1 delete.retention.ms=0",
    "message.timestamp.type=LogAppendTime",
    "preallocate=TRUE",
    "internal.segment.bytes=100",
    "retention.bytes=-5",
    "flush.ms=0",
    "leader.replication.throttled.replicas=0:1,1:2",
    "leader.replication.throttled.replicas=*",
    "remote.storage.enable=false local.retention.ms=99999999999 retention.ms=1000",
    "remote.log.copy.disable=true",
    "remote.log.delete.on.disable=true",
    TIERED,
    TIERED + "cleanup.policy=",
    TIERED + "retention.ms=1000 local.retention.ms=1000",
    TIERED + "retention.ms=1000 local.retention.ms=-2",
    TIERED + "retention.ms=-1 local.retention.ms=-1",
    TIERED + "retention.ms=-1 local.retention.ms=5",
    TIERED + "retention.ms=1000 local.retention.ms=0",
    TIERED + "retention.bytes=-1 local.retention.bytes=5",
    TIERED + "local.retention.bytes=-1",
    TIERED + "remote.log.copy.disable=true local.retention.ms=-2",
    TIERED + "remote.log.copy.disable=true retention.ms=1000 local.retention.ms=1000",
    TIERED + "remote.log.copy.disable=true local.retention.bytes=1000 retention.bytes=1000",
]
REFUSED = {
    "retention.ms=-2": "Value must be at least -1",
    "retention.ms=abc": "Not a number of type LONG",
    "retention.ms=": "Not a number of type LONG",
    "retention.ms=9223372036854775808": "Not a number of type LONG",
    "retention.ms=1.5": "Not a number of type LONG",
    "retention.ms=1_000": "Not a number of type LONG",
    "segment.bytes=1048575": "Value must be at least 1048576",
    "segment.bytes=2147483648": "Not a number of type INT",
    "cleanup.policy=DELETE": "String must be one of: compact, delete",
    "cleanup.policy=none": "String must be one of: compact, delete",
    "cleanup.policy=Compact": "String must be one of: compact, delete",
    "cleanup.policy=compact;delete": "String must be one of: compact, delete",
    "cleanup.policy=compact,": "Configuration 'cleanup.policy' values must not be empty.",
    "compression.type=bogus": "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    "message.timestamp.type=logappendtime": "String must be one of: CreateTime, LogAppendTime",
    "min.insync.replicas=0": "Value must be at least 1",
    "preallocate=yes": "Expected value to be either true or false",
    "nosuch=1": "Unknown topic config name: nosuch",
    "local.retention.ms=-3": "Value must be at least -2",
    "min.compaction.lag.ms=10 max.compaction.lag.ms=5": "conflict topic config setting",
    "message.timestamp.before.max.ms=-1": "Value must be at least 0",
    "flush.messages=0": "Value must be at least 1",
    "segment.index.bytes=3": "Value must be at least 4",
    "min.cleanable.dirty.ratio=1.1": "Value must be no more than 1",
    "min.cleanable.dirty.ratio=-0.1": "Value must be at least 0",
    "min.cleanable.dirty.ratio=half": "Not a number of type DOUBLE",
    "min.compaction.lag.ms=-1": "Value must be at least 0",
    "max.compaction.lag.ms=0": "Value must be at least 1",
    "delete.retention.ms=-1": "Value must be at least 0",
    "cleanup.policy=compact min.compaction.lag.ms=2 max.compaction.lag.ms=1": (
        "conflict topic config setting min.compaction.lag.ms (2) > max.compaction.lag.ms (1)"
    ),
    "leader.replication.throttled.replicas=x": "must be the literal",
    "compression.gzip.level=0": "Value must be between 1 and 9 or equal to -1",
    TIERED + "retention.ms=1000 local.retention.ms=1001": "Value must not be more than",
    TIERED + "retention.ms=1000 local.retention.ms=-1": "Value must not be -1",
    TIERED + "local.retention.ms=604800001": "Value must not be more than",
    TIERED + "retention.bytes=1000 local.retention.bytes=1001": "Value must not be more than",
    TIERED + "retention.bytes=1000 local.retention.bytes=-1": "Value must not be -1",
    TIERED + "remote.log.copy.disable=true local.retention.ms=1000": "copy.disable",
    TIERED + "remote.log.copy.disable=true local.retention.bytes=1000": "copy.disable",
}


@pytest.mark.parametrize("configs", ACCEPTED)
def test_what_kafka_accepts_is_accepted(configs: str) -> None:
    """The whole list was asked of Kafka 4.3.1 itself; what was asked for is what is kept."""
    kept = configs_at_creation(BROKER, pairs(configs))
    resolve_topic(BROKER, kept)
    assert pairs(configs).items() <= kept.items()


@pytest.mark.parametrize("configs", REFUSED)
def test_what_kafka_refuses_is_refused_with_its_reason(configs: str) -> None:
    """The reason is in the words its users know."""
    with pytest.raises(InvalidConfig) as refused:
        configs_at_creation(BROKER, pairs(configs))
    assert REFUSED[configs] in str(refused.value)


def test_the_codec_of_a_topic_is_its_own_or_the_brokers_with_its_level() -> None:
    """Kafka's default levels; `producer` leaves batches as they are."""
    found = {
        name: resolve_topic(BROKER, {"compression.type": name, "compression.zstd.level": "9"}).compression
        for name in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    }
    assert found == {
        "producer": None,
        "uncompressed": Compression(Codec.NONE),
        "gzip": Compression(Codec.GZIP, -1),
        "snappy": Compression(Codec.SNAPPY),
        "lz4": Compression(Codec.LZ4, 9),
        "zstd": Compression(Codec.ZSTD, 9),
    }
    set_by_broker = broker("compression.type=gzip", "compression.gzip.level=4")
    assert resolve_topic(set_by_broker, {}).compression == Compression(Codec.GZIP, 4)
    assert resolve_topic(set_by_broker, {}, internal=True).compression is None


def test_a_new_topic_is_tiered_and_says_so_itself() -> None:
    """So that a later change of the broker's configs cannot move it between the tiers."""
    assert configs_at_creation(BROKER, {}) == {"remote.storage.enable": "true"}
    assert configs_at_creation(BROKER, {}, internal=True) == {}
    off = broker("remote.log.storage.system.enable=false")
    assert configs_at_creation(off, {}) == {}
    assert configs_at_creation(BROKER, {"cleanup.policy": ""}) == {"cleanup.policy": ""}
    assert not resolve_topic(BROKER, {"cleanup.policy": ""}).remote_storage_enable
    assert resolve_topic(off, {"remote.storage.enable": "true"}).remote_storage_enable
    with pytest.raises(InvalidConfig, match="disabled in the broker"):
        configs_at_creation(off, {"remote.storage.enable": "true"})


@pytest.mark.parametrize(
    ("sets", "overrides", "expected"),
    [
        ((), "", DAY_MS),
        ((), "retention.ms=60000", 60_000),
        ((), "retention.ms=-1", DAY_MS),
        ((), "local.retention.ms=-2", 7 * DAY_MS),
        ((), "local.retention.ms=5", 5),
        ((), "remote.log.copy.disable=true", 7 * DAY_MS),
        (("log.local.retention.ms=172800000",), "", 2 * DAY_MS),
        (("log.local.retention.ms=172800000",), "retention.ms=60000", 60_000),
        (("log.local.retention.ms=-1",), "", 7 * DAY_MS),
        (("log.local.retention.ms=-2", "log.retention.minutes=1"), "", 60_000),
        (("log.retention.hours=-1",), "", DAY_MS),
    ],
)
def test_local_retention_yields_to_what_is_explicit(sets: tuple[str, ...], overrides: str, expected: int) -> None:
    """min(1 day, retention.ms) unless somebody says otherwise; the broker's own value yields too (cli contract)."""
    found = configs_at_creation(broker(*sets), pairs(overrides))
    assert resolve_topic(broker(*sets), found).local_retention_ms == expected


def test_values_come_from_the_topic_then_the_broker_then_our_defaults() -> None:
    """Also across units, as Kafka's synonyms say."""
    configured = broker("log.roll.hours=2", "log.flush.scheduler.interval.ms=7", "log.segment.bytes=2097152")
    found = resolve_topic(configured, {"segment.bytes": "4194304"})
    assert (found.segment_ms, found.flush_ms, found.segment_bytes) == (7_200_000, 7, 4_194_304)
    assert resolve_topic(configured, {}).segment_bytes == 2_097_152
    assert resolve_topic(BROKER, {}).segment_bytes == 128 * 2**20
    assert resolve_topic(BROKER, {"internal.segment.bytes": "1000"}).segment_bytes == 1000
    assert resolve_topic(BROKER, {"message.timestamp.type": "LogAppendTime"}).log_append_time
    assert resolve_topic(BROKER, {}).message_timestamp_type is MessageTimestampType.CREATE_TIME


def test_the_internal_topic_is_kept_for_ever_whatever_the_broker_says() -> None:
    """Group offsets are no log to expire, and are snapshotted, not tiered."""
    found = resolve_topic(broker("log.retention.ms=1", "log.retention.bytes=1"), {}, internal=True)
    assert (found.retention_ms, found.retention_bytes, found.remote_storage_enable) == (-1, -1, False)
    assert found.segment_bytes == 104_857_600


def test_the_local_log_gets_what_it_can_obey() -> None:
    """Every accepted topic config makes a valid LogConfig, also at Kafka's smallest sizes."""
    found = log_config_of(resolve_topic(BROKER, pairs("internal.segment.bytes=1 segment.index.bytes=4")))
    assert (found.segment_bytes, found.segment_index_bytes) == (61, 24)
    assert (found.local_time_limit_ms, found.tiered, found.flush_sync) == (DAY_MS, True, True)


def test_without_a_cleanup_policy_nothing_expires() -> None:
    """Kafka's empty list."""
    found = resolve_topic(BROKER, {"cleanup.policy": "", "retention.ms": "1", "retention.bytes": "1"})
    assert (found.retention_ms, found.retention_bytes) == (-1, -1)


@pytest.mark.parametrize(
    ("sets", "overrides", "expected"),
    [
        ((), "", (0, 2**63 - 1)),
        ((), "min.compaction.lag.ms=5 max.compaction.lag.ms=9", (5, 9)),
        (("log.cleaner.min.compaction.lag.ms=5", "log.cleaner.max.compaction.lag.ms=9"), "", (5, 9)),
        (("log.cleaner.min.compaction.lag.ms=9", "log.cleaner.max.compaction.lag.ms=5"), "", (9, 9)),
        (("log.cleaner.max.compaction.lag.ms=5",), "min.compaction.lag.ms=9", (9, 9)),
        (("log.cleaner.min.compaction.lag.ms=9",), "max.compaction.lag.ms=5", (5, 5)),
    ],
)
def test_compaction_lags_never_contradict_each_other(
    sets: tuple[str, ...], overrides: str, expected: tuple[int, int]
) -> None:
    """A broker's value that changed after the topic was made yields to the topic's."""
    found = log_config_of(resolve_topic(broker(*sets), pairs(overrides)))
    assert (found.min_compaction_lag_ms, found.max_compaction_lag_ms) == expected


def test_of_the_brokers_lags_only_a_topic_that_sets_configs_is_judged() -> None:
    """As Kafka 4.3.1: a topic without configs is made, any other refused while the broker's values contradict."""
    odd = broker("log.cleaner.min.compaction.lag.ms=10", "log.cleaner.max.compaction.lag.ms=5")
    assert configs_at_creation(odd, {}) == {"remote.storage.enable": "true"}
    for configs, said in (
        ("retention.ms=100", "min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"),
        ("min.compaction.lag.ms=7", "min.compaction.lag.ms (7) > max.compaction.lag.ms (5)"),
        ("max.compaction.lag.ms=7", "min.compaction.lag.ms (10) > max.compaction.lag.ms (7)"),
    ):
        with pytest.raises(InvalidConfig) as refused:
            configs_at_creation(odd, pairs(configs))
        assert said in str(refused.value)


def test_a_compacted_topic_is_tiered_when_it_says_so() -> None:
    """Not by default, as in Kafka; its retention counts only with delete, its local retention always."""
    assert configs_at_creation(BROKER, {"cleanup.policy": "compact"}) == {"cleanup.policy": "compact"}
    plain = resolve_topic(BROKER, pairs("cleanup.policy=compact retention.ms=5"))
    assert (plain.compacts, plain.deletes, plain.retention_ms, plain.remote_storage_enable) == (True, False, -1, False)
    both = resolve_topic(BROKER, pairs("cleanup.policy=compact,delete retention.ms=5"))
    assert (both.compacts, both.deletes, both.retention_ms) == (True, True, 5)
    tiered = resolve_topic(BROKER, pairs(TIERED + "cleanup.policy=compact local.retention.ms=5"))
    assert (tiered.remote_storage_enable, tiered.retention_ms, tiered.local_retention_ms) == (True, -1, 5)
    assert log_config_of(tiered).compacts and log_config_of(tiered).local_time_limit_ms == 5
    internal = resolve_topic(broker("log.cleanup.policy=compact"), {}, internal=True)
    assert not internal.compacts, "snapshots rewrite it"


def test_ratios_and_lists_are_shown_as_kafka_shows_them() -> None:
    """Parsed values, in Java's words; what was asked of Kafka 4.3.1."""
    shown = {
        config.name: (config.value, config.synonyms[0].value)
        for config in describe_topic(BROKER, pairs("min.cleanable.dirty.ratio=5e-4 cleanup.policy=compact,compact"))
        if config.name in ("min.cleanable.dirty.ratio", "cleanup.policy", "max.compaction.lag.ms")
    }
    assert shown == {
        "min.cleanable.dirty.ratio": ("5.0E-4", "5.0E-4"),
        "cleanup.policy": ("compact", "compact"),
        "max.compaction.lag.ms": ("9223372036854775807", "9223372036854775807"),
    }
    entries = {config.name: config for config in describe_broker(broker("log.cleaner.io.max.bytes.per.second=1e6"))}
    rate = entries["log.cleaner.io.max.bytes.per.second"]
    assert (rate.value, [synonym.value for synonym in rate.synonyms]) == (
        "1000000.0",
        ["1e6", "1.7976931348623157E308"],
    )
    assert entries["log.cleaner.enable"].read_only and not entries["log.cleaner.threads"].read_only


def alter(existing: Mapping[str, str], *changes: tuple[str, AlterOperation, str | None]) -> dict[str, str]:
    return altered_configs(BROKER, existing, [Alteration(*change) for change in changes])


def test_the_four_operations() -> None:
    """KIP-339: set, delete back to the default, append to and subtract from a list."""
    on = {"remote.storage.enable": "true"}
    assert alter(on, ("retention.ms", AlterOperation.SET, " 5 ")) == on | {"retention.ms": "5"}
    assert alter(on | {"retention.ms": "5"}, ("retention.ms", AlterOperation.DELETE, None)) == on
    assert alter(on, ("cleanup.policy", AlterOperation.SUBTRACT, "delete"))["cleanup.policy"] == ""
    assert alter(on | {"cleanup.policy": ""}, ("cleanup.policy", AlterOperation.APPEND, "delete,delete")) == on | {
        "cleanup.policy": "delete"
    }
    throttled = alter({}, ("leader.replication.throttled.replicas", AlterOperation.APPEND, "0:1,1:1"))
    assert throttled["leader.replication.throttled.replicas"] == "0:1,1:1"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ([("retention.ms", AlterOperation.APPEND, "5")], InvalidConfig),
        ([("retention.ms", AlterOperation.SUBTRACT, "5")], InvalidConfig),
        ([("nosuch", AlterOperation.SET, "5")], InvalidConfig),
        ([("cleanup.policy", AlterOperation.APPEND, "compacted")], InvalidConfig),
        ([("retention.ms", AlterOperation.SET, None)], InvalidRequest),
        ([("retention.ms", AlterOperation.SET, "5"), ("retention.ms", AlterOperation.DELETE, None)], InvalidRequest),
    ],
)
def test_alterations_that_make_no_sense_are_refused(
    changes: list[tuple[str, AlterOperation, str | None]], kind: type[Exception]
) -> None:
    """A wrong config is InvalidConfig, a malformed request is InvalidRequest alone."""
    with pytest.raises(InvalidRequest) as refused:
        alter({}, *changes)
    assert type(refused.value) is kind


def test_tiering_is_switched_off_only_with_the_word_that_deletes() -> None:
    """Kafka's guard: true → false needs remote.log.delete.on.disable; deleting the override changes nothing."""
    on = {"remote.storage.enable": "true"}
    with pytest.raises(InvalidConfig, match=r"remote\.log\.delete\.on\.disable"):
        alter(on, ("remote.storage.enable", AlterOperation.SET, "false"))
    off = alter(
        on,
        ("remote.storage.enable", AlterOperation.SET, "false"),
        ("remote.log.delete.on.disable", AlterOperation.SET, "true"),
    )
    assert not resolve_topic(BROKER, off).remote_storage_enable
    assert alter(on, ("remote.storage.enable", AlterOperation.DELETE, None)) == on
    alter({"remote.storage.enable": "false"}, ("retention.ms", AlterOperation.SET, "5"))


def test_a_null_value_at_creation_is_refused() -> None:
    """As Kafka does."""
    with pytest.raises(InvalidConfig, match="Null value"):
        configs_at_creation(BROKER, {"retention.ms": None})


_NUMBERS = st.integers(-3, 2**40)


@given(_NUMBERS, _NUMBERS, _NUMBERS, st.booleans())
def test_what_was_accepted_resolves_on_every_broker(retention: int, local: int, broker_value: int, tier: bool) -> None:
    """No change of the broker's own values makes an accepted topic unreadable; local never exceeds total by default."""
    try:
        accepted = configs_at_creation(
            BROKER,
            {
                "retention.ms": str(retention),
                "local.retention.ms": str(local),
                "remote.storage.enable": str(tier).lower(),
            },
        )
    except InvalidConfig:
        return
    other = broker(f"log.retention.ms={broker_value}") if broker_value >= -1 else BROKER
    found = resolve_topic(other, accepted)
    assert found.remote_storage_enable == tier
    if tier and retention >= 0:
        assert 0 <= found.local_retention_ms <= retention


@pytest.mark.parametrize("name", ["a", "x" * 249, "__consumer_offsets", "a.b_c-D9"])
def test_topic_names_kafka_allows(name: str) -> None:
    """Asked of Kafka's own check."""
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "é", "x" * 250, "a/b", "a\0", "a\n", "../x", "²"])
def test_topic_names_kafka_refuses(name: str) -> None:
    """Only names that passed may become part of a path."""
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


def test_describe_topic_names_the_source_and_what_else_would_give_a_value() -> None:
    """Entries and synonyms as DescribeConfigs answers them."""
    configured = broker("log.retention.hours=2")
    entries = {entry.name: entry for entry in describe_topic(configured, {"retention.ms": "60000"})}
    retention = entries["retention.ms"]
    assert (retention.value, retention.source) == ("60000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(synonym.name, synonym.value) for synonym in retention.synonyms] == [
        ("retention.ms", "60000"),
        ("log.retention.hours", "2"),
        ("log.retention.hours", "168"),
    ]
    assert (entries["local.retention.ms"].value, entries["local.retention.ms"].source) == (
        "60000",
        ConfigSource.DEFAULT_CONFIG,
    )
    assert entries["remote.storage.enable"].value == "true"
    assert "internal.segment.bytes" not in entries
    from_broker = {entry.name: entry for entry in describe_topic(configured, {})}["retention.ms"]
    assert (from_broker.value, from_broker.source) == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)


def test_describe_broker_shows_what_is_in_effect() -> None:
    """The bound HTTP address is how `tier status` finds it; names without effect are not shown."""
    entries = {entry.name: entry for entry in describe_broker(broker("num.io.threads=3"), {"thermocline.http": "h:1"})}
    assert entries["thermocline.http"].value == "h:1"
    assert entries["thermocline.bucket"].value == "file:///data-bucket"
    assert entries["log.dirs"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert "num.io.threads" not in entries
    assert "inter.broker.protocol.version" in entries
    assert entries["thermocline.bucket"].read_only
    assert not entries["log.retention.ms"].read_only


@pytest.mark.parametrize("digits", ["1" * 4_000 + "x", "1" * 2_000 + "." + "1" * 2_000 + "x", "." + "1" * 4_000 + "e"])
def test_a_long_number_is_refused_at_once(digits: str) -> None:
    """Found by a penetration test: each took a second of the event loop, and one CreateTopics may have a thousand."""
    began_s = time.process_time()
    for _ in range(20):
        with pytest.raises(InvalidConfig, match="Not a number of type DOUBLE"):
            configs_at_creation(BROKER, {"min.cleanable.dirty.ratio": digits})
    assert time.process_time() - began_s < 1.0


@pytest.mark.parametrize("text", ["1e999", "9" * 400])
def test_a_number_above_every_double_is_too_large(text: str) -> None:
    """It is infinite, as Java reads it. A broker failed to print it, and closed the connection."""
    with pytest.raises(InvalidConfig, match=r"Invalid value Infinity .*: Value must be no more than 1"):
        configs_at_creation(BROKER, {"min.cleanable.dirty.ratio": text})


def test_infinite_doubles_have_javas_names() -> None:
    assert (double_text(math.inf), double_text(-math.inf)) == ("Infinity", "-Infinity")
