"""A changed ACL takes effect with its image, also where answers and routes are remembered."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.metadata.records import Acl
from broker.net.dispatch import CloseConnection, Peer
from broker.security.audit import AuditEvent
from broker.security.authorizer.acl_filter import AclFilter
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import Life, Place, batch_of, produce_request

STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def alice(port: int = 1, host: str = "10.0.0.1") -> Peer:
    return Peer(port, f"{host}:{port}", "PLAINTEXT", principal="User:alice")


def bob() -> Peer:
    return Peer(9, "10.0.0.9:9", "PLAINTEXT", principal="User:bob")


def acl(
    operation: Operation,
    name: str,
    *,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = ResourceType.TOPIC,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, principal, host, operation, permission)


async def guarded(*acls: Acl, topics: tuple[str, ...] = ("a", "b"), settings: tuple[str, ...] = ()) -> Life:
    life = await Place().start(STANDARD, *settings)
    for topic in topics:
        await life.create(topic)
    await life.context.controller.create_acls(acls)
    return life


async def revoke(life: Life, *acls: Acl) -> None:
    await life.context.controller.delete_acls(
        [
            AclFilter(one.resource_type, one.resource_name, one.pattern_type, one.principal, one.host, one.operation)
            for one in acls
        ]
    )


async def produced(life: Life, topic: str, peer: Peer) -> int:
    answer = await life.call(ApiKey.PRODUCE, produce_request(topic, batch_of(b"x"), acks=1), 9, peer)
    return int(answer.responses[0].partition_responses[0].error_code)


async def test_a_revoked_producer_stops_with_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the fast path had learned its requests, and answers without asking the authorizer."""
    allowed = acl(Operation.WRITE, "a")
    life = await guarded(allowed)
    peer = alice()
    for _ in range(4):
        assert await produced(life, "a", peer) == 0
    frame = life.frame(ApiKey.PRODUCE, 9, produce_request("a", batch_of(b"x"), acks=1))
    count, _ = life.dispatch_run([frame, frame], peer)
    assert count == 2, "the fast path has learned it"
    end = life.partition("a").log.log_end_offset
    await revoke(life, allowed)
    assert life.dispatch_run([frame, frame], peer)[0] == 0
    assert await produced(life, "a", peer) == DENIED
    assert life.partition("a").log.log_end_offset == end
    await life.context.controller.create_acls([allowed])
    assert await produced(life, "a", peer) == 0
    await life.stop()


async def test_what_one_host_was_allowed_another_is_asked_for() -> None:
    """The same principal, bytes and listener; the ACL is of one host. The other host has a route of its own, by another
    topic, and must not find the first one's topics in it."""
    life = await guarded(acl(Operation.WRITE, "a", host="10.0.0.1"), acl(Operation.WRITE, "b"))
    near, far = alice(2), alice(3, "10.0.0.2")
    for _ in range(3):
        assert await produced(life, "a", near) == 0
        assert await produced(life, "b", far) == 0
    assert far.produce_route is not None
    for _ in range(2):
        assert await produced(life, "a", far) == DENIED
        assert await produced(life, "a", near) == 0
    await life.stop()


async def test_the_allowed_part_of_a_produce_is_written() -> None:
    """And only it; the route of the whole request is not learned."""
    life = await guarded(acl(Operation.WRITE, "a"))
    request = produce_request("a", batch_of(b"x"), acks=1)
    request.topic_data += produce_request("b", batch_of(b"x"), acks=1).topic_data
    peer = alice()
    for _ in range(3):
        answer = await life.call(ApiKey.PRODUCE, request, 9, peer)
        assert {row.name: row.partition_responses[0].error_code for row in answer.responses} == {"a": 0, "b": DENIED}
    assert life.partition("b").log.log_end_offset == 0 and life.partition("a").log.log_end_offset == 3
    await life.stop()


async def test_without_acknowledgement_a_refused_produce_closes_the_connection() -> None:
    life = await guarded()
    with pytest.raises(CloseConnection, match="TOPIC_AUTHORIZATION_FAILED"):
        await life.call(ApiKey.PRODUCE, produce_request("a", batch_of(b"x"), acks=0), 9, alice())
    assert life.partition("a").log.log_end_offset == 0
    await life.stop()


def fetch(*topics: str, session_id: int = 0, epoch: int = 0) -> wire.FetchRequest:
    return wire.FetchRequest(
        replica_id=-1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            wire.FetchRequestTopic(topic=topic, partitions=[wire.FetchRequestPartition(partition_max_bytes=1 << 20)])
            for topic in topics
        ],
    )


def rows(answer: wire.FetchResponse) -> dict[str, int]:
    return {topic.topic: topic.partitions[0].error_code for topic in answer.responses}


async def test_a_fetch_session_loses_a_topic_that_is_revoked_and_gets_it_back() -> None:
    """Also one that nothing new was written to, whose partition the session does not read."""
    a, b = acl(Operation.READ, "a"), acl(Operation.READ, "b")
    life = await guarded(a, b)
    await life.produce("a", b"1")
    peer = alice()
    begun = await life.call(ApiKey.FETCH, fetch("a", "b", "c"), 12, peer)
    assert rows(begun) == {"a": 0, "b": 0, "c": DENIED} and begun.session_id
    idle = await life.call(ApiKey.FETCH, fetch(session_id=begun.session_id, epoch=1), 12, peer)
    assert "b" not in rows(idle)
    await revoke(life, b)
    gone = await life.call(ApiKey.FETCH, fetch(session_id=begun.session_id, epoch=2), 12, peer)
    assert rows(gone)["b"] == DENIED
    again = await life.call(ApiKey.FETCH, fetch(session_id=begun.session_id, epoch=3), 12, peer)
    assert rows(again)["b"] == DENIED, "an error is repeated"
    await life.context.controller.create_acls([b])
    await life.produce("b", b"1")
    back = await life.call(ApiKey.FETCH, fetch(session_id=begun.session_id, epoch=4), 12, peer)
    assert rows(back)["b"] == 0
    await life.stop()


async def test_records_that_come_after_a_revocation_are_not_sent_to_a_fetch_that_waits() -> None:
    a = acl(Operation.READ, "a")
    life = await guarded(a)
    request = fetch("a")
    request.max_wait_ms, request.min_bytes = 60_000, 1
    answer = life.dispatch(ApiKey.FETCH, request, 12, alice())
    await revoke(life, a)
    await life.produce("a", b"secret")
    from tests.support.brokers.broker_kit import decoded, parts_of

    found = decoded(ApiKey.FETCH, 12, await parts_of(answer))
    assert rows(found) == {"a": DENIED}
    await life.stop()


def _metadata(topics: list[str] | None, **more: Any) -> wire.MetadataRequest:
    named = None if topics is None else [wire.MetadataRequestTopic(name=name) for name in topics]
    return wire.MetadataRequest(topics=named, **more)


async def test_a_cached_answer_is_shown_to_nobody_with_other_rights() -> None:
    """Metadata of all topics, and of operations, is cached for one client; two with other ACLs see their own."""
    life = await guarded(acl(Operation.DESCRIBE, "a"), acl(Operation.DESCRIBE, "b", principal="User:bob"), topics=())
    for topic in ("a", "b"):
        await life.create(topic, 200)  # long enough to be cached
    for _ in range(2):
        for peer, own in ((alice(), "a"), (bob(), "b")):
            every = await life.call(ApiKey.METADATA, _metadata(None), 12, peer)
            assert [topic.name for topic in every.topics] == [own]
            named = await life.call(ApiKey.METADATA, _metadata(["a", "b"]), 12, peer)
            assert {topic.name for topic in named.topics if not topic.error_code} == {own}
            asked = await life.call(
                ApiKey.METADATA, _metadata([own], include_topic_authorized_operations=True), 12, peer
            )
            assert asked.topics[0].topic_authorized_operations == 1 << Operation.DESCRIBE
    assert len(life.context.response_cache) > 0, "something was cached, or this shows nothing"
    everybody = await life.call(ApiKey.METADATA, _metadata(["a"]), 12, alice())
    assert everybody.topics[0].topic_authorized_operations == -(1 << 31)
    await revoke(life, acl(Operation.DESCRIBE, "a"))
    assert (await life.call(ApiKey.METADATA, _metadata(["a"]), 12, alice())).topics[0].error_code == DENIED
    assert not (await life.call(ApiKey.METADATA, _metadata(None), 12, alice())).topics
    await life.stop()


@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.CLUSTER, None])
async def test_asking_for_a_missing_topic_creates_it_only_with_the_right_to(kind: ResourceType | None) -> None:
    rights = [acl(Operation.DESCRIBE, "new")]
    if kind is not None:
        rights.append(acl(Operation.CREATE, CLUSTER_NAME if kind == ResourceType.CLUSTER else "new", kind=kind))
    life = await guarded(*rights)
    request = _metadata(["new"], allow_auto_topic_creation=True)
    answer = await life.call(ApiKey.METADATA, request, 12, alice())
    assert answer.topics[0].error_code == (DENIED if kind is None else 0)
    assert (life.context.metadata.topic_named("new") is None) == (kind is None)
    await life.stop()


async def test_acls_are_made_shown_and_deleted_by_who_may(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is an audit line; without the right nothing changes."""
    caplog.set_level(logging.INFO)
    life = await guarded(
        *(acl(operation, CLUSTER_NAME, kind=ResourceType.CLUSTER) for operation in (Operation.ALTER,)),
    )
    row = wire.CreateAclsRequestCreation(2, "a", 3, "User:carol", "10.0.0.3", Operation.READ, Permission.ALLOW)
    made = await life.call(ApiKey.CREATE_ACLS, wire.CreateAclsRequest(creations=[row, row]), 3, alice())
    assert [each.error_code for each in made.results] == [0, 0]
    refused = await life.call(ApiKey.CREATE_ACLS, wire.CreateAclsRequest(creations=[row]), 3, bob())
    assert refused.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    asked = wire.DescribeAclsRequest(2, "a", 2, None, None, 1, 1)
    shown = await life.call(ApiKey.DESCRIBE_ACLS, asked, 3, alice())  # ALTER implies DESCRIBE
    (resource,) = shown.resources
    assert (resource.resource_name, [one.principal for one in resource.acls]) == ("a", ["User:carol"])
    gone = await life.call(
        ApiKey.DELETE_ACLS,
        wire.DeleteAclsRequest(filters=[wire.DeleteAclsRequestFilter(2, None, 1, None, None, 1, 1)]),
        3,
        alice(),
    )
    assert [one.principal for one in gone.filter_results[0].matching_acls] == ["User:carol"]
    assert len(life.context.metadata.image.acls) == 1
    lines = [record.getMessage() for record in caplog.records if record.name == "audit"]
    assert sum('what="created Allow User:carol from 10.0.0.3 Read on Topic:LITERAL:a"' in line for line in lines) >= 1
    assert any('what="deleted Allow User:carol' in line and 'principal="User:alice"' in line for line in lines)
    assert life.broker.audit.counts[AuditEvent.DENIED] == 1
    await life.stop()


async def test_a_super_user_needs_no_acl_and_a_deny_wins() -> None:
    life = await guarded(
        acl(Operation.ALL, "a"),
        acl(Operation.WRITE, "a", permission=Permission.DENY),
        settings=("super.users=User:admin;User:bob",),
    )
    assert await produced(life, "a", alice()) == DENIED
    assert await produced(life, "a", bob()) == 0
    await life.stop()


async def test_acls_outlive_a_restart() -> None:
    place = Place()
    life = await place.start(STANDARD)
    await life.create("a")
    await life.context.controller.create_acls([acl(Operation.WRITE, "a")])
    await life.stop()
    again = await place.start(STANDARD)
    assert await produced(again, "a", alice()) == 0 and await produced(again, "a", bob()) == DENIED
    await again.stop()


async def test_a_read_only_broker_asks_the_acls_of_its_cluster() -> None:
    place = Place()
    life = await place.start(STANDARD)
    await life.create("a")
    await life.create("b")
    await life.context.controller.create_acls([acl(Operation.READ, "a")])
    await life.stop()
    reader = await place.start(STANDARD, directory="r", read_only=True)
    answer = await reader.call(ApiKey.METADATA, _metadata(["a", "b"]), 12, alice())
    assert {topic.name: topic.error_code for topic in answer.topics} == {"a": 0, "b": DENIED}
    answer = await reader.call(ApiKey.METADATA, _metadata(None), 12, bob())
    assert not answer.topics
    await reader.stop()
