"""The matrix of APIs × ACLs answers as Apache Kafka 4.3.1 with its StandardAuthorizer, and its AclCommand says of our
broker what it says of Kafka.

Every client of the matrix is User:ANONYMOUS. Our broker runs in virtual time; Kafka is a process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.error_codes import ErrorCode
from broker.net.dispatch import CloseConnection, Peer
from broker.security.authorizer.acl_filter import AclFilter
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import Place
from tests.support.kafka.kafka_authorizer import ADMIN, GuardedKafka, guarded_kafka
from tests.support.kafka.kafka_console import kafka_console
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import QUICK, Site
from tests.support.security import matrix
from tests.support.security.beside import RawClient, comparable, set_acls
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1_200)]

STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NOT_YET = {
    int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    int(ErrorCode.NOT_COORDINATOR),
}
CASES_MIN = 1_300
COORDINATED = tuple(
    (Operation.ALL, kind) for kind in (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
)
ACL_COMMAND = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    require_kafka()
    with guarded_kafka(tmp_path_factory.mktemp("kafka")) as found:
        yield found


def _warm(admin: AdminClient, raw: RawClient) -> None:
    """Kafka's coordinators exist and are loaded, so that no answer says that they are not yet."""
    set_acls(admin, matrix.acls_of(COORDINATED))

    def are_there() -> bool:
        found = [
            raw.ask(ApiKey.FIND_COORDINATOR, 1, wire.FindCoordinatorRequest(key=name, key_type=kind)).error_code
            for kind in (0, 1)
            for name in matrix.ALLOWED
        ]
        described = raw.ask(ApiKey.DESCRIBE_GROUPS, 5, wire.DescribeGroupsRequest(groups=list(matrix.ALLOWED)))
        shown = raw.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, wire.DescribeTransactionsRequest(transactional_ids=["one", "gone"])
        )
        found += [group.error_code for group in described.groups]
        found += [state.error_code for state in shown.transaction_states]
        found.append(raw.ask(ApiKey.LIST_GROUPS, 4, wire.ListGroupsRequest()).error_code)
        found.append(raw.ask(ApiKey.LIST_TRANSACTIONS, 0, wire.ListTransactionsRequest()).error_code)
        found.append(raw.ask(ApiKey.INIT_PRODUCER_ID, 4, wire.InitProducerIdRequest(transactional_id=None)).error_code)
        return not NOT_YET & set(found)

    wait_until(are_there, "Kafka's coordinators", 60.0)


async def test_every_api_answers_as_kafka_by_acls(kafka: GuardedKafka) -> None:
    """Also what a client may not see: absent, refused or unknown, row for row."""
    admin, raw = AdminClient({"bootstrap.servers": kafka.admin, **ADMIN}), RawClient(kafka.anonymous)
    for made in admin.create_topics(
        [NewTopic(name, 1, 1, config={"retention.ms": "-1"}) for name in matrix.EXISTING]
    ).values():
        made.result(60)
    _warm(admin, raw)
    life = await Place().start(STANDARD, "auto.create.topics.enable=false")
    for name in matrix.EXISTING:
        await life.create(name)
    await life.context.controller.create_acls(matrix.acls_of(COORDINATED))
    for kind in (0, 1):
        await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key="one", key_type=kind), 1)
    by_acls: dict[tuple[tuple[Operation, ResourceType], ...], list[matrix.Case]] = {}
    for case in matrix.cases():
        by_acls.setdefault(case.allows, []).append(case)
    others: list[str] = []
    for allows, cases in by_acls.items():
        acls = matrix.acls_of(allows)
        set_acls(admin, acls)
        await life.context.controller.delete_acls([AclFilter()])
        await life.context.controller.create_acls(acls)
        for case in cases:
            theirs = comparable(raw.ask(case.api, case.version, case.request))
            try:
                answer = await life.call(case.api, case.request, case.version, Peer(7, "127.0.0.1:1", "PLAINTEXT"))
            except CloseConnection:
                answer = None
            if comparable(answer) != theirs:
                others.append(f"{case.api.name} v{case.version} {case.label} {allows}:\n {theirs}\n {answer}")
    assert not others, f"{len(others)} differ:\n" + "\n".join(others[:10])
    assert sum(map(len, by_acls.values())) >= CASES_MIN
    raw.close()
    await life.stop()


QUESTIONS: dict[str, list[str]] = {
    "add": ["--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders"],
    "add again": ["--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders"],
    "add a producer": ["--add", "--allow-principal", "User:bob", "--producer", "--topic", "orders", "--idempotent"],
    "add a consumer": ["--add", "--allow-principal", "User:carol", "--consumer", "--topic", "orders", "--group", "g"],
    "deny": [
        *("--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.9", "--operation", "All"),
        *("--topic", "or", "--resource-pattern-type", "prefixed"),
    ],
    "add to the cluster": ["--add", "--allow-principal", "User:op", "--operation", "Alter", "--cluster"],
    "add to a transactional id": [
        *("--add", "--allow-principal", "User:bob", "--operation", "Write", "--transactional-id", "t1")
    ],
    "list": ["--list"],
    "list a topic": ["--list", "--topic", "orders"],
    "list what matches": ["--list", "--topic", "orders", "--resource-pattern-type", "match"],
    "list any": ["--list", "--topic", "orders", "--resource-pattern-type", "any"],
    "list of a principal": ["--list", "--principal", "User:bob"],
    "list the cluster": ["--list", "--cluster"],
    "list a group": ["--list", "--group", "g"],
    "list nothing": ["--list", "--topic", "nowhere"],
    "remove": ["--remove", "--force", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders"],
    "remove what is none": ["--remove", "--force", "--topic", "nowhere"],
    "remove all of a topic": ["--remove", "--force", "--topic", "orders"],
    "list what is left": ["--list"],
}


def _lines(text: str, address: str) -> list[str]:
    """In one order: Kafka's answer has the order of a hash table."""
    shown = text.replace(address, "ADDRESS")
    return sorted(line.strip() for line in re.sub(r"[ \t]+", " ", shown).splitlines() if line.strip())


def test_acl_command_says_the_same(kafka: GuardedKafka, tmp_path: Path) -> None:
    """`kafka-acls.sh` adds, lists and removes; every output is that against Kafka."""
    set_acls(AdminClient({"bootstrap.servers": kafka.admin, **ADMIN}), [])
    login = tmp_path / "admin.properties"
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security."
        'plain.PlainLoginModule required username="admin" password="admin";\n'
    )
    name, _, value = STANDARD.partition("=")
    settings = {**QUICK, name: value, "super.users": "User:ANONYMOUS"}
    ours = Site(tmp_path / "ours", DirectoryBucket(tmp_path / "bucket"), settings)
    with kafka_console(tmp_path) as console, ours.broker() as broker:
        different = []
        for label, words in QUESTIONS.items():
            theirs = console.run(ACL_COMMAND, "--bootstrap-server", kafka.admin, "--command-config", str(login), *words)
            said = console.run(ACL_COMMAND, "--bootstrap-server", broker.kafka, *words)
            if (said.code, _lines(said.out, broker.kafka)) != (theirs.code, _lines(theirs.out, kafka.admin)):
                different.append(f"--- {label}\nours: {said}\nApache Kafka: {theirs}")
            if label == "list":
                assert "User:carol" in theirs.out and "principal=User:eve" in theirs.out
        assert not different, "\n".join(different)
