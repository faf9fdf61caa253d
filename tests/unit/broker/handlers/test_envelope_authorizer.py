"""A forwarded request is authorized on the controller, as the client that asked: by its principal and its host; and
only a broker speaks for others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.metadata.records import Acl
from broker.net.dispatch import Peer
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from tests.support.scenario import by
from tests.unit.broker.handlers.test_envelope import Pair, between, create, framed, pair

SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:admin",
)
BROKER = Acl(
    ResourceType.CLUSTER,
    CLUSTER_NAME,
    PatternType.LITERAL,
    "User:ANONYMOUS",
    "*",
    Operation.CLUSTER_ACTION,
    Permission.ALLOW,
)
"""Brokers are User:ANONYMOUS here: their listener is PLAINTEXT."""
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def may_create(name: str, host: str = "*") -> Acl:
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:alice", host, Operation.CREATE, Permission.ALLOW)


def alice(host: str = "10.0.0.1") -> Peer:
    return Peer(7, f"{host}:7", "PLAINTEXT", principal="User:alice")


@asynccontextmanager
async def guarded() -> AsyncIterator[Pair]:
    async with pair(*SETTINGS) as made:
        await made.there.context.controller.create_acls([BROKER])
        yield made


async def asked(made: Pair, request: Any, peer: Peer) -> dict[str, int]:
    answer = await made.here.call(ApiKey.CREATE_TOPICS, request, peer=peer)
    return {topic.name: topic.error_code for topic in answer.topics}


@by(between, guarded)
async def test_the_controllers_acls_count_for_the_client_that_asked_elsewhere(made: Pair, /) -> None:
    """`here` has no ACL at all. A right that was given on the controller counts at once; host by host."""
    await made.there.context.controller.create_acls([may_create("a"), may_create("near", "10.0.0.1")])
    assert await asked(made, create("a", "b", "near"), alice("10.0.0.2")) == {"a": 0, "b": DENIED, "near": DENIED}
    assert await asked(made, create("near"), alice()) == {"near": 0}
    assert await asked(made, create("b"), Peer(8, "10.0.0.1:8", "PLAINTEXT", principal="User:admin")) == {"b": 0}
    assert made.topics(made.there) == {"a", "near", "b"} and made.topics(made.here) == set()


@by(between, guarded)
async def test_a_client_on_the_brokers_listener_sends_no_envelope(made: Pair, /) -> None:
    """Not in the name of a super user, and not in its own; without ClusterAction it is no broker."""
    listener = made.there.context.config.brokers_listener
    for principal in (b"User:admin", None):
        envelope = m.EnvelopeRequest(
            request_data=framed(ApiKey.CREATE_TOPICS, 7, create("x")),
            request_principal=principal,
            client_listener="PLAINTEXT",
        )
        for peer in (
            Peer(9, "10.0.0.9:9", listener, principal="User:eve"),
            Peer(9, "10.0.0.9:9", "PLAINTEXT", principal="User:ANONYMOUS"),
            Peer(9, "10.0.0.9:9", "PLAINTEXT", principal="User:admin"),
        ):
            answer = await made.there.call(ApiKey.ENVELOPE, envelope, peer=peer)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert made.topics(made.there) == set()


@by(between, guarded)
async def test_a_broker_has_its_own_topics_made(made: Pair, /) -> None:
    """In an envelope without a principal; the client whose group is looked for needs no right to create topics."""
    describe = Acl(
        ResourceType.GROUP, "g", PatternType.LITERAL, "User:alice", "*", Operation.DESCRIBE, Permission.ALLOW
    )
    made.here.broker.clients.authorizer.follow((describe,))  # type: ignore[union-attr]
    found = await made.here.call(
        ApiKey.FIND_COORDINATOR, m.FindCoordinatorRequest(coordinator_keys=["g"]), peer=alice()
    )
    assert found.coordinators[0].error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert made.topics(made.there) == {"__consumer_offsets"}


@by(between, guarded)
async def test_acls_are_made_by_the_controller_for_who_may(made: Pair, /) -> None:
    row = m.CreateAclsRequestCreation(2, "x", 3, "User:bob", "*", Operation.READ, Permission.ALLOW)
    for peer, code in (
        (alice(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (Peer(8, "", "PLAINTEXT", principal="User:admin"), ErrorCode.NONE),
    ):
        made_acls = await made.here.call(ApiKey.CREATE_ACLS, m.CreateAclsRequest(creations=[row]), 3, peer)
        assert made_acls.results[0].error_code == code
    assert len(made.there.context.metadata.image.acls) == 2


@pytest.mark.parametrize("listener", ["PLAINTEXT", "BROKERS"])
async def test_a_replicas_fetch_needs_listener_and_right(listener: str) -> None:
    from tests.support.brokers.broker_kit import Place

    life = await Place().start(*SETTINGS)
    await life.create("a")
    await life.context.controller.create_acls([BROKER])
    request = m.FetchRequest(
        replica_id=2, topics=[m.FetchRequestTopic(topic="a", partitions=[m.FetchRequestPartition()])]
    )
    for principal in ("User:ANONYMOUS", "User:eve"):
        answer = await life.call(ApiKey.FETCH, request, 12, Peer(9, "10.0.0.9:9", listener, principal=principal))
        is_broker = principal == "User:ANONYMOUS" and listener == "BROKERS"
        assert (answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED) is not is_broker
    await life.stop()
