"""`serve --brokers N`: numbers, directories, addresses, budgets, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.sources import ConfigError
from thermocline.cli.main import parser
from thermocline.cli.serve.brokers_found import Layout, count_of, directory_of, layout_of, node_id_of
from thermocline.cli.serve.brokers_plan import Child, plan, ready_line, shares
from thermocline.cli.serve.process import configure

MIB = 1 << 20
NOTHING = Layout(single=False)


def planned(*flags: str, count: int = 3) -> tuple[Child, ...]:
    given = parser().parse_args(["serve", "--data-dir", "/d", *flags])
    return plan(configure(given, {}), given, count)


def resolved(child: Child) -> BrokerConfig:
    """What the child makes of what it is told."""
    return configure(parser().parse_args(child.arguments), {})


def said(*flags: str, count: int = 3) -> str:
    with pytest.raises(ConfigError) as refused:
        planned(*flags, count=count)
    return str(refused.value)


# -- what each of them is told -----------------------------------------------------------------------------------------


def test_numbers_directories_and_ports_are_in_a_row() -> None:
    """The bucket is one, beside the directory of all."""
    children = planned("--node-id", "4", "--listen", "127.0.0.1:9092", "--http", "127.0.0.1:9644")
    found = [resolved(child) for child in children]
    assert [one.node_id for one in found] == [4, 5, 6]
    assert [one.data_dir for one in found] == ["/d/broker-4", "/d/broker-5", "/d/broker-6"]
    assert [one.listeners[0].port for one in found] == [9092, 9093, 9094]
    assert [(one.http_host, one.http_port) for one in found] == [("127.0.0.1", port) for port in (9644, 9645, 9646)]
    assert {one.bucket_url for one in found} == {"file:///d-bucket"}
    assert [one.internal.port for one in found if one.internal] == [0, 0, 0]
    assert {at.port for at in children[2].addresses} == {9094, 9646}


def test_every_listener_and_what_it_advertises_moves_along() -> None:
    """Kafka's words for several; port 0 is picked by each; IPv6 keeps its brackets."""
    flags = (
        *("--set", "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT"),
        *("--set", "listeners=IN://[::1]:9092,OUT://0.0.0.0:0"),
        *("--advertise", "IN://in.example:19092,OUT://out.example:29092"),
        *("--insecure", "--internal", "10.0.0.5:7000", "--no-http", "--rack", "a"),
    )
    first, _, third = planned(*flags)
    assert [one[:5] for one in resolved(first).listeners] == [
        ("IN", "::1", 9092, "in.example", 19092),
        ("OUT", "0.0.0.0", 0, "out.example", 29092),
    ]
    found = resolved(third)
    assert [one[2:5] for one in found.listeners] == [(9094, "in.example", 19094), (0, "out.example", 29094)]
    assert found.internal is not None and found.internal.port == 7002
    assert (found.http_host, found.rack) == (None, "a")
    assert [(at.flag, at.port) for at in third.addresses] == [("--listen", 9094), ("--internal", 7002)]


def test_what_was_set_goes_to_all_and_flags_tell_them_apart(tmp_path: Path) -> None:
    """A file and --set with the names of flags do not make them alike."""
    file = tmp_path / "server.properties"
    file.write_text("broker.id=9\nlisteners=PLAINTEXT://127.0.0.1:1000\nlog.dirs=/elsewhere\nnum.partitions=5\n")
    flags = ("--config", str(file), "--set", "log.dirs=/other", "--set", "log.segment.bytes=1MiB", "--take-over")
    given = parser().parse_args(["serve", *flags, "--bucket", "file:///b"])
    first, second = plan(configure(given, {}), given, 2)
    found = resolved(second)
    assert (found.node_id, found.data_dir, found.listeners[0].port) == (10, "/other/broker-10", 1001)
    assert (found.num_partitions, found.configured["log.segment.bytes"]) == (5, "1048576")
    assert (found.bucket_url, found.take_over) == ("file:///b", True)
    again = first.at_addresses({"kafka": "127.0.0.1:1000", "http": "127.0.0.1:7777"})
    assert "--take-over" in first.arguments and "--take-over" not in again.arguments


def test_a_broker_that_picked_its_ports_is_started_again_on_them() -> None:
    """Clients have its addresses from the ready line."""
    child = planned("--listen", "[::1]:0", "--http", "127.0.0.1:0")[0]
    assert child.addresses == ()
    again = resolved(child.at_addresses({"kafka": "[::1]:40001", "http": "127.0.0.1:40002"}))
    assert (again.listeners[0].host, again.listeners[0].port, again.http_port) == ("::1", 40001, 40002)
    none = planned("--no-http")[0].at_addresses({"kafka": "127.0.0.1:9092", "http": "-"})
    assert resolved(none).http_host is None
    several = child.at_addresses({"kafka": "x", "http": "127.0.0.1:1", "listeners": "A://127.0.0.1:5,B://127.0.0.1:6"})
    assert several.listeners == "A://127.0.0.1:5,B://127.0.0.1:6"


def test_budgets_are_divided() -> None:
    """Memory and disk of one broker, in parts; the 80 % rule stays, and each answers for its share of it (D59)."""
    found = resolved(planned("--set", "queued.max.request.bytes=512MiB", "--set", "thermocline.cache.bytes=9GiB")[1])
    assert found.inflight_request_bytes_max == 512 * MIB // 3
    assert found.cache_bytes_max == 3 << 30
    assert found.cold_fetch_bytes_max == 64 * MIB // 3
    assert (found.local_bytes_max, found.local_space_ratio_max, found.brokers_on_disk) == (None, 0.8, 3)
    given = ("thermocline.local.bytes.max=30GiB", "queued.max.request.bytes=-1", "thermocline.brokers.on.disk=2")
    found = resolved(planned(*(word for pair in given for word in ("--set", pair)))[0])
    assert (found.local_bytes_max, found.inflight_request_bytes_max) == (10 << 30, None)
    assert found.brokers_on_disk == 6


def test_no_part_is_smaller_than_what_a_broker_needs() -> None:
    """The largest request fits, and a cold read gets its MiB."""
    given = parser().parse_args(["serve", "--data-dir", "/d", "--set", "thermocline.cold.fetch.bytes.max=2MiB"])
    found = shares(configure(given, {}), 8)
    assert found["queued.max.request.bytes"] == 100 * MIB
    assert found["thermocline.cold.fetch.bytes.max"] == MIB


def test_ports_that_two_would_have_or_that_do_not_exist_are_refused() -> None:
    two = ("--set", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT")
    close = ("--set", "listeners=A://127.0.0.1:9092,B://127.0.0.1:9094")
    assert "127.0.0.1:9094 would be --listen of broker 1 and --listen of broker 3" in said(*two, *close)
    assert planned(*two, *close, count=2)
    assert "--http of broker 1 and --listen of broker 2" in said("--http", "127.0.0.1:9093")
    assert "broker 3 would need port 65536" in said("--listen", "127.0.0.1:65534")
    assert "is too high for 3 brokers" in said("--node-id", str(2**31 - 2))


def test_the_ready_line_has_lists() -> None:
    children = planned("--listen", "127.0.0.1:0", count=2)
    told = {
        1: {"kafka": "127.0.0.1:1", "http": "127.0.0.1:2", "cluster": "c", "bucket": "file:///d-bucket"},
        2: {"kafka": "127.0.0.1:3", "http": "127.0.0.1:4", "cluster": "c", "bucket": "file:///d-bucket"},
    }
    assert ready_line(children, told, "/d") == (
        "ready kafka=127.0.0.1:1,127.0.0.1:3 http=127.0.0.1:2,127.0.0.1:4 node=1-2 cluster=c data=/d "
        "bucket=file:///d-bucket"
    )
    assert " data=/a%20dir%25 bucket=" in ready_line(children, told, "/a dir%")
    both = {node_id: line | {"http": "-", "listeners": f"A://h:{node_id}"} for node_id, line in told.items()}
    line = ready_line(planned("--no-http", count=2), both, "/d")
    assert " http=- node=1-2 " in line and line.endswith(" listeners=A://h:1,A://h:2")


# -- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "layout", "cores", "count"),
    [
        (None, NOTHING, 8, None),
        ("1", NOTHING, 8, None),
        ("3", NOTHING, 1, 3),
        ("auto", NOTHING, 2, None),
        ("auto", NOTHING, 5, 4),
        ("auto", NOTHING, 64, 8),
        ("auto", Layout(single=True), 64, None),
        (None, Layout(single=True), 64, None),
        ("1", Layout(single=True), 64, None),
        ("auto", Layout(False, (1, 2, 3)), 64, 3),
        ("auto", Layout(False, (1, 3)), 64, 3),
        ("3", Layout(False, (1, 2, 3)), 1, 3),
        ("5", Layout(False, (1, 2, 3)), 1, 5),
        ("1", Layout(False, (1,)), 8, 1),
    ],
)
def test_how_many(text: str | None, layout: Layout, cores: int, count: int | None) -> None:
    """None: one broker in the directory itself, as without the flag."""
    assert count_of(text, layout, 1, cores, "/d") == count


@pytest.mark.parametrize(
    ("text", "layout", "first", "words"),
    [
        ("2", Layout(single=True), 1, "/d holds the log of one broker, so --brokers 2 cannot use it"),
        (
            None,
            Layout(False, (1, 2)),
            1,
            "/d holds brokers 1, 2, started by --brokers: start them with --brokers 2 again",
        ),
        ("2", Layout(False, (1, 2, 3)), 1, "would leave out 3, and records that only they hold would be unavailable"),
        ("3", Layout(False, (1, 2, 3)), 3, "would leave out 1, 2"),
        ("auto", Layout(False, (1,)), 7, "would leave out 1"),
    ],
)
def test_a_directory_of_other_brokers_is_refused(text: str | None, layout: Layout, first: int, words: str) -> None:
    """A lone broker on the directory of several would be an empty replacement of the first: everything it held counts
    as lost."""
    with pytest.raises(ConfigError, match=words):
        count_of(text, layout, first, 8, "/d")


def test_what_lies_in_a_directory(tmp_path: Path) -> None:
    """A directory `broker-1` is a broker's when it was formatted as one; else it is partition 1 of a topic `broker`."""
    data = tmp_path / "data"
    assert layout_of(str(data)) == NOTHING
    for name in ("broker-1", "broker-02", "broker-x", "broker-12", "orders-0"):
        (data / name).mkdir(parents=True)
    assert layout_of(str(data)) == NOTHING
    for name in ("broker-12", "broker-02", "broker-1"):
        (data / name / "meta.properties").touch()
    assert layout_of(str(data)) == Layout(False, (1, 12))
    (data / "meta.properties").touch()
    assert layout_of(str(data)) == Layout(single=True)
    assert node_id_of(Path(directory_of("/d", 12)).name) == 12
    assert [node_id_of(name) for name in ("broker-", "broker", "-1", "broker-1-0", "broker-99999999999")] == [None] * 5


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5"])
def test_what_is_no_number_of_brokers_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parser().parse_args(["serve", f"--brokers={text}"])
    assert left.value.code == 2 and "--brokers" in capsys.readouterr().err
