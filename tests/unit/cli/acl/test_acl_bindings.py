"""What `thermocline acl` makes of its words: bindings, filters, and refusals of what cannot be meant."""

from __future__ import annotations

import pytest

from broker.metadata.records import Acl
from broker.security.authorizer.acl_filter import AclFilter
from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType
from tests.support.repository import ROOT
from thermocline.cli.acl.bindings import (
    Resource,
    Wanted,
    bindings,
    deletions,
    filters,
    parse_operation,
    parse_principal,
)
from thermocline.cli.acl.command import _row
from thermocline.cli.main import main

TOPIC = Resource(ResourceType.TOPIC, "orders")
GROUP = Resource(ResourceType.GROUP, "billing")
TXN = Resource(ResourceType.TRANSACTIONAL_ID, "t")


def wanted(*resources: Resource, **more: object) -> Wanted:
    given = {"allowed": ("User:a",), "denied": (), "hosts": (), "operations": (), "prefixed": False} | more
    return Wanted(resources, **given)  # type: ignore[arg-type]


def told(acls: list[Acl]) -> set[tuple[str, str, str]]:
    return {(row[0], row[1], row[5]) for row in map(_row, acls)}


def test_a_producer_is_what_kafka_acls_makes_of_it() -> None:
    found = told(bindings(wanted(TOPIC, TXN, produces=True, idempotent=True)))
    assert found == {
        *(("TOPIC", "orders", operation) for operation in ("WRITE", "DESCRIBE", "CREATE")),
        *(("TRANSACTIONAL_ID", "t", operation) for operation in ("WRITE", "DESCRIBE")),
        ("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE"),
    }


def test_a_consumer_is_what_kafka_acls_makes_of_it() -> None:
    found = told(bindings(wanted(TOPIC, GROUP, consumes=True)))
    assert found == {("TOPIC", "orders", "READ"), ("TOPIC", "orders", "DESCRIBE"), ("GROUP", "billing", "READ")}
    both = told(bindings(wanted(TOPIC, GROUP, consumes=True, produces=True)))
    assert len(both) == 5


def test_principals_hosts_and_operations_multiply() -> None:
    found = bindings(wanted(TOPIC, denied=("User:b",), hosts=("h1", "h2"), operations=(Operation.READ,), prefixed=True))
    assert len(found) == 4 and {acl.pattern_type for acl in found} == {PatternType.PREFIXED}
    assert {(acl.principal, acl.permission) for acl in found} == {("User:a", 3), ("User:b", 2)}
    (every,) = bindings(wanted(TOPIC))
    assert (every.operation, every.host) == (Operation.ALL, "*")


def test_an_operation_that_a_resource_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="Write does not apply to a Group; there are Read, Delete"):
        bindings(wanted(GROUP, operations=(Operation.WRITE,)))


@pytest.mark.parametrize("text", ["DescribeConfigs", "describe_configs", "DESCRIBE-CONFIGS", "describeconfigs"])
def test_operations_are_read_as_anybody_writes_them(text: str) -> None:
    assert parse_operation(text) is Operation.DESCRIBE_CONFIGS
    with pytest.raises(ValueError, match="there are All, Read"):
        parse_operation("any")


def test_a_principal_has_a_type() -> None:
    assert parse_principal("User:CN=x,O=y") == "User:CN=x,O=y"
    for text in ("alice", "User:", ":alice"):
        with pytest.raises(ValueError, match="write User:alice"):
            parse_principal(text)


def test_what_is_left_out_is_open_to_a_deletion_and_what_is_said_is_not() -> None:
    (all_of_topic,) = deletions(wanted(TOPIC, allowed=()))
    assert all_of_topic == AclFilter(2, "orders", PatternType.LITERAL, None, None, 1, 1)
    (one,) = deletions(wanted(TOPIC, hosts=("h",), operations=(Operation.READ,)))
    assert one == AclFilter(2, "orders", PatternType.LITERAL, "User:a", "h", Operation.READ, Permission.ALLOW)
    assert len(deletions(wanted(TOPIC, produces=True))) == 3


def test_a_listing_without_words_is_of_everything() -> None:
    assert filters((), PatternType.MATCH, ()) == [AclFilter()]
    assert filters((TOPIC,), PatternType.MATCH, ("User:a", "User:b")) == [
        AclFilter(2, "orders", PatternType.MATCH, "User:a"),
        AclFilter(2, "orders", PatternType.MATCH, "User:b"),
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["add", "--allow-principal", "User:a"], "no resource: give"),
        (["add", "--topic", "t"], "no principal: give"),
        (["add", "--topic", "t", "--consumer", "--allow-principal", "User:a"], "needs --topic and --group"),
        (["add", "--topic", "t", "--producer", "--deny-principal", "User:a"], "go with --allow-principal only"),
        (["add", "--group", "t", "--producer", "--allow-principal", "User:a"], "needs --topic"),
        (["add", "--topic", "t", "--producer", "--operation", "Read", "--allow-principal", "User:a"], "leave out"),
        (["add", "--topic", "t", "--idempotent", "--allow-principal", "User:a"], "--idempotent needs --producer"),
        (["add", "--group", "g", "--operation", "Write", "--allow-principal", "User:a"], "Write does not apply"),
        (["add", "--cluster", "--prefixed", "--allow-principal", "User:a"], "has one name"),
        (["delete", "--topic", "t"], "add --yes"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["acl", *words]) == 2
    assert why in capsys.readouterr().err


def test_prefixed_is_told_to_count_for_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The advice for a consumer without a group widened the topic's name too."""
    for verb in ("add", "delete"):
        with pytest.raises(SystemExit):
            main(["acl", verb, "--help"])
        assert "all names in this command are prefixes" in " ".join(capsys.readouterr().out.split())
    given = [line for line in (ROOT / "docs/cli.md").read_text().splitlines() if line.startswith("thermocline acl add")]
    widened = [line for line in given if "--prefixed" in line]
    assert any("console-consumer-" in line for line in widened)
    assert not any("--topic" in line and "--group" in line for line in widened)
