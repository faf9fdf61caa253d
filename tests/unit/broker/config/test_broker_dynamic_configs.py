"""Configs set on running brokers (KIP-226): followed at once and at the next start, own over the cluster's over static.

Codes and texts are those Apache Kafka 4.3.1 answered to the same requests.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from broker.config.api.alterations import Alteration, AlterOperation, altered_overrides
from broker.config.definitions import BROKER as DEFINITIONS
from broker.config.definitions import TOPIC_SYNONYMS
from broker.config.live import LiveConfig
from broker.config.resolve import resolve
from broker.controller.decisions.decision import Decision
from broker.error_codes import ErrorCode
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.records import ConfigsSet
from broker.wire.apis import ApiKey
from broker.wire.messages import DescribeConfigsRequest, DescribeConfigsRequestResource
from tests.support.brokers.broker_kit import Life, Place
from tests.unit.broker.handlers.test_broker_admin import BROKER, TOPIC, altered, replaced

SET, DELETE, APPEND, SUBTRACT = range(4)
ALL = ""  # the resource without a name: every broker
OWN, CLUSTER, STATIC, DEFAULT = 2, 3, 4, 5


async def described(life: Life, kind: int, name: str) -> dict[str, Any]:
    resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    return {entry.name: entry for entry in (await life.call(ApiKey.DESCRIBE_CONFIGS, request)).results[0].configs}


def told(entry: Any) -> Any:
    return (
        entry.value,
        entry.config_source,
        [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms],
    )


async def test_topics_follow_at_once_by_precedence() -> None:
    """Default, static, the cluster's, the broker's own, the topic's: each hides the one before, and is told as source;
    deleted, the one before is back."""
    life = await Place("log.retention.hours=5").start()
    await life.create("a")
    await life.create("b", retention_ms="60000")
    partition = life.partition("a")
    static = ("log.retention.ms", "-1", STATIC)  # the kit's own
    assert partition.config.retention_ms == -1
    step = (BROKER, ALL, [("log.retention.ms", SET, "7200000"), ("message.max.bytes", SET, "5000")])
    assert await altered(life, step) == [(0, None)]
    assert (partition.config.retention_ms, partition.config.max_message_bytes) == (7_200_000, 5_000)
    assert partition.log.config.retention_ms == 7_200_000
    assert await altered(life, (BROKER, "1", [("log.retention.ms", SET, "3600000")])) == [(0, None)]
    assert partition.config.retention_ms == 3_600_000
    assert life.partition("b").config.retention_ms == 60_000
    synonyms = [("log.retention.ms", "3600000", OWN), ("log.retention.ms", "7200000", CLUSTER), static]
    synonyms += [("log.retention.hours", "5", STATIC), ("log.retention.hours", "168", DEFAULT)]
    assert told((await described(life, TOPIC, "a"))["retention.ms"]) == ("3600000", OWN, synonyms)
    assert told((await described(life, BROKER, "1"))["log.retention.ms"]) == ("3600000", OWN, synonyms)
    everywhere = await described(life, BROKER, ALL)
    assert {name: told(entry) for name, entry in everywhere.items()} == {
        "log.retention.ms": ("7200000", CLUSTER, [("log.retention.ms", "7200000", CLUSTER)]),
        "message.max.bytes": ("5000", CLUSTER, [("message.max.bytes", "5000", CLUSTER)]),
    }
    await life.create("c")
    assert life.partition("c").config.retention_ms == 3_600_000
    assert await altered(life, (BROKER, "1", [("log.retention.ms", DELETE, None)])) == [(0, None)]
    assert partition.config.retention_ms == 7_200_000
    assert await replaced(life, (BROKER, ALL, [("message.max.bytes", "6000")])) == [(0, None)]
    assert (partition.config.retention_ms, partition.config.max_message_bytes) == (-1, 6_000)
    await life.stop()


@pytest.mark.parametrize("clean", [True, False])
async def test_they_are_kept_for_the_next_start(clean: bool) -> None:
    """After a clean stop and after kill -9; before the first log is opened; another start value stays hidden."""
    place = Place()
    life = await place.start()
    await life.create("a")
    assert await altered(life, (BROKER, ALL, [("message.max.bytes", SET, "5000")])) == [(0, None)]
    assert await altered(life, (BROKER, "1", [("remote.fetch.max.wait.ms", SET, "700")])) == [(0, None)]
    await (life.stop() if clean else life.crash())
    again = await place.start("message.max.bytes=9000")
    assert again.partition("a").config.max_message_bytes == 5_000
    assert again.context.config.cold_fetch_wait_ms_max == 700
    assert await altered(again, (BROKER, ALL, [("message.max.bytes", DELETE, None)])) == [(0, None)]
    assert again.partition("a").config.max_message_bytes == 9_000
    await again.stop()


async def test_every_broker_config_that_is_called_dynamic_is_followed() -> None:
    """Set to something else than it is, each of them changes what the broker runs with, without a restart."""
    topic_defaults = {synonym.name for synonyms in TOPIC_SYNONYMS.values() for synonym in synonyms}
    special = {
        "compression.type": "zstd",
        "compression.gzip.level": "2",
        "compression.lz4.level": "2",
        "compression.zstd.level": "2",
        "log.cleanup.policy": "",
        "log.cleaner.threads": "2",
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.io.max.bytes.per.second": "1e6",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "log.message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "2",
        "log.local.retention.ms": "5",
        "log.local.retention.bytes": "5",
    }
    life = await Place().start()
    await life.create("a")
    decided_by_the_controller = {"unclean.leader.election.enable"}  # tests/unit/broker/test_unclean_cluster.py
    topic_names = {"log.", "message.max.bytes", "min.insync.replicas", "compression."}
    for name, definition in sorted(DEFINITIONS.items()):
        if not (definition.dynamic and definition.honoured) or name in decided_by_the_controller:
            continue
        if name.startswith("ssl."):
            continue  # read by certificates: tests/unit/broker/security/test_certificates.py
        before = life.context.config
        value = special[name] if name in special else str(int(definition.default or 0) // 2 + 1_048_577)
        topic_before = life.partition("a").config
        assert await altered(life, (BROKER, "1", [(name, SET, value)])) == [(0, None)], name
        now = life.context.config
        changed = [
            field
            for field in type(now).__struct_fields__
            if getattr(now, field) != getattr(before, field) and field not in ("configured", "own_overrides")
        ]
        is_cleaners = name.startswith("log.cleaner.") and name not in topic_defaults
        for_topics = name.startswith(tuple(topic_names)) and not is_cleaners
        assert bool(changed) != for_topics, (name, changed)
        if for_topics and not name.endswith(".level") and name != "log.flush.scheduler.interval.ms":
            assert life.partition("a").config != topic_before, name
        assert await altered(life, (BROKER, "1", [(name, DELETE, None)])) == [(0, None)], name
        assert life.context.config == before
    await life.stop()


async def test_who_may_connect_follows() -> None:
    """The listener obeys the new bounds from the next connection on, and after the next start."""
    place = Place()
    life = await place.start()
    changes = [("max.connections", SET, "7"), ("max.connection.creation.rate", SET, "5")]
    assert await altered(life, (BROKER, ALL, changes)) == [(0, None)]
    assert connection_limits(life) == (7, 5)
    of_one = [("listener.name.plaintext.max.connections", SET, "3")]
    assert await altered(life, (BROKER, ALL, of_one)) == [(0, None)], "Kafka takes it for all brokers too"
    of_one = [("listener.name.plaintext.max.connection.creation.rate", SET, "2")]
    assert await altered(life, (BROKER, "1", of_one)) == [(0, None)]
    assert connection_limits(life) == (7, 5) and own_limits(life) == (3, 2)
    assert (await described(life, BROKER, "1"))["listener.name.plaintext.max.connections"].value == "3"
    assert (await described(life, BROKER, ALL))["listener.name.plaintext.max.connections"].value == "3"
    ((code, text),) = await altered(life, (BROKER, "1", [("listener.name.plaintext.max.connections", SET, "0")]))
    assert (code, text) == (INVALID, "Invalid max.connections 0")
    await life.stop()
    again = await place.start()
    assert connection_limits(again) == (7, 5) and own_limits(again) == (3, 2), "forgotten by the next start"
    await again.stop()


def connection_limits(life: Life) -> tuple[int, int]:
    """Of connections at once, and of new ones a second."""
    server = life.broker.components.server
    assert server is not None
    limits = server._admissions["PLAINTEXT"]._crowd.limits
    return limits.connections_max, limits.connections_per_s_max


def own_limits(life: Life) -> tuple[float | None, float | None]:
    """The same, of the listener alone."""
    server = life.broker.components.server
    assert server is not None
    own = server._admissions["PLAINTEXT"]._own
    return own._most, own._per_s


def fixed(*names: str) -> tuple[int, str]:
    return ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(names)}]"


MAX = "message.max.bytes"
INVALID = ErrorCode.INVALID_REQUEST  # Kafka's code for a broker's wrong value, unlike a topic's
REFUSED: list[tuple[str, list[tuple[str, int, str | None]], tuple[int, str]]] = [
    ("2", [(MAX, SET, "1")], (INVALID, "Unexpected broker id, expected 1, but received 2")),
    ("-1", [(MAX, SET, "1")], (INVALID, "Unexpected broker id, expected 1, but received -1")),
    ("x", [(MAX, SET, "1")], (INVALID, "Node id must be an integer, but it is: x")),
    (" 1", [(MAX, SET, "1")], (INVALID, "Node id must be an integer, but it is:  1")),
    (ALL, [("num.partitions", SET, "3")], fixed("num.partitions")),
    ("1", [("log.dirs", SET, "/tmp")], fixed("log.dirs")),
    ("1", [("log.retention.hours", SET, "3")], fixed("log.retention.hours")),
    ("1", [(MAX, SET, "1000"), ("num.partitions", SET, "3")], fixed("num.partitions")),
    # Dynamic in Kafka; they promise what is not served. And what Kafka would keep for a plug-in.
    ("1", [("cordoned.log.dirs", SET, "/d")], fixed("cordoned.log.dirs")),
    ("1", [("config.providers", SET, "x")], fixed("config.providers")),
    ("1", [("sasl.jaas.config", SET, "x")], fixed("sasl.jaas.config")),
    # What says who a peer is: a file that a client can write, such as a log, would make it a broker.
    *(
        ("1", [(name, SET, value)], fixed(name))
        for name, value in (
            ("listener.name.brokers.ssl.truststore.location", "/data/t-0/00000000000000000000.log"),
            ("listener.name.brokers.ssl.truststore.type", "PEM"),
            ("listener.name.brokers.ssl.client.auth", "none"),
            ("listener.name.brokers.ssl.principal.mapping.rules", "DEFAULT"),
            ("listener.name.brokers.ssl.endpoint.identification.algorithm", ""),
            ("ssl.client.auth", "none"),
            ("ssl.endpoint.identification.algorithm", ""),
        )
    ),
    (
        ALL,
        [("sasl.kerberos.kinit.cmd", SET, "x"), ("ssl.protocol", SET, "x")],
        (
            INVALID,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[sasl.kerberos.kinit.cmd, ssl.protocol]",
        ),
    ),
    (
        "1",
        [("ssl.keystore.location", SET, "/k"), ("sasl.kerberos.kinit.cmd", SET, "x")],
        (
            INVALID,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.location]",
        ),
    ),
    (
        "1",
        [("num.io.threads", SET, "x")],
        (INVALID, "Invalid value x for configuration num.io.threads: Not a number of type INT"),
    ),
    ("1", [("nonsense", SET, "3")], fixed("nonsense")),
    (ALL, [(MAX, SET, "x")], (INVALID, f"Invalid value x for configuration {MAX}: Not a number of type INT")),
    (ALL, [(MAX, SET, "-1")], (INVALID, f"Invalid value -1 for configuration {MAX}: Value must be at least 0")),
    (ALL, [(MAX, SET, None)], (INVALID, f"Null value not supported for : {MAX}")),
    (ALL, [(MAX, SET, "1"), (MAX, SET, "2")], (INVALID, "Error due to duplicate config keys")),
    (
        "1",
        [(MAX, APPEND, "1")],
        (ErrorCode.INVALID_CONFIG, f"Config value append is not allowed for config key: {MAX}"),
    ),
    (
        "1",
        [("log.segment.bytes", SET, "1")],
        (INVALID, "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576"),
    ),
]


async def test_what_tools_set_in_passing_is_taken_and_shown_where_it_has_no_effect() -> None:
    """As Kafka takes it: of one broker, or of all; kept over a restart, and gone again when it is deleted."""
    place = Place()
    life = await place.start()
    name, other = "sasl.kerberos.min.time.before.relogin", "num.io.threads"
    assert name not in await described(life, BROKER, "1")
    assert await altered(life, (BROKER, "1", [(name, SET, "70000")])) == [(0, None)]
    assert await altered(life, (BROKER, ALL, [(other, SET, "16")])) == [(0, None)]
    await life.stop()
    life = await place.start()
    shown = await described(life, BROKER, "1")
    assert told(shown[name]) == ("70000", OWN, [(name, "70000", OWN), (name, "60000", DEFAULT)])
    assert told(shown[other]) == ("16", CLUSTER, [(other, "16", CLUSTER), (other, "8", DEFAULT)])
    assert not shown[name].read_only
    assert await altered(life, (BROKER, "1", [(name, DELETE, None)])) == [(0, None)]
    assert name not in await described(life, BROKER, "1")
    await life.stop()


async def test_key_stores_change_at_run_time_of_one_listener_of_one_broker() -> None:
    """As in Kafka, but for secrets, which cluster.json would show, and for trust (see `REFUSED`). A file of another
    directory than the first one's may be one that clients write: then the listener would stop."""
    name, own = "ssl.keystore.location", "listener.name.inner.ssl.keystore.location"
    life = await Place(f"{own}=/keys/first.pem").start()
    assert await altered(life, (BROKER, "1", [(own, SET, "/keys/./next.pem")])) == [(0, None)]
    assert life.context.config.configured[own] == "/keys/./next.pem"
    for path in ("/data/t-0/00000000000000000000.log", "/keys/../data/x.pem", "/keys/more/x.pem", "x.pem", "/keys/.."):
        ((code, text),) = await altered(life, (BROKER, "1", [(own, SET, path)]))
        assert code == INVALID and "the directory of its first key store, /keys" in text, path
    ((code, text),) = await altered(life, (BROKER, "1", [(own.replace("inner", "other"), SET, "/keys/x.pem")]))
    assert code == INVALID and "at its start" in text
    ((code, text),) = await altered(life, (BROKER, ALL, [(own, SET, "/keys/x.pem")]))
    assert code != 0 and "broker id must be specified" in text
    ((code, text),) = await altered(life, (BROKER, "1", [(name, SET, "/keys/x.pem")]))
    assert code != 0 and "listener prefix" in text
    ((code, text),) = await altered(life, (BROKER, "1", [("listener.name.inner.ssl.key.password", SET, "sesame")]))
    assert code != 0 and "dynamically" in text
    assert life.context.config.configured[own] == "/keys/./next.pem"
    await life.stop()


def test_a_key_store_that_an_older_version_took_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    own = "listener.name.inner.ssl.keystore.location"
    live = LiveConfig(resolve({"log.dirs": "/d"}, [f"{own}=/keys/first.pem"], {}, None))
    live.apply({}, {own: "/data/t-0/00000000000000000000.log"})
    assert live.now.configured[own] == "/keys/first.pem" and "has no effect" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleaner.min.compaction.lag.ms", "7000"),
        ("log.cleaner.delete.retention.ms", "7000"),
        ("log.cleanup.policy", "compact"),
    ],
)
async def test_a_pass_over_the_bucket_sees_a_changed_default(name: str, value: str) -> None:
    """Regression: only a topic's own configs ended a pass. For hours it removed records, and gave tombstones a time, by
    the default of before."""
    life = await Place().start()
    await life.create("a")
    state = life.partition("a").tier.partition_state
    before = state.config
    assert await altered(life, (BROKER, ALL, [(name, SET, value)])) == [(0, None)]
    assert state.config != before
    await life.stop()


async def test_advertised_listeners_are_shown_as_they_are_told() -> None:
    """With their names, as Kafka writes them, also where only an address was given; null where nothing was set."""
    for given, expected in (("out.example:19092", "PLAINTEXT://out.example:19092"), (None, None)):
        life = await Place(*([f"advertised.listeners={given}"] if given else [])).start()
        assert (await described(life, BROKER, "1"))["advertised.listeners"].value == expected
        await life.stop()


@pytest.mark.parametrize(("name", "changes", "expected"), REFUSED)
async def test_they_are_refused_in_kafkas_words(
    name: str, changes: list[tuple[str, int, str | None]], expected: tuple[int, str]
) -> None:
    """And nothing of such a request is kept."""
    life = await Place().start()
    assert await altered(life, (BROKER, name, changes)) == [expected]
    assert life.context.metadata.image.cluster_configs == {}
    assert life.context.metadata.image.node_configs == {}
    await life.stop()


async def test_values_that_contradict_each_other_are_refused() -> None:
    """Local retention beyond total retention, over both layers."""
    life = await Place().start()
    assert await altered(life, (BROKER, ALL, [("log.retention.ms", SET, "1000")])) == [(0, None)]
    ((code, text),) = await altered(life, (BROKER, "1", [("log.local.retention.ms", SET, "5000")]))
    assert code == INVALID
    assert "must not be more than" in text
    await life.stop()


THREADS, BUFFER = "log.cleaner.threads", "log.cleaner.dedupe.buffer.size"
TOO_SMALL = f"requirement failed: {BUFFER} must be at least 1MB per cleaner thread."
THREADS_CANNOT = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads cannot be {} the current value "
    "{} for configuration Invalid dynamic configuration"
)
TOO_MANY = THREADS_CANNOT.format("increased to more than double", 2)
TOO_FEW = THREADS_CANNOT.format("reduced to less than half", 4)


async def test_the_cleaner_follows_what_kafka_accepts() -> None:
    """Threads at most halved or doubled, a mebibyte of map for each; the broker runs with it at once."""
    life = await Place().start()

    async def change(*configs: tuple[str, str], name: str = "1") -> str | None:
        ((code, text),) = await altered(life, (BROKER, name, [(key, SET, value) for key, value in configs]))
        assert (code == 0) is (text is None) and code in (0, INVALID)
        return cast("str | None", text)

    assert await change((BUFFER, "1000")) == await change((BUFFER, "-1")) == TOO_SMALL
    assert await change((THREADS, "2")) is None
    assert await change((THREADS, "5")) == TOO_MANY
    assert await change((THREADS, "4"), (BUFFER, "4194304")) == TOO_SMALL
    assert await change((THREADS, "4"), (BUFFER, "4194308")) is None
    cleaner = life.context.config.cleaner
    assert (cleaner.threads, cleaner.map_bytes, cleaner.buffer_bytes) == (4, 1_048_577, 65_536)
    assert await change((THREADS, "1")) == TOO_FEW
    assert await change(("log.cleaner.enable", "false")) == (
        "Cannot update these configs dynamically: [log.cleaner.enable]"
    )
    assert await change((THREADS, "-1")) == f"Invalid value -1 for configuration {THREADS}: Value must be at least 0"
    assert await change((BUFFER, "1"), name=ALL) is None, "hidden by the broker's own"
    assert life.context.config.cleaner == cleaner
    await life.stop()


def test_values_for_all_brokers_that_one_cannot_use_leave_its_cleaner_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This one was started with more threads: it says so, keeps its cleaner, and takes other changes."""
    live = LiveConfig(resolve({"log.dirs": "/data"}, ["log.cleaner.threads=4"], {}, None))
    before = live.now.cleaner
    assert live.apply({BUFFER: "2000000", "log.retention.ms": "7"}, {})
    assert (live.now.cleaner, live.now.configured["log.retention.ms"]) == (before, "7")
    assert TOO_SMALL in caplog.text
    other = [Alteration("log.retention.ms", AlterOperation.SET, "9")]
    assert altered_overrides(live.now, {}, other, own=True) == {"log.retention.ms": "9"}


async def test_deleting_and_trying_change_nothing_else() -> None:
    """DELETE of what is not set, or not known, is no error; validate_only keeps nothing; lists are edited."""
    life = await Place().start()
    gone = [("num.partitions", DELETE, None), ("nonsense", DELETE, None), (MAX, DELETE, None)]
    assert await altered(life, (BROKER, "1", gone)) == [(0, None)]
    assert await replaced(life, (BROKER, "1", [(MAX, "5")]), dry=True) == [(0, None)]
    assert life.context.metadata.image.node_configs == {}
    policy = "log.cleanup.policy"
    assert await altered(life, (BROKER, "1", [(policy, SUBTRACT, "delete")])) == [(0, None)]
    assert life.context.metadata.image.node_configs == {1: {policy: ""}}
    assert await altered(life, (BROKER, "1", [(policy, APPEND, "delete")])) == [(0, None)]
    assert life.context.metadata.image.node_configs == {1: {policy: "delete"}}
    await life.stop()


async def test_what_this_version_cannot_use_does_not_keep_it_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    """A bucket of another version: unknown, fixed and unreadable values are named in the log; the others are obeyed."""
    place = Place()
    life = await place.start()
    await life.create("a")
    wrong = {"nonsense": "1", "num.partitions": "7", "log.retention.ms": "soon", MAX: "5000"}
    await life.context.controller._decide(lambda _: Decision((ConfigsSet(wrong),), None))
    await life.stop()
    with caplog.at_level(logging.ERROR):
        again = await place.start()
    assert again.partition("a").config.max_message_bytes == 5_000
    assert again.context.config.num_partitions == 1
    for name in ("nonsense", "num.partitions", "log.retention.ms"):
        assert any(f"the dynamic config {name} has no effect" in line for line in caplog.messages)
    assert not any("=7" in line for line in caplog.messages), "a value may be a secret"
    await again.stop()


async def test_they_stay_when_records_are_folded_into_a_page() -> None:
    """The page holds what was set."""
    place = Place()
    life = await place.start()
    assert await altered(life, (BROKER, "1", [(MAX, SET, "5000")])) == [(0, None)]
    assert await altered(life, (BROKER, ALL, [(MAX, SET, "7000")])) == [(0, None)]
    cluster = cast(ClusterRoot, cast(Any, life.context.controller)._commit_queue._root)
    known = cluster.known
    assert known is not None
    while (known := cluster.known) is not None and known.content.page is None:
        await altered(life, (BROKER, "1", [("log.roll.ms", SET, str(known.version + 1))]))
    await life.stop()
    again = await place.start()
    image = again.context.metadata.image
    assert image.cluster_configs == {MAX: "7000"}
    assert image.node_configs[1][MAX] == "5000"
    await again.stop()


async def test_what_is_kept_is_small() -> None:
    """The longest value of a request is refused before it is read; a list is kept without repetitions."""
    life = await Place().start()
    policy = "log.cleanup.policy"
    ((code, text),) = await altered(life, (BROKER, "1", [(policy, SET, "delete," * 4_000 + "delete")]))
    assert code == ErrorCode.INVALID_CONFIG
    assert "4096" in text
    ((code, _),) = await replaced(life, (TOPIC, "a", [(f"{at}", "x") for at in range(1_000)]))
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ((code, _),) = await replaced(life, (BROKER, "1", [(f"{at}", "x") for at in range(1_000)]))
    assert code == ErrorCode.INVALID_CONFIG
    assert await altered(life, (BROKER, "1", [(policy, SET, "delete,delete")])) == [(0, None)]
    assert life.context.metadata.image.node_configs == {1: {policy: "delete"}}
    await life.stop()


async def test_throttles_are_taken_shown_and_told_where_they_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """All three that Kafka's tools set and take back together; without a default, as in Kafka, they are not there when
    nobody set them."""
    rates = {
        "follower.replication.throttled.rate": "2000000",
        "leader.replication.throttled.rate": "1000000",
        "replica.alter.log.dirs.io.max.bytes.per.second": "5",
    }
    life = await Place().start()
    assert not rates.keys() & (await described(life, BROKER, "1")).keys()
    assert await altered(life, (BROKER, "1", [(name, SET, text) for name, text in rates.items()])) == [(0, None)]
    found = await described(life, BROKER, "1")
    assert {name: told(found[name]) for name in rates} == {
        name: (text, OWN, [(name, text, OWN)]) for name, text in rates.items()
    }
    assert life.context.config.follower_rate_max == 2_000_000
    assert [record.args[0] for record in caplog.records if "has no effect here" in record.message] == [
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ]
    assert await altered(life, (BROKER, "1", [(name, DELETE, None) for name in rates])) == [(0, None)]
    assert not rates.keys() & (await described(life, BROKER, "1")).keys()
    await life.stop()
