"""`thermocline produce` and `consume` against running brokers: what is refused and why, topics made on the way, JSON
lines, times. One broker serves the module but for scenes that spoil it."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from broker.wire import codec, framing
from broker.wire.apis import ApiKey
from broker.wire.messages import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic
from logformat.records import Record, encode_batch
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until
from thermocline.cli.clients.librdkafka_names import NAMES, nearest

USAGE = 2
NOON_MS = 1_793_534_400_000  # 2026-11-01T12:00Z


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    home = tmp_path_factory.mktemp("records")
    with Site(home, DirectoryBucket(home / "bucket")).broker("a", "--set", "num.partitions=3") as running:
        yield running


def produce(broker: BrokerProcess, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return thermocline("produce", *arguments, "-b", broker.kafka, stdin=text)


def consume(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return thermocline("consume", *arguments, "-b", broker.kafka)


def create(broker: BrokerProcess, topic: str, *more: str) -> None:
    done = thermocline("topic", "create", topic, "-p", "1", *more, "-b", broker.kafka)
    assert done.returncode == 0, done.stderr


# -- produce ----------------------------------------------------------------------------------------------------------


def test_a_topic_that_produce_makes_is_named(broker: BrokerProcess) -> None:
    """Once, with its partitions; the second time there is nothing to say."""
    first, second = produce(broker, "a\n", "-t", "made"), produce(broker, "b\n", "-t", "made")
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr == "thermocline: topic made did not exist: the broker created it with 3 partitions\n"
    assert second.stderr == ""
    assert sorted(consume(broker, "-t", "made", "-e").stdout.split()) == ["a", "b"]


def test_a_broker_that_makes_no_topics_is_told_apart(tmp_path: Path) -> None:
    """At once, with the command that makes it; not after a minute of silence."""
    with running_broker(tmp_path / "b", None, settings={"auto.create.topics.enable": "false"}) as strict:
        done = produce(strict, "a\n", "-t", "orders")
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no topic orders" in done.stderr and "`thermocline topic create orders`" in done.stderr


def test_what_is_refused_is_named_by_its_line(broker: BrokerProcess) -> None:
    """The first line that was refused, why, what to do, and how many were not: those before it are written."""
    create(broker, "narrow", "-c", "max.message.bytes=2000")
    text = "one\ntwo\n" + "x" * 5000 + "\nfour\n"
    done = produce(broker, text, "-t", "narrow", "-X", "linger.ms=0", "-X", "batch.num.messages=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "line 3 (4.9 KiB) was refused: " in done.stderr and "max.message.bytes" in done.stderr
    assert "3 of 4 records acknowledged, 1 refused" in done.stderr
    assert consume(broker, "-t", "narrow", "-e").stdout.split() == ["one", "two", "four"]


def test_partial_failures_are_counted_and_end_the_reading(broker: BrokerProcess) -> None:
    """A stdin without end is not read on once records are refused: acknowledged + refused = read, and all are told."""
    create(broker, "tiny", "-c", "max.message.bytes=100")
    small = "-X batch.num.messages=100"  # of many small batches some are answered while the rest is read
    script = f"yes {'y' * 200} | {sys.executable} -m thermocline produce -t tiny -b {broker.kafka} {small}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    found = re.search(
        r"; 0 of (\d+) records acknowledged, (\d+) refused, nothing after line (\d+) was read\n", done.stderr
    )
    assert found is not None, done.stderr
    read, refused, last = map(int, found.groups())
    assert read == refused == last > 0


def test_impossible_partitions_and_names_are_told_before_anything_is_read(broker: BrokerProcess) -> None:
    """librdkafka would wait for such topics in silence."""
    create(broker, "single")
    for arguments, said in (
        (("-t", "single", "-p", "1"), "topic single has no partition 1; it has 1, from 0"),
        (("-t", "single", "-p", "2147483647"), "topic single has no partition 2147483647"),
        (("-t", "no/slash"), "a name is 1 to 249"),
    ):
        done = produce(broker, "a\n", *arguments)
        assert done.returncode == 1 and said in done.stderr, done


def test_an_internal_topic_is_told_as_one(broker: BrokerProcess) -> None:
    """Kafka's error for it is that of an invalid name, which it is not."""
    for there in (False, True):
        done = produce(broker, "a\n", "-t", "__consumer_offsets")
        assert done.returncode == 1
        assert "it is internal: the broker alone creates it and writes to it" in done.stderr, there
        create(broker, f"read-{there}")
        assert consume(broker, "-t", f"read-{there}", "-g", "makes-it", "-e").returncode == 0


def test_a_broker_that_refuses_says_why(tmp_path: Path) -> None:
    """Refusals that clients retry end in a time-out: the broker's own condition is told, not only that it was late."""
    settings = {"thermocline.local.bytes.max": "100KiB", "log.retention.check.interval.ms": 100}
    with running_broker(tmp_path / "b", None, settings=settings) as full:
        create(full, "kept", "-c", "remote.storage.enable=false")
        line = "z" * 1000 + "\n"
        assert produce(full, line * 2000, "-t", "kept").returncode == 0  # one go, before the broker looks again

        def refuses() -> bool:
            return "produces_refused" in thermocline("tier", "status", "-b", full.kafka).stdout

        wait_until(refuses, "the broker refuses produces")
        done = produce(full, line * 3, "-t", "kept", "-X", "message.timeout.ms=2000")
        assert done.returncode == 1, done.stderr
        assert "was refused: Local: Message timed out; broker 1: produces_refused: " in done.stderr
        assert "0 of 3 records acknowledged, 3 refused" in done.stderr


def test_more_in_sync_replicas_than_there_are_replicas_keep_nobody_from_writing(broker: BrokerProcess) -> None:
    """min.insync.replicas=2, by habit: with one replica it means one, as in Apache Kafka 4.3.1, and nothing is said."""
    made = thermocline("topic", "create", "habit", "-p", "1", "-c", "min.insync.replicas=2", "-b", broker.kafka)
    assert (made.returncode, made.stderr) == (0, "")
    assert produce(broker, "a\nb\n", "-t", "habit").returncode == 0
    altered = thermocline("topic", "alter", "habit", "-c", "min.insync.replicas=3", "-b", broker.kafka)
    assert (altered.returncode, altered.stderr) == (0, "")


def test_interrupted_it_delivers_what_it_read(broker: BrokerProcess) -> None:
    """^C at a terminal: the lines typed before are records, and are counted; exit 130, no stack trace."""
    create(broker, "typed")
    process = subprocess.Popen(
        [sys.executable, "-m", "thermocline", "produce", "-t", "typed", "-b", broker.kafka],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("a\nb\n")
    process.stdin.flush()
    watch = ("consume", "-t", "typed", "-n", "2", "-b", broker.kafka)
    assert thermocline(*watch).stdout.split() == ["a", "b"]
    process.send_signal(signal.SIGINT)
    code = process.wait(30)  # with stdin open: nothing else ends it
    _, said = process.communicate(timeout=30)
    assert (code, said) == (130, "interrupted: 2 records acknowledged\n")


# -- -X ---------------------------------------------------------------------------------------------------------------

MISTYPED = {
    "misspelt": ("linger.mss=1", "-X linger.mss: librdkafka has no such config; the nearest is linger.ms"),
    "nothing like it": ("qqqqqqqq=1", "-X qqqqqqqq: librdkafka has no such config"),
    "no number": ("socket.timeout.ms=soon", "-X socket.timeout.ms=soon: Invalid value"),
    "a function": ("error_cb=print", "-X error_cb=print: "),
    "another flag's": ("bootstrap.servers=a:1", "-X bootstrap.servers: use -b"),
    "no value": ("linger.ms", "write key=value"),
}


@pytest.mark.parametrize(("pair", "said"), MISTYPED.values(), ids=MISTYPED)
@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_mistyped_client_config_is_exit_2(command: str, pair: str, said: str) -> None:
    """Before any broker is asked; one line (and where the help is), never a stack trace."""
    done = thermocline(command, "-t", "t", "-X", pair, "-b", "127.0.0.1:1", stdin="")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_secret_is_no_argument_and_is_not_repeated() -> None:
    """Not in a list of processes, not on a screen, or in a script's log."""
    done = thermocline("produce", "-t", "t", "-X", "sasl.password=opensesame", "-X", "linger.ms=x", stdin="")
    assert done.returncode == USAGE and "opensesame" not in done.stderr and "--command-config" in done.stderr


@pytest.mark.parametrize("name", ["group.id", "enable.partition.eof", "enable.auto.commit", "auto.offset.reset"])
def test_what_a_flag_of_consume_decides_is_refused(name: str) -> None:
    """-e without partition ends would never end."""
    done = thermocline("consume", "-t", "t", "-X", f"{name}=false", "-b", "127.0.0.1:1")
    assert done.returncode == USAGE and f"-X {name}: " in done.stderr


def test_every_name_of_the_list_is_librdkafkas() -> None:
    """The nearest name must be one that works: each is known to a producer or a consumer."""
    from confluent_kafka import KafkaException

    assert len(NAMES) > 150 and nearest("acsk") == "acks"
    for name in NAMES:
        refusals = []
        for kind, config in ((Producer, {}), (Consumer, {"group.id": "x"})):
            try:
                kind({**config, name: "\x01"})
            except (KafkaException, TypeError, ValueError) as refused:
                refusals.append(str(refused))
            else:
                break
        assert not all("No such configuration property" in refusal for refusal in refusals) or not refusals, name


# -- consume ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(broker: BrokerProcess) -> str:
    """A record a minute from noon on: text, nulls, bytes that are no text, headers twice."""
    create(broker, "odd", "-c", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce("odd", "plain", key="k", timestamp=NOON_MS)
    producer.produce("odd", None, timestamp=NOON_MS + 60_000)
    producer.produce("odd", b"\xff\x00", key=b"\xfe", timestamp=NOON_MS + 120_000)
    headers = [("h", b"1"), ("h", None), ("ü", b"\xff")]
    producer.produce("odd", '{"base64": "/w=="}\n\u2028"é\\', headers=headers, timestamp=NOON_MS + 180_000)  # type: ignore[arg-type]
    assert producer.flush(30) == 0
    return "odd"


def test_json_lines_hold_every_byte(broker: BrokerProcess, odd: str) -> None:
    """Names in their order; text as text, other bytes as an object that no text can be taken for, null as null."""
    done = consume(broker, "-t", odd, "-e", "--json")
    rows = json_lines("\n".join(done.stdout.split("\n")[:-1]).replace("\u2028", "\\u2028"))
    names = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    assert [list(row) for row in rows] == [names] * 4
    assert [row["timestamp"] - NOON_MS for row in rows] == [0, 60_000, 120_000, 180_000]
    assert {(row["topic"], row["partition"], row["timestamp_type"]) for row in rows} == {("odd", 0, "CreateTime")}
    assert [row["key"] for row in rows] == ["k", None, {"base64": "/g=="}, None]
    assert [row["value"] for row in rows[:3]] == ["plain", None, {"base64": "/wA="}]
    assert rows[3]["value"] == '{"base64": "/w=="}\n\u2028"é\\'
    assert rows[3]["headers"] == [["h", "1"], ["h", None], ["ü", {"base64": "/w=="}]]
    assert base64.b64decode(rows[2]["value"]["base64"]) == b"\xff\x00"


def test_json_lines_are_utf_8_on_a_terminal_that_is_not(broker: BrokerProcess, odd: str) -> None:
    """LANG=C changes the words for people, never the data."""
    command = [sys.executable, "-m", "thermocline", "consume", "-t", odd, "-e", "--json", "-b", broker.kafka]
    ascii_only = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    done = subprocess.run(command, capture_output=True, env=ascii_only, timeout=60, check=True)
    assert "é".encode() in done.stdout and len(done.stdout.strip().split(b"\n")) == 4


def test_log_append_time_is_named(broker: BrokerProcess) -> None:
    """Kafka's names for whose clock it was."""
    create(broker, "stamped", "-c", "message.timestamp.type=LogAppendTime")
    assert produce(broker, "a\n", "-t", "stamped").returncode == 0
    (row,) = json_lines(consume(broker, "-t", "stamped", "-e", "--json").stdout)
    assert row["timestamp_type"] == "LogAppendTime" and row["timestamp"] > NOON_MS - 10**12


def test_a_header_name_that_is_no_text_is_told(broker: BrokerProcess) -> None:
    """The client library cannot hand it over: the record is named, what does not ask for headers goes on."""
    create(broker, "misnamed")
    batch = encode_batch([Record(0, NOON_MS, None, b"v", (("n\udcff", b"x"),))])
    partition = ProduceRequestPartition(0, memoryview(batch))
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[ProduceRequestTopic("misnamed", [partition])])
    host, _, port = broker.kafka.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        body = codec.encode_request(ApiKey.PRODUCE, 9, request)
        for part in framing.request_frame(ApiKey.PRODUCE, 9, 1, "test", body):
            connection.sendall(bytes(part))  # type: ignore[arg-type]
        assert connection.recv(1000)
    assert consume(broker, "-t", "misnamed", "-e").stdout == "v\n"
    for look in (("--json",), ("-f", "%h\\n")):
        done = consume(broker, "-t", "misnamed", "-e", *look)
        assert done.returncode == 1 and "misnamed-0 offset 0: a header's name is not UTF-8" in done.stderr, done


def test_a_time_starts_at_the_first_record_not_older(broker: BrokerProcess, odd: str) -> None:
    """In milliseconds, UTC, with an offset, local (which is said aloud), before all and after all."""
    for text, first in {
        f"@{NOON_MS + 60_000}": 1,
        "@2026-11-01T12:01:00.001Z": 2,
        "@2026-11-01T13:03+01:00": 3,
        "@2020-01-01Z": 0,
        "@2030-01-01Z": 4,
    }.items():
        done = consume(broker, "-t", odd, "-o", text, "-e", "-f", "%o ")
        assert (done.returncode, done.stderr) == (0, ""), text
        assert done.stdout.split() == [str(offset) for offset in range(first, 4)], text
    zone = {"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}
    arguments = ("consume", "-t", odd, "-o", "@2026-11-01T13:03", "-e", "-f", "%o", "-b", broker.kafka)
    local = thermocline(*arguments, environment=zone)
    assert local.stdout == "3" and "is local time, 2026-11-01T13:03:00+01:00 (CET)" in local.stderr


@pytest.mark.parametrize(
    "start", ["middle", "@", "@soon", "@2026-13-01", "1.5", "--1", "9223372036854775808", "@" + "9" * 30, "²", ""]
)
def test_a_start_that_is_none_is_exit_2(start: str) -> None:
    """With what to write instead."""
    done = thermocline("consume", "-t", "t", f"-o={start}", "-b", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "@2026-11-01T08:30" in done.stderr or "year 9999" in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr


def test_a_group_whose_topic_goes_away_is_told_what_it_did_not_commit(broker: BrokerProcess) -> None:
    """Deleted while `consume -g` waits for its reader: what was printed cannot be committed. It was a stack trace."""
    create(broker, "leaving")
    assert produce(broker, ("x" * 500 + "\n") * 500, "-t", "leaving").returncode == 0
    command = [sys.executable, "-m", "thermocline", "consume", "-t", "leaving", "-g", "left", "-b", broker.kafka]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # the rest is more than a pipe holds: it waits for us, before it commits
    assert thermocline("topic", "delete", "leaving", "--yes", "-b", broker.kafka).returncode == 0
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and len(said.splitlines()) == 1, said
    assert (
        "group left did not commit the printed records of leaving-0 up to offset " in said and "Traceback" not in said
    )


def test_a_pattern_is_no_topic(broker: BrokerProcess) -> None:
    """librdkafka takes "^…" for a regular expression: the group would read, and commit for, other topics."""
    create(broker, "patterned")
    for more in ((), ("-g", "any")):
        done = consume(broker, "-t", "^pattern.*", "-e", *more)
        assert (done.returncode, done.stdout) == (1, "") and "a name is 1 to 249" in done.stderr


def test_a_member_without_partitions_reaches_the_end(broker: BrokerProcess) -> None:
    """A group with more members than partitions: -e of the one that gets none waited for ever."""
    create(broker, "shared")
    assert produce(broker, "a\nb\n", "-t", "shared").returncode == 0
    command = [sys.executable, "-m", "thermocline", "consume", "-t", "shared", "-g", "crowd", "-b", broker.kafka]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline() == "a\n"
        done = consume(broker, "-t", "shared", "-g", "crowd", "-e")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)  # whichever of the two has the partition now
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
