"""`serve --secure`: one command makes a cluster that tools and stock clients reach by a password, and nobody else."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.cluster_root import ClusterRoot
from logformat.properties import properties_in
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import QUICK, json_lines, thermocline
from tests.support.waiting import wait_until
from thermocline.cli.bucket.reading import Bucket, with_bucket
from thermocline.cli.serve.secure.authority import Authority
from thermocline.cli.serve.secure.directory import JOIN, SecuredDirectory
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
        for words in ("added alice", "changed the password of alice"):
            added = cluster.cli(broker, "user", "add", "alice", "--password-file", str(secret))
            assert (added.returncode, added.stdout) == (Exit.DONE, f"{words}: SCRAM-SHA-512\n"), added.stderr
        more = cluster.cli(
            broker, "user", "add", "alice", "--password-file", str(secret), "--mechanism", "SCRAM-SHA-256"
        )
        assert more.stdout == "added alice: SCRAM-SHA-256\n"
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
        open_before = Producer({**alice, "message.timeout.ms": 30_000})
        assert open_before.list_topics("mine", timeout=10).topics["mine"].error is None
        assert cluster.cli(broker, "acl", "delete", "--principal", "User:alice", "--yes").returncode == Exit.DONE
        failures: list[KafkaError | None] = []
        open_before.produce("mine", b"late", on_delivery=lambda error, _: failures.append(error))
        open_before.flush(30)
        assert [error and error.code() for error in failures] == [KafkaError.TOPIC_AUTHORIZATION_FAILED], (
            "an open connection may do nothing more"
        )
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


def test_a_file_of_another_cluster_is_refused_at_once(cluster: Cluster) -> None:
    """The start repeated `certificate verify failed` at INFO and never ended. With the right file the same directory
    joins; where no broker answers, nothing is known, and the start waits."""
    other = Cluster(cluster.directory / "other")
    with other.broker():
        pass
    wrong = ("--node-id", "2", "--join", str(other.first / JOIN))
    two = cluster.directory / "two"
    with cluster.broker() as broker:
        with running_broker(two, cluster.bucket, "--secure", *wrong, settings=QUICK, wait_ready=False) as second:
            assert second.wait() == Exit.REFUSED
            assert f"{other.first / JOIN} is of another cluster: its CA is not that of broker 1" in second.log()
        assert not (two / "security").exists()
        with cluster.broker("two", "--node-id", "2", "--join", str(cluster.first / JOIN)):
            assert '"node": 2' in cluster.cli(broker, "cluster", "status", "--json").stdout


def test_a_stranger_with_another_authority_is_no_broker(cluster: Cluster) -> None:
    """Its certificate is refused, so it joins nothing though it has the bucket. Its start does not know: the files were
    in its directory already."""
    other = Cluster(cluster.directory / "other")
    with other.broker():
        pass
    SecuredDirectory(cluster.directory / "two").join(other.first / JOIN)
    with cluster.broker() as broker:
        with running_broker(
            cluster.directory / "two",
            cluster.bucket,
            "--secure",
            *("--node-id", "2"),
            settings=QUICK,
            wait_ready=False,
        ) as second:
            wait_until(lambda: "certificate" in second.log().lower().split("new certificate of broker 2")[-1], 60)
            assert not second.ready
        listed = cluster.cli(broker, "cluster", "status", "--json")
        assert '"node": 2' not in listed.stdout


def test_a_client_certificate_of_the_clusters_authority_is_a_client_on_the_brokers_port(cluster: Cluster) -> None:
    """It is accepted as its subject, and has the rights of that principal's ACLs: it is no broker. Only a subject that
    is exactly CN=broker-N is one, which is why the authority signs for brokers only."""
    with cluster.broker() as broker:
        assert cluster.cli(broker, "topic", "create", "t").returncode == Exit.DONE
        security = cluster.first / "security"
        authority = Authority.read((security / "ca.pem").read_bytes(), (security / "ca-key.pem").read_bytes())
        config = {"security.protocol": "ssl", "ssl.ca.location": str(security / "ca.pem"), "log_level": 0}
        config["bootstrap.servers"] = with_bucket(cluster.bucket, brokers_address)

        def admin(name: str) -> AdminClient:
            file = cluster.directory / f"{name}.pem"
            file.write_bytes(authority.issue(name, ["client.example"], datetime.now(UTC)))
            config.update({"ssl.certificate.location": str(file), "ssl.key.location": str(file)})
            return AdminClient(config)

        def refusal(client: AdminClient, topic: str) -> int | None:
            try:
                client.create_topics([NewTopic(topic, 1)])[topic].result(30)
            except KafkaException as refused:
                return int(refused.args[0].code())
            return None

        alice = admin("alice")
        assert "t" not in alice.list_topics(timeout=20).topics
        assert refusal(alice, "by-alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        allow = ("acl", "add", "--allow-principal", "User:CN=alice", "--operation", "Describe", "--topic", "t")
        assert cluster.cli(broker, *allow).returncode == Exit.DONE
        assert "t" in alice.list_topics(timeout=20).topics
        for name in ("thermocline-broker", "xbroker-7", "broker-7x"):
            assert refusal(admin(name), "by-name") == KafkaError.TOPIC_AUTHORIZATION_FAILED, name
        assert refusal(admin("broker-7"), "by-broker") is None, "this subject is a broker's"


async def brokers_address(bucket: Bucket) -> str:
    """Where broker 1 listens to brokers."""
    world = bucket.world
    found = await ClusterRoot(bucket.store, world.rng, world.clock, world.workers).load()
    assert found is not None
    (place,) = [one for one in found.image.nodes[1].listeners if one.name == "BROKERS"]
    return f"{place.host}:{place.port}"
