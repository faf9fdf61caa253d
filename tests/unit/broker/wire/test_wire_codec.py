"""The codec on its own: what is copied, records of `__consumer_offsets`, the generated file, the table."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.wire import codec, encoder, generate
from broker.wire import messages as m
from broker.wire.apis import APIS, ApiKey, is_served
from broker.wire.primitives import ZERO_UUID
from broker.wire.scatter import Records, frame_size
from broker.wire.schema import Kind, parse
from broker.wire.table import MESSAGES
from logformat.errors import InvalidRequest
from tests.support.wire.random_messages import random_message


@dataclass(frozen=True)
class Span:
    """A stand-in for a file range."""

    length: int


def test_the_generated_file_is_current() -> None:
    """`python -m broker.wire.generate` would change nothing."""
    with open(generate.TARGET, encoding="utf-8") as file:
        assert file.read() == generate.render()


def test_the_api_table_is_the_contract() -> None:
    """The served ranges, as docs/compatibility.md shows them; Produce alone is advertised lower."""
    served = {api.name: (api.version_min, api.version_max) for api in APIS.values()}
    assert served == {
        "Produce": (3, 12),
        "Fetch": (4, 18),
        "ListOffsets": (1, 11),
        "Metadata": (0, 12),
        "OffsetCommit": (2, 10),
        "OffsetFetch": (1, 10),
        "FindCoordinator": (0, 6),
        "JoinGroup": (0, 9),
        "Heartbeat": (0, 4),
        "LeaveGroup": (0, 5),
        "SyncGroup": (0, 5),
        "DescribeGroups": (0, 6),
        "ListGroups": (0, 5),
        "DeleteGroups": (0, 2),
        "OffsetDelete": (0, 0),
        "DescribeClientQuotas": (0, 1),
        "AlterClientQuotas": (0, 1),
        "SaslHandshake": (0, 1),
        "SaslAuthenticate": (0, 2),
        "DescribeUserScramCredentials": (0, 0),
        "AlterUserScramCredentials": (0, 0),
        "AlterPartition": (3, 3),
        "Envelope": (0, 0),
        "BrokerRegistration": (4, 4),
        "BrokerHeartbeat": (2, 2),
        "ApiVersions": (0, 4),
        "CreateTopics": (2, 7),
        "DeleteTopics": (1, 6),
        "DeleteRecords": (0, 2),
        "CreatePartitions": (0, 3),
        "InitProducerId": (0, 5),
        "AddPartitionsToTxn": (0, 5),
        "AddOffsetsToTxn": (0, 4),
        "EndTxn": (0, 5),
        "WriteTxnMarkers": (1, 2),
        "TxnOffsetCommit": (0, 5),
        "DescribeTransactions": (0, 0),
        "ListTransactions": (0, 2),
        "OffsetForLeaderEpoch": (2, 4),
        "DescribeAcls": (1, 3),
        "CreateAcls": (1, 3),
        "DeleteAcls": (1, 3),
        "DescribeConfigs": (1, 4),
        "AlterConfigs": (0, 2),
        "ElectLeaders": (0, 2),
        "IncrementalAlterConfigs": (0, 1),
        "AlterPartitionReassignments": (0, 1),
        "ListPartitionReassignments": (0, 0),
        "UnregisterBroker": (0, 0),
        "AlterReplicaLogDirs": (1, 2),
        "DescribeLogDirs": (1, 5),
        "DescribeCluster": (0, 2),
        "DescribeProducers": (0, 0),
        "ListConfigResources": (0, 1),
        "DescribeTopicPartitions": (0, 0),
    }
    lower = {api.name for api in APIS.values() if api.advertised_min != api.version_min}
    assert lower == {"Produce"}
    assert {api.name for api in APIS.values() if api.brokers_only} == {
        "AlterPartition",
        "Envelope",
        "BrokerRegistration",
        "BrokerHeartbeat",
    }
    assert APIS[ApiKey.PRODUCE].advertised_min == 0
    assert [is_served(0, version) for version in (2, 3, 12, 13)] == [False, True, True, False]


def test_produce_below_3_can_be_refused_politely() -> None:
    """Produce 0-2 decode, and their answers encode, so that each partition can be told UNSUPPORTED_VERSION."""
    body = b"\x00\x01\x00\x00\x05\xdc\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x07\x00\x00\x00\x03abc"
    partition = m.ProduceRequestPartition(index=7, records=memoryview(b"abc"))
    topic = m.ProduceRequestTopic(name="t", partition_data=[partition])
    for version in (0, 1, 2):
        request = codec.decode_request(ApiKey.PRODUCE, version, memoryview(body))
        assert request == m.ProduceRequest(acks=1, timeout_ms=1500, topic_data=[topic])
    response = m.ProduceResponse(
        responses=[
            m.ProduceResponseTopic(
                name="t",
                partition_responses=[m.ProduceResponsePartition(index=7, error_code=35, base_offset=-1)],
            )
        ]
    )
    head = b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x07\x00\x23" + b"\xff" * 8
    assert codec.encode_response(ApiKey.PRODUCE, 0, response) == [head]
    assert codec.encode_response(ApiKey.PRODUCE, 1, response) == [head + bytes(4)]
    assert codec.encode_response(ApiKey.PRODUCE, 2, response) == [head + b"\xff" * 8 + bytes(4)]


@pytest.mark.parametrize("version", [3, 9])
def test_received_records_are_views_of_the_frame(version: int) -> None:
    """Decoding a Produce request copies no record bytes."""
    partition = m.ProduceRequestPartition(index=0, records=memoryview(b"r" * 1000))
    message = m.ProduceRequest(topic_data=[m.ProduceRequestTopic(name="t", partition_data=[partition])])
    frame = bytearray(b"".join(codec.encode_request(ApiKey.PRODUCE, version, message)))
    request: Any = codec.decode_request(ApiKey.PRODUCE, version, memoryview(frame))
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    frame[frame.index(b"rrr")] = ord("!")
    assert records[0] == ord("!")


@pytest.mark.parametrize("version", [4, 12])
def test_sent_records_are_the_same_objects(version: int) -> None:
    """Buffers and file ranges of a Fetch response reach the scatter list as they are, and the size is known."""
    view, span, tail = memoryview(bytearray(b"view")), Span(10_000_000), b"tail"
    kinds = [b"bytes", view, [view, tail], Records(view.nbytes + span.length, (view, span)), None, b"", Records(0, ())]
    message = m.FetchResponse(
        responses=[
            m.FetchResponseTopic(
                topic="t",
                partitions=[m.FetchResponsePartition(partition_index=i, records=r) for i, r in enumerate(kinds)],
            )
        ]
    )
    parts = codec.encode_response(ApiKey.FETCH, version, message)
    given = [kinds[0], view, view, tail, view, span]
    assert [part for part in parts if any(part is each for each in given)] == given
    assert all(any(part is each for part in parts) for each in given)
    flat = b"".join(bytes(part.length) if isinstance(part, Span) else part for part in parts)
    assert frame_size(parts) == len(flat)
    back: Any = codec.decode_response(ApiKey.FETCH, version, memoryview(flat))
    sizes = [None if p.records is None else len(p.records) for p in back.responses[0].partitions]
    assert sizes == [5, 4, 8, 10_000_004, None, 0, 0]


@pytest.mark.parametrize("schema", [pytest.param(schema, id=schema.name) for schema in MESSAGES.values()])
def test_every_message_round_trips(schema) -> None:
    """Random messages of every version, also those kio does not know, come back equal."""
    rng = random.Random(schema.name)
    for version in range(schema.versions.low, schema.versions.high + 1):
        message = random_message(rng, schema, version)
        if schema.kind is Kind.RECORD:
            assert codec.decode_record(schema.name, codec.encode_record(schema.name, version, message)) == message
            continue
        api = next(api for api in APIS.values() if schema.name.removesuffix(schema.kind.value.capitalize()) == api.name)
        request = schema.kind is Kind.REQUEST
        encode = codec.encode_request if request else codec.encode_response
        decode = codec.decode_request if request else codec.decode_response
        assert decode(api.key, version, memoryview(b"".join(encode(api.key, version, message)))) == message


MEMBER = m.GroupMetadataValueMember(
    member_id="a",
    client_id="c",
    client_host="/1",
    session_timeout=100,
    subscription=b"su",
    assignment=b"as",
)
GROUP = m.GroupMetadataValue(protocol_type="consumer", generation=4, protocol="range", leader="a")
COMMIT = m.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=6)


def group(rebalance_timeout: int = 0, instance: str | None = None, timestamp: int = -1) -> m.GroupMetadataValue:
    member = msgspec.structs.replace(MEMBER, rebalance_timeout=rebalance_timeout, group_instance_id=instance)
    return msgspec.structs.replace(GROUP, current_state_timestamp=timestamp, members=[member])


def commit(**fields: object) -> m.OffsetCommitValue:
    return msgspec.structs.replace(COMMIT, **fields)


GROUP_HEAD = "0008 636f6e73756d6572 00000004 0005 72616e6765 0001 61"
MEMBER_TAIL = "00000064 00000002 7375 00000002 6173"
GOLDEN = [
    ("OffsetCommitKey", 0, m.OffsetCommitKey(group="g1", topic="t", partition=3), "0000 0002 6731 0001 74 00000003"),
    ("OffsetCommitKey", 1, m.OffsetCommitKey(group="g1", topic="t", partition=3), "0001 0002 6731 0001 74 00000003"),
    ("GroupMetadataKey", 2, m.GroupMetadataKey(group="g1"), "0002 0002 6731"),
    ("OffsetCommitValue", 0, commit(), "0000 0000000000000005 0001 6d 0000000000000006"),
    (
        "OffsetCommitValue",
        1,
        commit(expire_timestamp=7),
        "0001 0000000000000005 0001 6d 0000000000000006 0000000000000007",
    ),
    ("OffsetCommitValue", 2, commit(), "0002 0000000000000005 0001 6d 0000000000000006"),
    ("OffsetCommitValue", 3, commit(leader_epoch=2), "0003 0000000000000005 00000002 0001 6d 0000000000000006"),
    ("OffsetCommitValue", 4, commit(leader_epoch=2), "0004 0000000000000005 00000002 02 6d 0000000000000006 00"),
    (
        "OffsetCommitValue",
        4,
        commit(topic_id=UUID(int=(1 << 64) + 2)),
        "0004 0000000000000005 ffffffff 02 6d 0000000000000006 01 00 10 0000000000000001 0000000000000002",
    ),
    (
        "GroupMetadataValue",
        0,
        group(),
        f"0000 {GROUP_HEAD} 00000001 0001 61 0001 63 0002 2f31 {MEMBER_TAIL}",
    ),
    (
        "GroupMetadataValue",
        1,
        group(300),
        f"0001 {GROUP_HEAD} 00000001 0001 61 0001 63 0002 2f31 0000012c {MEMBER_TAIL}",
    ),
    (
        "GroupMetadataValue",
        2,
        group(300, None, 9),
        f"0002 {GROUP_HEAD} 0000000000000009 00000001 0001 61 0001 63 0002 2f31 0000012c {MEMBER_TAIL}",
    ),
    (
        "GroupMetadataValue",
        3,
        group(300, "i", 9),
        f"0003 {GROUP_HEAD} 0000000000000009 00000001 0001 61 0001 69 0001 63 0002 2f31 0000012c {MEMBER_TAIL}",
    ),
    (
        "GroupMetadataValue",
        4,
        group(300, "i", 9),
        "0004 09 636f6e73756d6572 00000004 06 72616e6765 02 61 0000000000000009"
        "02 02 61 02 69 02 63 03 2f31 0000012c 00000064 03 7375 03 6173 00 00",
    ),
]


@pytest.mark.parametrize(("name", "version", "message", "hexes"), GOLDEN)
def test_group_records_are_kafkas(name: str, version: int, message: m.Message, hexes: str) -> None:
    """Keys and values of `__consumer_offsets` have the bytes that Apache Kafka 4.3.1's generated classes write."""
    data = bytes.fromhex(hexes)
    assert codec.encode_record(name, version, message) == data
    assert codec.decode_record(name, data) == message
    assert codec.record_version(data) == version


def test_records_of_unknown_versions_are_refused() -> None:
    """A record from a newer Kafka is named, not guessed at."""
    with pytest.raises(InvalidRequest, match="GroupMetadataValue version 9 is unknown"):
        codec.decode_record("GroupMetadataValue", b"\x00\x09abc")
    with pytest.raises(InvalidRequest, match="no version"):
        codec.decode_record("GroupMetadataValue", b"\x00")


def test_messages_are_values() -> None:
    """Defaults, equality, slots, a repr that says what differs from the defaults; lists are not shared."""
    one, two = m.MetadataRequest(), m.MetadataRequest()
    assert one == two
    assert one.topics is not two.topics
    one.topics.append(m.MetadataRequestTopic(name="t"))
    assert one != two
    assert repr(one) == "MetadataRequest(topics=[MetadataRequestTopic(name='t')])"
    assert m.MetadataRequestTopic().topic_id == ZERO_UUID
    assert not hasattr(one, "__dict__")
    with pytest.raises(TypeError):
        m.MetadataRequest(nonsense=1)  # type: ignore[call-arg]


def test_fields_a_version_lacks_are_ignored() -> None:
    """One class serves all versions: an old version is written without what it cannot say."""
    rich = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id="i")
    plain = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    body = b"".join(codec.encode_request(ApiKey.HEARTBEAT, 0, rich))
    assert codec.decode_request(ApiKey.HEARTBEAT, 0, memoryview(body)) == plain


@pytest.mark.parametrize(
    "text",
    [
        "record X 0\n  a  nothing",
        "record X 0\n  a  [Thing]",
        "record X 0\n  a  Thing\n    b  int8",
        "record X 0\n  a  int8 0++",
        "record X 0\n    a  int8",
    ],
)
def test_a_wrong_table_does_not_parse(text: str) -> None:
    """Unknown types, structures without fields or outside arrays and tags, bad versions, bad depth."""
    with pytest.raises(ValueError):
        list(parse(text))


def test_the_parts_of_steps_are_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the arrays, tagged fields and records between two pauses."""
    monkeypatch.setattr(encoder, "STEP_ELEMENTS", 2)
    rng, pauses = random.Random(1), 0
    for schema in MESSAGES.values():
        if schema.kind is not Kind.RESPONSE:
            continue
        for version in range(schema.versions.low, schema.versions.high + 1):
            message = random_message(rng, schema, version)
            steps = encoder.build_stepped_encoder(schema, version)(message)
            while True:
                try:
                    next(steps)
                    pauses += 1
                except StopIteration as done:
                    parts = done.value
                    break
            whole = encoder.build_encoder(schema, version)(message)
            assert b"".join(map(bytes, parts)) == b"".join(map(bytes, whole)), (schema.name, version)  # type: ignore[arg-type]
    assert pauses > 100
