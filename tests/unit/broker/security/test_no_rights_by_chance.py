"""Random requests of a client without rights: nothing changes, and no response has a hidden name, id or record.

The requests name existing things, often twice and in contradictory rows. Rules leave such rows to the handlers, which
refuse them for every client. Two requests that differ only in hidden things get the same response.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
from typing import Any, Final
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.controller.decisions.credentials import Upsertion
from broker.metadata.records import Acl
from broker.net.dispatch import CloseConnection, Peer
from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType
from broker.wire import messages as wire
from broker.wire.apis import APIS, ApiKey
from broker.wire.codec import encode_request
from broker.wire.generated import messages as classes
from broker.wire.schema import Field
from broker.wire.table import MESSAGES
from tests.support.brokers.broker_kit import Life, Place, batch_of, joined, parts_of, produce_request

SETTINGS = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:root",
    "group.initial.rebalance.delay.ms=0",
    "auto.create.topics.enable=true",
)
HIDDEN_TOPICS = ("hidden-one", "hidden-two")
VALUE = "hidden-value"
NAMES = (*HIDDEN_TOPICS, "hidden-group", "hidden-txn", "hidden-user")
HIDDEN = (*NAMES, VALUE)
MINE = "mine"
ROUNDS = int(os.environ.get("THERMOCLINE_CHANCE_ROUNDS", "6"))
ROUNDS_OF: Final = dict.fromkeys(
    (
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ),
    8 * ROUNDS,
)
"""Requests that change a topic, and whose rows contradict one another only now and then."""
_OF_LOGINS: Final = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


def peer(name: str) -> Peer:
    return Peer(1, "10.0.0.1:1", "PLAINTEXT", principal=f"User:{name}")


class Requests:
    """Random requests with the names and ids of things that exist."""

    def __init__(self, rng: random.Random, ids: list[UUID]) -> None:
        self._rng = rng
        self._ids = ids

    def request(self, api: ApiKey, version: int) -> Any:
        schema = MESSAGES[f"{APIS[api].name}Request"]
        return self._structure(schema.name, schema.fields, version)

    def _structure(self, class_name: str, fields: tuple[Field, ...], version: int) -> Any:
        values = {field.name: self._value(field, version) for field in fields if version in field.versions}
        return getattr(classes, class_name)(**values)

    def _value(self, field: Field, version: int) -> Any:
        rng = self._rng
        if version in field.nullable and rng.random() < 0.3:
            return None
        if not field.is_array:
            return self._single(field, version)
        rows = [self._single(field, version) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        if rows and rng.random() < 0.5:
            rows.append(self._alike(rng.choice(rows), field.fields, version))
        elif rng.random() < 0.4:
            rows *= 2
        return rows

    def _alike(self, row: Any, fields: tuple[Field, ...], version: int) -> Any:
        """The same row, or one that differs in a field."""
        known = [field for field in fields if version in field.versions]
        if not known or self._rng.random() < 0.3:
            return row
        other = self._rng.choice(known)
        return replace(row, **{other.name: self._value(other, version)})

    def _single(self, field: Field, version: int) -> Any:
        rng = self._rng
        if field.fields:
            absent = field.default is None and not field.is_array and rng.random() < 0.5
            return None if absent else self._structure(field.class_name, field.fields, version)
        match field.type:
            case "bool":
                return rng.random() < 0.5
            case "uuid":
                return rng.choice((*self._ids, UUID(int=0), UUID(int=0), UUID(int=7)))
            case "string":
                return rng.choice((*NAMES, *HIDDEN_TOPICS, *HIDDEN_TOPICS, MINE, "", "1", "new", "user"))
            case "bytes":
                return rng.choice((b"", b"x", b"\0" * 16))
            case "records":
                return memoryview(bytearray(batch_of(b"by chance")))
            case "float64":
                return rng.choice((0.0, 1.0, 1e6))
        if field.name in ("timeout_ms", "max_wait_ms", "session_timeout_ms", "rebalance_timeout_ms"):
            return rng.choice((0, 10, 5000))
        if field.name == "resource_type":
            return rng.choice((2, 4, 2, 4, 16, 32))
        return rng.choice((0, 0, 1, -1, -2, 1, 2, 3))


def state_of(life: Life) -> Any:
    image = life.context.metadata.image
    return (
        {
            topic.name: (topic.topic_id, topic.partitions, topic.configs)
            for topic in image.topics.values()
            if topic.name in HIDDEN_TOPICS or topic.name == "new"
        },
        image.cluster_configs,
        image.node_configs,
        image.scram,
        image.acls,
        image.quotas,
        {
            name: (life.partition(name).log.log_end_offset, life.partition(name).log_start_offset)
            for name in HIDDEN_TOPICS
        },
    )


async def groups_of(life: Life) -> Any:
    every = wire.OffsetFetchRequest(groups=[wire.OffsetFetchRequestGroup("hidden-group", topics=None)])
    fetched = await life.call(ApiKey.OFFSET_FETCH, every, 9, peer("root"))
    listed = await life.call(ApiKey.LIST_TRANSACTIONS, wire.ListTransactionsRequest(), None, peer("root"))
    described = await life.call(
        ApiKey.DESCRIBE_GROUPS, wire.DescribeGroupsRequest(groups=["hidden-group"]), 5, peer("root")
    )
    return (
        fetched.groups,
        [
            (row.transactional_id, row.producer_id, row.transaction_state)
            for row in listed.transaction_states
            if row.transactional_id == "hidden-txn"
        ],
        described.groups,
    )


async def prepared(*acls: Acl) -> tuple[Life, dict[str, UUID]]:
    life = await Place().start(*SETTINGS)
    root = peer("root")
    ids = {topic: await life.create(topic) for topic in (*HIDDEN_TOPICS, MINE)}
    for topic in HIDDEN_TOPICS:
        await life.call(ApiKey.PRODUCE, produce_request(topic, batch_of(VALUE.encode()), acks=1), 9, root)
    for key, kind in (("hidden-group", 0), (MINE, 0), ("hidden-txn", 1)):
        found = await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key=key, key_type=kind), 1, root)
        assert found.error_code == 0
    commit = wire.OffsetCommitRequest(
        group_id="hidden-group",
        topics=[
            wire.OffsetCommitRequestTopic(
                name=HIDDEN_TOPICS[0], partitions=[wire.OffsetCommitRequestPartition(0, 1, -1, "")]
            )
        ],
    )
    answer = await life.call(ApiKey.OFFSET_COMMIT, commit, 9, root)
    assert answer.topics[0].partitions[0].error_code == 0
    begun = await life.call(
        ApiKey.INIT_PRODUCER_ID,
        wire.InitProducerIdRequest(transactional_id="hidden-txn", transaction_timeout_ms=60_000),
        4,
        root,
    )
    assert begun.error_code == 0
    await life.context.controller.alter_credentials([], [Upsertion("hidden-user", 2, 4096, b"salt", b"password")])
    await life.context.controller.create_acls([*acls, _acl("hidden-user", Operation.READ, "hidden-one")])
    return life, ids


def _acl(user: str, operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)


NOBODY: tuple[Acl, ...] = ()
OWNER = tuple(
    _acl("alice", Operation.ALL, MINE, kind)
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
)


READER: Final = tuple(
    _acl("alice", operation, name) for operation in (Operation.READ, Operation.DESCRIBE) for name in HIDDEN_TOPICS
)


@pytest.mark.parametrize("rights", [NOBODY, OWNER, READER], ids=["nobody", "owner", "reader"])
async def test_random_requests_change_and_show_nothing(rights: tuple[Acl, ...]) -> None:
    """The reader's responses may have the topics, their ids and their records. An owner's group may have stored any
    name, so its responses are searched for ids and records only."""
    life, ids = await prepared(*rights)
    hidden_names = {NOBODY: HIDDEN, OWNER: (VALUE,), READER: ()}[rights]
    hidden_ids = [] if rights is READER else [ids[topic] for topic in HIDDEN_TOPICS]
    seed = os.environ.get("THERMOCLINE_CHANCE_SEED", "")
    requests = Requests(random.Random(f"{seed}{len(rights)}"), list(ids.values()))
    before, groups = state_of(life), await groups_of(life)
    for api in APIS:
        if api in _OF_LOGINS:
            continue
        for version in range(APIS[api].version_min, APIS[api].version_max + 1):
            for _ in range(ROUNDS_OF.get(api, ROUNDS)):
                await asyncio.sleep(0.001)  # virtual time: the simulation refuses endless work at one instant
                request = requests.request(api, version)
                try:
                    asked = joined(encode_request(api, version, request))
                except (TypeError, AttributeError, struct.error):  # no client can send it
                    continue
                answer = await answered(life, api, version, request)
                for name in hidden_names:
                    assert name.encode() in asked or name.encode() not in answer, (name, request, answer)
                for topic_id in hidden_ids:
                    assert topic_id.bytes in asked or topic_id.bytes not in answer, (request, answer)
                assert state_of(life) == before, (version, request)
        assert await groups_of(life) == groups, api.name
    await life.stop()


@pytest.mark.parametrize("by_id", [False, True], ids=["names", "ids"])
async def test_responses_do_not_depend_on_hidden_things(by_id: bool) -> None:
    """Missing names in the place of hidden names, or the ids of the hidden topics exchanged. As in Kafka, a response
    may depend on whether an id exists.
    """
    life, ids = await prepared()
    one, two = (ids[topic] for topic in HIDDEN_TOPICS)
    others: dict[Any, Any] = (
        {one: two, two: one} if by_id else {name: name.replace("hidden", "absent") for name in NAMES}
    )
    seed = os.environ.get("THERMOCLINE_CHANCE_SEED", "")
    requests = Requests(random.Random(f"{seed}{by_id}"), [one, two])
    for api in APIS:
        if api in _OF_LOGINS:
            continue
        for version in range(APIS[api].version_min, APIS[api].version_max + 1):
            for _ in range(ROUNDS_OF.get(api, ROUNDS)):
                await asyncio.sleep(0.001)
                request = requests.request(api, version)
                if isinstance(request, wire.FetchRequest):
                    request = replace(request, session_epoch=-1)  # the id of a new session is random
                other = _exchanged(request, others)
                try:
                    joined(encode_request(api, version, request))
                except (TypeError, AttributeError, struct.error):
                    continue
                answers = [(await answered(life, api, version, sent))[_BODY:] for sent in (request, other)]
                expected = _exchanged_bytes(answers[0], others)
                if api is ApiKey.DESCRIBE_TOPIC_PARTITIONS:  # its refused rows have no order
                    assert sorted(expected) == sorted(answers[1]), request
                else:
                    assert expected == answers[1], request
    await life.stop()


_BODY: Final = 8  # after the size and the correlation id


def _exchanged(value: Any, others: dict[Any, Any]) -> Any:
    """The request with other names or ids."""
    if isinstance(value, list):
        return [_exchanged(each, others) for each in value]
    if isinstance(value, str | UUID):
        return others.get(value, value)
    fields = getattr(value, "__struct_fields__", ())
    return replace(value, **{name: _exchanged(getattr(value, name), others) for name in fields}) if fields else value


def _exchanged_bytes(answer: bytes, others: dict[Any, Any]) -> bytes:
    found = {
        form(old): form(new)
        for old, new in others.items()
        for form in ((_text,) if isinstance(old, str) else (_text, _bytes_of))
    }
    return re.sub(b"|".join(map(re.escape, found)), lambda match: found[match[0]], answer)


def _text(value: Any) -> bytes:
    return str(value).encode()


def _bytes_of(topic_id: UUID) -> bytes:
    return topic_id.bytes


async def answered(life: Life, api: ApiKey, version: int, request: Any) -> bytes:
    """The bytes of the response; none where the connection is closed, or the request waits for others."""
    try:
        async with asyncio.timeout(120):
            parts = await parts_of(life.dispatch(api, request, version, peer("alice")))
    except (CloseConnection, TimeoutError):
        return b""
    return b"" if parts is None else bytes(joined(parts))
