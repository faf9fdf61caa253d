"""No config is silently wrong: it is obeyed, without effect for a reason that is told, or refused by name (ADR 12)."""

from __future__ import annotations

import pytest

from broker.config.definitions import BROKER, TOPIC, broker_definition
from broker.config.kafka.without_effect import BROKER_REASONS, REFUSED, TOPIC_REASONS, reason_of
from broker.config.resolve import resolve
from broker.config.sources import ConfigError
from broker.config.topic.changes import configs_at_creation
from broker.config.values import InvalidConfig
from broker.wire.apis import ApiKey
from logformat.records import Record, encode_batch
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import Place, produce_request


def test_every_topic_config_is_obeyed_or_says_why_not() -> None:
    """A new name of Kafka's needs a decision before it is accepted."""
    assert TOPIC_REASONS.keys() == {name for name, found in TOPIC.items() if not found.honoured}


def test_every_broker_config_is_obeyed_says_why_not_or_is_refused() -> None:
    """Names passed on to plug-ins too; no reason is left over."""
    without = {name for name, found in BROKER.items() if not found.honoured}
    assert {name for name in without if not reason_of(name)} == set(REFUSED)
    used = {next(b for b, _ in BROKER_REASONS if name.startswith(b)) for name in without - set(REFUSED)}
    passed_on = ("rsm.config.x", "rlmm.config.x", "listener.name.x.y", "config.providers.x", "metrics.jmx.include")
    for name in passed_on:
        definition = broker_definition(name)
        assert definition is not None
        assert reason_of(name)
        assert reason_of(name) in definition.doc
        used.add(next(b for b, _ in BROKER_REASONS if name.startswith(b)))
    assert used == {beginning for beginning, _ in BROKER_REASONS}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_promises_what_nobody_does_is_refused_at_the_start(name: str) -> None:
    """Set to something: exit 2 with what to do; empty, as Kafka's own default: no matter."""
    with pytest.raises(ConfigError, match=f"Invalid value org.x.Y for configuration {name}: "):
        resolve({"log.dirs": "/data"}, [f"{name}=org.x.Y"], {}, None)
    resolve({"log.dirs": "/data"}, [f"{name}="], {}, None)


def test_a_controller_without_a_broker_is_refused() -> None:
    """`process.roles=controller` would start a broker nobody asked for."""
    with pytest.raises(ConfigError, match=r"process\.roles"):
        resolve({"log.dirs": "/data"}, ["process.roles=controller"], {}, None)
    resolve({"log.dirs": "/data"}, ["process.roles=broker, controller"], {}, None)


def test_of_named_values_only_those_that_work_are_accepted() -> None:
    """Every value of every honoured topic config that is one of several: taken only where the broker acts on it."""
    limited = resolve({"log.dirs": "/data"}, [], {}, None)
    accepted = set()
    for name, definition in TOPIC.items():
        for value in definition.valid.one_of if definition.honoured else ():
            try:
                configs_at_creation(limited, {name: value})
            except InvalidConfig as refused:
                assert f"Invalid value {value} for configuration {name}" in str(refused)
                assert "served" in str(refused)
            else:
                accepted.add((name, value))
    assert accepted == {
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete"),
        *(("compression.type", value) for value in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        ("message.timestamp.type", "CreateTime"),
        ("message.timestamp.type", "LogAppendTime"),
    }


@pytest.mark.parametrize("off_ms", [-10_000_000, 10_000_000])
async def test_with_log_append_time_the_records_own_time_is_no_matter(off_ms: int) -> None:
    """Regression: `message.timestamp.{before,after}.max.ms` were asked of timestamps that are overwritten anyway; Kafka
    takes these records."""
    life = await Place().start()
    bounds = {"message_timestamp_before_max_ms": "1000", "message_timestamp_after_max_ms": "1000"}
    await life.create("a", message_timestamp_type="LogAppendTime", **bounds)
    await life.create("b", **bounds)
    batch = encode_batch([Record(0, EPOCH_MS + off_ms, None, b"x")])
    codes = []
    for topic in ("a", "b"):
        answer = await life.call(ApiKey.PRODUCE, produce_request(topic, batch))
        codes.append(answer.responses[0].partition_responses[0].error_code)
    assert codes == [0, 32]  # INVALID_TIMESTAMP
    await life.stop()
