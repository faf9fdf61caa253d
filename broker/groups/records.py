"""Records of `__consumer_offsets`, byte for byte as Apache Kafka 4.3 writes them.

Other kinds of records (KIP-848 groups, transactions) are skipped. Source: observed in Apache Kafka 4.3.1: keys 0 and 1
are offsets (1 is written), key 2 is a group; offset values are version 4 with the topic id, 3 without a topic id, 1
when the client set a retention; group values are version 3.

Version 1 has no topic id, so a later topic of the same name could not be distinguished. For a commit with a retention,
this broker writes version 4 and puts the expiry into a tagged field that Kafka skips. This broker also reads version 1.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from broker.groups.machine.events import GroupMetadata, MemberMetadata
from broker.internal_topics.batches import KeyValue
from broker.internal_topics.partitioning import partition_of as partition_of
from broker.wire.codec import decode_record, encode_record, record_version
from broker.wire.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupMetadataValueMember,
    OffsetCommitKey,
    OffsetCommitValue,
)
from broker.wire.primitives import ZERO_UUID
from logformat.errors import Corrupt, InvalidRequest

NO_EXPIRY: Final = -1
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VALUE_WITH_EXPIRY: Final = 1
_OFFSET_VALUE: Final = 3
_OFFSET_VALUE_WITH_TOPIC_ID: Final = 4
_GROUP_VALUE: Final = 3


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed position. Times in wall ms; `expire_at_ms` −1: by the broker's retention. Leader epoch −1: none."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int = NO_EXPIRY
    topic_id: UUID = ZERO_UUID


class OffsetRecord(NamedTuple):
    key: OffsetKey
    value: CommittedOffset | None


class GroupRecord(NamedTuple):
    """A group's record. `raw` is the value in the log."""

    group_id: str
    metadata: GroupMetadata | None
    raw: bytes | None


Parsed: TypeAlias = OffsetRecord | GroupRecord


def offset_record(key: OffsetKey, value: CommittedOffset | None) -> KeyValue:
    """The record of a commit; None: its tombstone."""
    raw_key = encode_record("OffsetCommitKey", _OFFSET_KEY_VERSION, OffsetCommitKey(*key))
    if value is None:
        return KeyValue(raw_key, None)
    if value.topic_id != ZERO_UUID:
        version = _OFFSET_VALUE_WITH_TOPIC_ID
    else:
        version = _OFFSET_VALUE if value.expire_at_ms == NO_EXPIRY else _OFFSET_VALUE_WITH_EXPIRY
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.committed_at_ms,
        expire_timestamp=value.expire_at_ms,
        topic_id=value.topic_id,
        own_expire_timestamp=value.expire_at_ms,
    )
    return KeyValue(raw_key, encode_record("OffsetCommitValue", version, message))


def group_record(group_id: str, metadata: GroupMetadata) -> KeyValue:
    message = GroupMetadataValue(
        protocol_type=metadata.protocol_type,
        generation=metadata.generation,
        protocol=metadata.protocol_name,
        leader=metadata.leader,
        current_state_timestamp=metadata.state_since_ms,
        members=[
            GroupMetadataValueMember(
                member_id=row.member_id,
                group_instance_id=row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                rebalance_timeout=row.rebalance_timeout_ms,
                session_timeout=row.session_timeout_ms,
                subscription=row.subscription,
                assignment=row.assignment,
            )
            for row in metadata.members
        ],
    )
    return KeyValue(_group_key(group_id), encode_record("GroupMetadataValue", _GROUP_VALUE, message))


def stored_group_record(group_id: str, raw: bytes | None) -> KeyValue:
    """A group record with the bytes of an already stored value; None is the group's tombstone."""
    return KeyValue(_group_key(group_id), raw)


def _group_key(group_id: str) -> bytes:
    return encode_record("GroupMetadataKey", _GROUP_KEY_VERSION, GroupMetadataKey(group_id))


def parse(key: bytes, value: bytes | None) -> Parsed | None:
    """The parsed record; None for a kind that classic groups do not have. Raises Corrupt."""
    try:
        version = record_version(key)
        if version <= _OFFSET_KEY_VERSION:
            offset_key = cast(OffsetCommitKey, decode_record("OffsetCommitKey", key))
            where = OffsetKey(offset_key.group, offset_key.topic, offset_key.partition)
            return OffsetRecord(where, None if value is None else _offset(value))
        if version == _GROUP_KEY_VERSION:
            group_id = cast(GroupMetadataKey, decode_record("GroupMetadataKey", key)).group
            return GroupRecord(group_id, None if value is None else _group(value), value)
    except InvalidRequest as refused:
        raise Corrupt(f"a record of __consumer_offsets with key {key[:64]!r} cannot be read: {refused}") from refused
    return None


def _offset(value: bytes) -> CommittedOffset:
    message = cast(OffsetCommitValue, decode_record("OffsetCommitValue", value))
    return CommittedOffset(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp if message.own_expire_timestamp == NO_EXPIRY else message.own_expire_timestamp,
        message.topic_id,
    )


def _group(value: bytes) -> GroupMetadata:
    message = cast(GroupMetadataValue, decode_record("GroupMetadataValue", value))
    rows = tuple(
        MemberMetadata(
            row.member_id,
            row.group_instance_id,
            row.client_id,
            row.client_host,
            # Version 0 had no rebalance timeout.
            row.rebalance_timeout if record_version(value) >= 1 else row.session_timeout,
            row.session_timeout,
            bytes(row.subscription),
            bytes(row.assignment),
        )
        for row in message.members
    )
    ids = {row.member_id for row in rows}
    instances = [row.instance_id for row in rows if row.instance_id is not None]
    if len(ids) < len(rows) or len(set(instances)) < len(instances) or (rows and message.protocol is None):
        raise Corrupt(f"generation {message.generation} of a group names a member twice, or members but no protocol")
    return GroupMetadata(
        message.protocol_type,
        message.generation,
        message.protocol,
        message.leader,
        message.current_state_timestamp,
        rows,
    )
