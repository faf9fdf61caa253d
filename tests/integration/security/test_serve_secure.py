"""`serve --secure`: one command makes a cluster that tools and stock clients reach by a password, and nobody else."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from logformat.properties import properties_in
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import QUICK, json_lines, thermocline
from tests.support.waiting import wait_until
from thermocline.cli.serve.secure.directory import JOIN
from thermocline.cli.terminal.outcome import Exit

pytestmark = pytest.mark.timeout(180)


class Cluster:
    """Brokers below `directory`, on one bucket; the first one makes the cluster."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bucket = f"file://{directory}/bucket"
        self.first = directory / "one"

    def broker(self, name: str = "one", *flags: str) -> AbstractContextManager[BrokerProcess]:
        return running_broker(self.directory / name, self.bucket, "--secure", *flags, settings=QUICK)

    def cli(self, broker: BrokerProcess, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        admin = str(self.first / "admin.properties")
        return thermocline(*words, "-b", broker.kafka, "--command-config", admin, stdin=stdin)

    def librdkafka(
        self, broker: BrokerProcess, user: str = "admin", password: str | None = None
    ) -> dict[str, str | int]:
        given = dict(properties_in((self.first / "admin.properties").read_text()))
        secret = password or given["sasl.jaas.config"].split('password="')[1].partition('"')[0]
        template = (self.first / "client.librdkafka.properties").read_text()
        lines = template.replace("USER", user).replace("PASSWORD", secret).splitlines()
        found = {name: value for name, _, value in (line.partition("=") for line in lines)}
        return {**found, "bootstrap.servers": broker.kafka, "log_level": 0}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def produced(config: dict[str, str | int], topic: str, count: int) -> None:
    failures: list[KafkaError] = []
    producer = Producer({**config, "message.timeout.ms": 30_000})
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(40) == 0 and not failures, failures


def consumed(config: dict[str, str | int], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        wait_until(lambda: _take(consumer, found) >= count, 60)
    finally:
        consumer.close()
    return found


def _take(consumer: Consumer, found: list[bytes]) -> int:
    for message in consumer.consume(500, 0.5):
        assert message.error() is None, message.error()
        found.append(message.value())
    return len(found)


def test_the_first_user_reaches_everything_and_strangers_nothing(cluster: Cluster) -> None:
    with cluster.broker() as broker:
        assert cluster.cli(broker, "topic", "create", "t").returncode == Exit.DONE
        produced(cluster.librdkafka(broker), "t", 1000)
        assert sorted(consumed(cluster.librdkafka(broker), "t", 1000)) == sorted(b"%d" % n for n in range(1000))
        for wrong in (cluster.librdkafka(broker, password="guess"), cluster.librdkafka(broker, "nobody", "x")):
            with pytest.raises(KafkaException):
                AdminClient(wrong).list_topics(timeout=4)
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0}).list_topics(timeout=4)
        host, _, port = broker.kafka.rpartition(":")
        with socket.create_connection((host, int(port)), 5) as plain:
            plain.sendall(bytes.fromhex("0000000a00120000000000010000"))  # ApiVersions, in clear
            plain.settimeout(15)
            assert plain.recv(100)[:1] in (b"", b"\x15"), "no answer but an alert, or the end"


def test_the_http_port_wants_its_token_and_our_tools_have_it(cluster: Cluster) -> None:
    with cluster.broker() as broker:
        assert cluster.cli(broker, "topic", "create", "t").returncode == Exit.DONE
        produced(cluster.librdkafka(broker), "t", 100)
        sealed = cluster.cli(broker, "tier", "seal", "--wait")
        assert sealed.returncode == Exit.DONE and "everything is in the bucket" in sealed.stderr, sealed.stderr
        assert cluster.cli(broker, "cluster", "status").returncode == Exit.DONE
        (known, *_) = json_lines(cluster.cli(broker, "tier", "status", "--json").stdout)
        assert known["cold_bytes"] is not None, "it comes from the HTTP port"
        trusting = ssl.create_default_context(cafile=str(cluster.first / "security" / "ca.pem"))
        for path in ("/status", "/metrics"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"https://{broker.http}{path}", timeout=10, context=trusting)
        with urllib.request.urlopen(f"https://{broker.http}/readyz", timeout=10, context=trusting) as ready:
            assert ready.status == 200, "an orchestrator's question needs no secret"


def test_a_user_may_do_what_acls_allow(cluster: Cluster) -> None:
    with cluster.broker() as broker:
        for name in ("mine", "theirs"):
            assert cluster.cli(broker, "topic", "create", name).returncode == Exit.DONE
        secret = cluster.directory / "secret"
        secret.write_text("correct horse\n")
        assert cluster.cli(broker, "user", "add", "alice", "--password-file", str(secret)).returncode == Exit.DONE
        alice = cluster.librdkafka(broker, "alice", "correct horse")
        with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
            produced(alice, "mine", 1)
        allow = ("acl", "add", "--allow-principal", "User:alice", "--operation", "Write", "--topic", "mine")
        added = cluster.cli(broker, *allow)
        assert added.returncode == Exit.DONE, added.stderr
        produced(alice, "mine", 10)
        with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
            produced(alice, "theirs", 1)
        own = cluster.directory / "alice.properties"
        admin = (cluster.first / "admin.properties").read_text()
        own.write_text(
            "\n".join(line for line in admin.splitlines() if not line.startswith("sasl.jaas"))
            + '\nsasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice"'
            + ' password="correct horse";\n'
        )
        listed = thermocline("user", "list", "-b", broker.kafka, "--command-config", str(own))
        assert listed.returncode == Exit.FAILED and "it needs Describe on the cluster" in listed.stderr, listed
        assert cluster.cli(broker, "user", "list").returncode == Exit.DONE
        assert cluster.cli(broker, "user", "delete", "alice", "--yes").returncode == Exit.DONE
        with pytest.raises(KafkaException):
            AdminClient(alice).list_topics(timeout=4)


def test_keys_users_and_records_are_there_after_kill_9(cluster: Cluster) -> None:
    with cluster.broker() as broker:
        assert cluster.cli(broker, "topic", "create", "t").returncode == Exit.DONE
        produced(cluster.librdkafka(broker), "t", 100)
        broker.kill()
    with cluster.broker() as broker:
        assert len(consumed(cluster.librdkafka(broker), "t", 100)) == 100


def test_a_secured_directory_is_not_served_openly_because_a_flag_was_forgotten(cluster: Cluster) -> None:
    with cluster.broker():
        pass
    words = ("serve", "--data-dir", str(cluster.first), "--bucket", cluster.bucket, "--no-http")
    refused = thermocline(*words, "--listen", "127.0.0.1:0")
    assert refused.returncode == Exit.REFUSED and "add --secure" in refused.stderr


def test_a_broker_joins_by_the_file_and_not_without_it(cluster: Cluster) -> None:
    with cluster.broker() as broker:
        refused = subprocess.run(
            [
                *(sys.executable, "-m", "thermocline", "serve", "--secure"),
                *("--data-dir", str(cluster.directory / "two"), "--bucket", cluster.bucket),
                *("--node-id", "2", "--no-http", "--listen", "127.0.0.1:0"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused.returncode == Exit.REFUSED and "--join" in refused.stderr
        assert not (cluster.directory / "two" / "security").exists()
        with cluster.broker("two", "--node-id", "2", "--join", str(cluster.first / JOIN)) as second:
            made = cluster.cli(second, "topic", "create", "t", "-r", "2", "-p", "4")
            assert made.returncode == Exit.DONE, made.stderr
            produced(cluster.librdkafka(second), "t", 1000)
            broker.kill()
            found = consumed(cluster.librdkafka(second), "t", 1000)
            assert sorted(set(found)) == sorted(b"%d" % n for n in range(1000))


def test_a_stranger_with_another_authority_is_no_broker(cluster: Cluster) -> None:
    """Its certificate is refused, so it joins nothing though it has the bucket."""
    other = Cluster(cluster.directory / "other")
    with other.broker():
        pass
    with cluster.broker() as broker:
        with running_broker(
            cluster.directory / "two",
            cluster.bucket,
            "--secure",
            *("--node-id", "2", "--join", str(other.first / JOIN)),
            settings=QUICK,
            wait_ready=False,
        ) as second:
            wait_until(lambda: "certificate" in second.log().lower().split("new certificate of broker 2")[-1], 60)
            assert not second.ready
        listed = cluster.cli(broker, "cluster", "status", "--json")
        assert '"node": 2' not in listed.stdout
