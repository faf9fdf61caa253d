"""The broker's configuration: precedence, syntax, refusals, and what is derived."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.broker_config import BrokerConfig
from broker.config.definitions import BROKER, TOPIC, TOPIC_SYNONYMS, broker_definition, nearest_name
from broker.config.groups import GroupConfig
from broker.config.network.addresses import parse_address, show_address
from broker.config.network.listeners import ListenerConfig
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.config.sources import ConfigError, environment_names
from broker.config.transactions import TransactionConfig
from broker.config.units import parse_duration_ms, parse_size, show_duration
from broker.config.values import InvalidConfig
from broker.startup.limits import net_limits
from logformat.errors import InvalidRequest
from logformat.properties import MalformedEscape, properties_in
from tests.support.repository import ROOT
from thermocline.units import show_size


def config(
    *sets: str,
    flags: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    file: str = "",
    launch: Launch | None = None,
) -> BrokerConfig:
    return resolve({"log.dirs": "/data"} | (flags or {}), sets, env or {}, file, launch or Launch())


def test_precedence_is_flag_set_environment_file_default() -> None:
    """Each stronger source hides the weaker ones."""
    name, env = "num.partitions", {"THERMOCLINE_NUM_PARTITIONS": "3"}
    assert config().num_partitions == 1
    assert config(file=f"{name}=2").num_partitions == 2
    assert config(file=f"{name}=2", env=env).num_partitions == 3
    assert config(f"{name}=4", file=f"{name}=2", env=env).num_partitions == 4
    assert config(f"{name}=4", flags={name: "5"}, file=f"{name}=2", env=env).num_partitions == 5


def test_a_send_buffer_that_was_set_stays_as_large_as_it_was_set() -> None:
    """Also at Kafka's default, and at the kernel's own size; where nothing was said it grows for who fetches much."""
    assert net_limits(config()).wide_send_buffers_max == 630
    for said in ("102400", "-1", "50000"):
        limits = net_limits(config(file=f"socket.send.buffer.bytes={said}"))
        assert (limits.wide_send_buffers_max, limits.buffers.send) == (0, int(said))


def test_a_stronger_source_in_another_unit_hides_the_weaker_one() -> None:
    """`--set log.retention.hours` beats the file's `log.retention.ms`, though in one file the finer unit decides."""
    both = config(file="log.retention.ms=5\nlog.retention.hours=2")
    assert both.configured["log.retention.ms"] == "5"
    assert "log.retention.ms" not in config("log.retention.hours=2", file="log.retention.ms=5").configured
    assert config("broker.id=7", file="node.id=3").node_id == 7
    assert config("node.id=8", file="broker.id=3").node_id == 8


def test_environment_variables_without_a_config_are_ignored() -> None:
    """THERMOCLINE_CRASH_AT and the like are not configs; ours are found with and without the doubled prefix."""
    found = config(
        env={"THERMOCLINE_CRASH_AT": "x", "THERMOCLINE_NO_SUCH": "1", "THERMOCLINE_FLUSH": "os", "PATH": "/"}
    )
    assert not found.flush_sync
    assert config(env={"THERMOCLINE_THERMOCLINE_SEAL_MS": "60000"}).seal_ms == 60_000


def test_no_two_configs_share_an_environment_variable() -> None:
    """Every broker config can be set from the environment, unambiguously."""
    names = environment_names()
    assert set(names.values()) == set(BROKER)
    plain = {name.removeprefix("thermocline.").replace(".", "_") for name in BROKER}
    assert len(plain) == len(BROKER)


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    """Exit 2, and the person learns what to write; a topic's name leads to the broker's."""
    with pytest.raises(ConfigError, match=r"'log\.retenton\.ms'.*'log\.retention\.ms'"):
        config("log.retenton.ms=1")
    with pytest.raises(ConfigError, match=r"log\.segment\.bytes"):
        config(file="segment.bytes=1")
    assert nearest_name("qqqqqqqqqqqq") is None


def test_kafkas_other_names_are_accepted_and_listed() -> None:
    """A stock KRaft server.properties starts a broker; what has no effect is named once."""
    found = config(
        file="""
            # from the Kafka distribution
            process.roles=broker,controller
            controller.quorum.bootstrap.servers=localhost:9093
            listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            inter.broker.listener.name=PLAINTEXT
            advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            controller.listener.names=CONTROLLER
            listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
            num.network.threads=3
            socket.listen.backlog.size=50
            rsm.config.dir=/x
            super.users=User:admin
            log.retention.hours=168
        """
    )
    assert found.listeners == (ListenerConfig("PLAINTEXT", "localhost", 9092, "localhost", 9092),)
    assert found.brokers_listener == "BROKERS"
    assert found.ignored == (
        "controller.quorum.bootstrap.servers",
        "num.network.threads",
        "process.roles",
        "rsm.config.dir",
        "socket.listen.backlog.size",
    )


@pytest.mark.parametrize(
    ("text", "host", "port", "name"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0, "PLAINTEXT"),
        ("PLAINTEXT://localhost:9092", "localhost", 9092, "PLAINTEXT"),
        ("[::1]:9092", "::1", 9092, "PLAINTEXT"),
        ("inner://[::1]:9", "::1", 9, "INNER"),
        ("PLAINTEXT://:9092", "", 9092, "PLAINTEXT"),
    ],
)
def test_addresses_are_read_in_both_spellings(text: str, host: str, port: int, name: str) -> None:
    """Kafka's `NAME://host:port` and plain `host:port`."""
    assert parse_address(text, "listeners") == (name, host, port)
    assert parse_address(show_address(host, port), "x")[1:] == (host, port)


@pytest.mark.parametrize("text", ["", "9092", "host", "host:", "host:99999", "a b:1", "http://h:1/x", "::1:9092"])
def test_bad_addresses_are_refused(text: str) -> None:
    """No guess is made about an address."""
    with pytest.raises(InvalidConfig):
        parse_address(text, "listeners")


@pytest.mark.parametrize("address", ["0.0.0.0:9092", ":9092", "192.168.1.4:9092", "kafka.example:9092", "[::]:9092"])
def test_a_public_address_needs_insecure(address: str) -> None:
    """Nothing is served to other machines by accident, neither Kafka nor HTTP."""
    with pytest.raises(ConfigError, match="--insecure"):
        config(f"listeners={address}")
    with pytest.raises(ConfigError, match="--insecure"):
        config(f"thermocline.http={address}")
    assert config(f"listeners={address}", launch=Launch(insecure=True)).listeners[0].port == 9092


@pytest.mark.parametrize(
    "sets",
    [
        ["log.dirs=/a,/b"],
        ["log.cleanup.policy=compact,"],
        ["log.cleaner.threads=0"],
        ["log.cleaner.dedupe.buffer.size=1048576"],
        ["log.cleaner.threads=2", "log.cleaner.dedupe.buffer.size=2097152"],
        ["log.cleaner.io.buffer.load.factor=0"],
        ["log.cleaner.io.buffer.load.factor=1.1"],
        ["log.cleaner.io.max.bytes.per.second=0"],
        ["log.cleaner.min.cleanable.ratio=2"],
        ["compression.type=brotli"],
        ["compression.lz4.level=18"],
        ["log.retention.ms=1000", "log.local.retention.ms=2000"],
        ["message.max.bytes=-1"],
        ["log.segment.bytes=1000"],
        ["thermocline.flush=maybe"],
        ["thermocline.local.bytes.max=0%"],
        ["thermocline.local.bytes.max=lots"],
        ["thermocline.lease.ms=1500"],
        ["thermocline.lease.interval.ms=2600"],
        ["broker.session.timeout.ms=5000"],
        ["broker.heartbeat.interval.ms=0"],
        ["queued.max.request.bytes=1000"],
        ["num.partitions"],
        ["=1"],
        ["num.partitions=1.5"],
        ["thermocline.bucket=gs://b"],
        ["thermocline.bucket=/data-bucket"],
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(sets: list[str]) -> None:
    """A wrong value never becomes a running broker."""
    with pytest.raises(ConfigError):
        resolve({} if sets[0].startswith("log.dirs") else {"log.dirs": "/data"}, sets, {}, None)


def test_a_data_directory_is_required() -> None:
    """Kafka's default under /tmp is not taken over."""
    with pytest.raises(ConfigError, match="--data-dir"):
        resolve({}, [], {}, None)


def test_the_bucket_defaults_to_a_directory_beside_the_data_directory() -> None:
    """And the broker knows that both tiers share a disk."""
    found = resolve({"log.dirs": "d/x/.."}, [], {}, None, Launch(working_dir="/w"))
    assert (found.data_dir, found.bucket_url, found.bucket_is_default) == ("/w/d", "file:///w/d-bucket", True)
    assert not config("thermocline.bucket=s3://bucket/p").bucket_is_default


@pytest.mark.parametrize("bucket", ["/data", "/data/bucket", "/data/x/../b", "/data%2Fb", "/./data/"])
def test_a_bucket_and_a_data_directory_inside_one_another_are_refused(bucket: str) -> None:
    """Neither may be part of the other, however it is spelled."""
    with pytest.raises(ConfigError, match="inside one another"):
        config(f"thermocline.bucket=file://{bucket}")
    assert config("thermocline.bucket=file:///data-bucket").bucket_url == "file:///data-bucket"


def test_units_are_read_where_the_name_says_time_or_size() -> None:
    """`1h` and `64MiB` become plain numbers, as Kafka shows them."""
    found = config("thermocline.seal.ms=1h30m", "log.segment.bytes=64MiB", "thermocline.local.bytes.max=2GiB")
    assert (found.seal_ms, found.configured["log.segment.bytes"], found.local_bytes_max) == (
        5_400_000,
        "67108864",
        2**31,
    )
    with pytest.raises(ConfigError):
        config("num.partitions=1KiB")


def test_http_can_be_switched_off() -> None:
    """`--no-http` is the empty address."""
    assert config(flags={"thermocline.http": ""}).http_host is None
    assert config().http_port == 9644


def test_every_default_is_inside_its_own_limits() -> None:
    """Including ours that differ from Kafka's, which all say why."""
    for table in (BROKER, TOPIC):
        for definition in table.values():
            definition.parse(definition.default or None)
            assert definition.doc
    for synonyms in TOPIC_SYNONYMS.values():
        assert all(synonym.name in BROKER for synonym in synonyms)
    assert "tiered" in BROKER["log.segment.bytes"].full_doc
    assert broker_definition("listener.name.x.ssl.keystore.location") is not None


def test_properties_are_read_as_java_reads_them() -> None:
    """Comments, continuations, the three separators, escapes, empty values, the last of equal keys."""
    text = "# c\n! c\n a = b \\\n   c\nd:e\nf g\nh\nk\\=1=v\\u00e9\\t\\\\\r\nh=2\nurl=s3://bucket/prefix?x=y\nend\\"
    assert dict(properties_in(text)) == {
        "a": "b c",
        "d": "e",
        "f": "g",
        "h": "2",
        "k=1": "vé\t\\",
        "url": "s3://bucket/prefix?x=y",
        "end": "",
    }
    with pytest.raises(MalformedEscape):
        dict(properties_in("a=\\u12"))


def test_fuzz_a_line_that_is_only_a_backslash_is_continued() -> None:
    """Found by the fuzz target config_text, beside meta.properties' reader: what follows was taken for a comment."""
    assert list(properties_in("\\")) == [("", "")]
    assert list(properties_in("\\\n#a=b")) == [("#a", "b")]


_SAFE = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\#!=:"), min_size=1)


@given(st.dictionaries(_SAFE, _SAFE))
def test_properties_written_plainly_come_back(pairs: dict[str, str]) -> None:
    """What needs no escape is read as it stands."""
    assert dict(properties_in("\n".join(f"{key}={value}" for key, value in pairs.items()))) == pairs


@given(st.text(max_size=200))
def test_no_text_breaks_the_properties_reader(text: str) -> None:
    """Any file is read or refused by name."""
    try:
        dict(properties_in(text))
    except MalformedEscape as refused:
        assert str(refused)


@pytest.mark.parametrize(("name", "unit"), [("log.segment.bytes", "KiB"), ("log.retention.ms", "h")])
def test_fuzz_a_number_of_thousands_of_digits_is_refused(name: str, unit: str) -> None:
    """Found beside the fuzz target config_text: Python's own limit on digits came out as a ValueError."""
    with pytest.raises(InvalidConfig):
        BROKER[name].with_units("9" * 4400 + unit)


@given(st.integers(0, 2**60))
def test_durations_come_back(duration_ms: int) -> None:
    """What is shown is exact."""
    assert parse_duration_ms(show_duration(duration_ms)) == duration_ms


@given(st.integers(0, 2**50))
def test_sizes_come_back_about(size: int) -> None:
    """What is shown is within its rounding."""
    assert abs(parse_size(show_size(size)) - size) <= max(size * 0.06, 1)


@pytest.mark.parametrize("text", ["", "5", "h", "1x", "1h 5", "-1s", "1e3s"])
def test_bad_durations_are_refused(text: str) -> None:
    """A number without a unit is ambiguous."""
    with pytest.raises(InvalidRequest):
        parse_duration_ms(text)


# Read from BrokerConfig by nothing yet; a name may leave this list, none may join it.
NOT_WIRED_YET: frozenset[str] = frozenset()


def test_every_field_of_the_config_is_used_by_something() -> None:
    """A config that is called honoured and has no effect would be a lie told to an operator."""
    files = [path for room in ("broker", "tiering", "thermocline") for path in (ROOT / room).rglob("*.py")]
    outside = "\n".join(path.read_text() for path in files if path.name not in ("broker_config.py", "resolve.py"))
    unused = {name for name in BrokerConfig.__struct_fields__ if not re.search(rf"\.{name}\b", outside)}
    assert unused <= NOT_WIRED_YET


def test_offsets_snapshot_interval_default_is_that_of_the_guarantee() -> None:
    """Two defaults of one config, 7.5 and 10 s, made G10 (10 s with the next check and the write) false."""
    resolved = config()
    compared = 0
    for found, plain in ((resolved.groups, GroupConfig()), (resolved.transactions, TransactionConfig())):
        for name, hint in type(plain).__annotations__.items():
            if hint.startswith("Annotated"):
                assert getattr(found, name) == getattr(plain, name), name
                compared += 1
    assert compared > 10
    assert resolved.groups.snapshot_interval_ms * 1.25 < 10_000


def test_the_lease_is_as_long_as_the_kind_of_bucket_lets_it_be() -> None:
    """A bump costs a request of S3, and two small files of a directory; either is changed by its config."""
    on_directory, on_s3 = config().times, config("thermocline.bucket=s3://bucket/prefix").times
    assert (on_directory.interval_s, on_directory.lease_s) == (1.0, 5.0)
    assert (on_s3.interval_s, on_s3.lease_s) == (3.0, 10.0)
    assert config("thermocline.lease.ms=60000").times.lease_s == 60.0
    quick = config("broker.session.timeout.ms=1500", "broker.heartbeat.interval.ms=250").times
    assert (quick.session_s, quick.parked_s, quick.closed_s, quick.heard_s) == (1.5, 0.25, 0.375, 0.5)
