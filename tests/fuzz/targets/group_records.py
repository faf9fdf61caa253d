"""Batches of `__consumer_offsets`: Corrupt, or groups and offsets that encode to the same meaning.

Input: bit 0 of the first byte: one record (key's length as int16, key, value); else log bytes, their CRCs
made right.
"""

from __future__ import annotations

from broker.groups.machine.events import GroupMetadata, MemberMetadata
from broker.groups.records import (
    CommittedOffset,
    GroupRecord,
    OffsetKey,
    OffsetRecord,
    Parsed,
    group_record,
    offset_record,
    parse,
    partition_of,
)
from broker.internal_topics.batches import batch_of
from logformat.errors import Corrupt
from logformat.record_batch import walk
from tests.fuzz.inputs import Cursor
from tests.fuzz.targets.record_batch import resealed
from tests.support.groups.group_world import parse_batches
from tests.support.repository import golden
from tests.support.tier.cold_values import TOPIC_ID


def seeds() -> list[bytes]:
    member = MemberMetadata("m-1", "static", "client", "/127.0.0.1", 60_000, 45_000, b"\0\x03sub", b"\0\x03asg")
    metadata = GroupMetadata("consumer", 4, "range", "m-1", 1_700_000_000_000, (member,))
    key = OffsetKey("group", "events", 3)
    pairs = (
        offset_record(key, CommittedOffset(5, 1, "note", 1_700_000_000_000)),
        offset_record(key, CommittedOffset(6, -1, "", 1_700_000_000_000, 1_700_000_009_000)),
        offset_record(key, CommittedOffset(7, 1, "é", 1_700_000_000_000, topic_id=TOPIC_ID)),
        group_record("group", metadata),
    )
    stored = golden("consumer_offsets_kafka_4_3_1.log")
    logs = [stored[at : at + header.size] for at, header in list(walk(stored))[:12]]
    logs.append(batch_of([*pairs, offset_record(key, None)], 5))
    singles = [b"\x01" + len(k).to_bytes(2, "big") + k + (v or b"") for k, v, _ in pairs]
    return singles + [b"\0" + log for log in logs]


def run(data: bytes) -> None:
    cursor = Cursor(data)
    if cursor.number() & 1:
        key = cursor.take(cursor.number(2))
        _record(key, cursor.rest())
        _record(key, None)
        return
    log = resealed(cursor.rest())
    try:
        for _, said in parse_batches(log):
            for record in said:
                _again(record)
    except Corrupt:
        return


def _record(key: bytes, value: bytes | None) -> None:
    try:
        said = parse(key, value)
    except Corrupt:
        return
    if said is not None:
        _again(said)


def _again(said: Parsed) -> None:
    """Written by us, it says the same."""
    match said:
        case OffsetRecord(key, value):
            assert 0 <= partition_of(key.group_id, 50) < 50
            if value is not None and value.expire_at_ms != -1:
                value = value._replace(leader_epoch=-1, topic_id=CommittedOffset._field_defaults["topic_id"])
            pair = offset_record(key, value)
            assert parse(pair.key, pair.value) == OffsetRecord(key, value)
        case GroupRecord(group_id, metadata, raw) if metadata is not None:
            pair = group_record(group_id, metadata)
            assert parse(pair.key, pair.value) == GroupRecord(group_id, metadata, pair.value)
            _ = raw
