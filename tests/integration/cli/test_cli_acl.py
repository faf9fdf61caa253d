"""`thermocline acl` against a broker with an authorizer, and a stock client that its ACLs let through or not."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer

from tests.support.processes.site import QUICK, Site, json_lines
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NAMES = ["resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"]
RIGHTS = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}


def test_acls_are_added_listed_and_deleted(tmp_path: Path) -> None:
    """Names and exit codes of the page docs/cli.md."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), {**QUICK, **RIGHTS})
    with site.broker() as broker:
        at = ("-b", broker.kafka)
        who = ("--allow-principal", "User:alice")
        added = site.cli("acl", "add", *who, "--producer", "--topic", "orders", *at)
        assert added.returncode == 0 and "IDEMPOTENT" not in added.stdout and added.stdout.count("User:alice") == 3
        assert site.cli("acl", "add", *who, "--operation", "Read", "--topic", "or", "--prefixed", *at).returncode == 0
        rows = json_lines(site.cli("acl", "list", "--topic", "orders", "--matching", "--json", *at).stdout)
        assert [list(row) for row in rows] == [NAMES] * 4
        assert {row["operation"] for row in rows} == {"WRITE", "DESCRIBE", "CREATE", "READ"}
        literal = json_lines(site.cli("acl", "list", "--topic", "orders", "--json", *at).stdout)
        assert len(literal) == 3
        gone = site.cli("acl", "delete", *who, "--producer", "--topic", "orders", "--yes", *at)
        assert gone.stdout == "deleted 3 ACLs\n"
        assert site.cli("acl", "delete", "--topic", "nowhere", "--yes", *at).stdout == "deleted 0 ACLs\n"
        left = json_lines(site.cli("acl", "list", "--json", *at).stdout)
        assert [(row["resource_name"], row["pattern_type"]) for row in left] == [("or", "PREFIXED")]
        for words in (("--allow-principal", "--topic", "a"), ("--deny-principal", "--group", "b")):
            assert site.cli("acl", "add", words[0], "User:alice", *words[1:], *at).returncode == 0
        assert site.cli("acl", "add", "--allow-principal", "User:bob", "--topic", "a", *at).returncode == 0
        both = site.cli("acl", "delete", "--principal", "User:alice", "--topic", "a", "--yes", *at)
        assert both.returncode == 2 and "stands for all ACLs" in both.stderr
        every = site.cli("acl", "delete", "--principal", "User:alice", "--yes", *at)
        assert every.stdout == "deleted 3 ACLs\n", "of a prefix, of a topic, and one that denies"
        left = json_lines(site.cli("acl", "list", "--json", *at).stdout)
        assert [row["principal"] for row in left] == ["User:bob"]
        assert 'event=acls principal="User:ANONYMOUS"' in broker.log()


def test_without_an_authorizer_it_says_how_to_have_one(tmp_path: Path) -> None:
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    with site.broker() as broker:
        refused = site.cli("acl", "list", "-b", broker.kafka)
        assert refused.returncode == 1 and "authorizer.class.name=" in refused.stderr


def test_a_stock_client_does_what_its_acls_say(tmp_path: Path) -> None:
    """A first life makes topic and ACLs as super user; in the second the same client has only those ACLs. A producer
    and a consumer work; another topic, and another group, are refused by name."""
    bucket = DirectoryBucket(tmp_path / "bucket")
    with Site(tmp_path, bucket, {**QUICK, **RIGHTS}).broker() as broker:
        at, who = ("-b", broker.kafka), ("--allow-principal", "User:ANONYMOUS")
        site = Site(tmp_path, bucket)
        for topic in ("orders", "secret"):
            assert site.cli("topic", "create", topic, "-p", "1", *at).returncode == 0
        for words in (("--producer",), ("--consumer", "--group", "billing")):
            assert site.cli("acl", "add", *who, *words, "--topic", "orders", *at).returncode == 0
        assert broker.stop() == 0
    with Site(tmp_path, bucket, {**QUICK, "authorizer.class.name": STANDARD}).broker() as broker:
        failed: list[object] = []
        producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
        for topic in ("orders", "secret"):
            producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error and error.code()))
            producer.flush(30)
        assert failed == [None, KafkaError.TOPIC_AUTHORIZATION_FAILED]

        def first(group: str) -> tuple[bytes | None, int | None]:
            consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group, "auto.offset.reset": "earliest"})
            consumer.subscribe(["orders"])
            found: list[tuple[bytes | None, int | None]] = []

            def came() -> bool:
                message = consumer.poll(0.2)
                if message is not None:
                    error = message.error()
                    found.append((None, error.code()) if error is not None else (message.value(), None))
                return bool(found)

            wait_until(came, f"a record or an error of {group}", 30.0)
            consumer.close()
            return found[0]

        assert first("billing") == (b"x", None)
        assert first("other") == (None, KafkaError.GROUP_AUTHORIZATION_FAILED)
