"""`__consumer_offsets` byte for byte: what Kafka 4.3.1 wrote, and what we write."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.machine.events import GroupMetadata, MemberMetadata
from broker.groups.records import (
    CommittedOffset,
    GroupRecord,
    OffsetKey,
    OffsetRecord,
    group_record,
    offset_record,
    parse,
    partition_of,
    stored_group_record,
)
from broker.internal_topics.batches import KeyValue, Producer, batch_of, batches_in, chunks
from logformat.errors import Corrupt
from logformat.gap import gap_batches
from logformat.record_batch import walk
from logformat.records import Record, encode_batch, iter_records
from tests.support.groups.group_world import parse_batches
from tests.support.repository import GOLDEN

KAFKAS = (GOLDEN / "consumer_offsets_kafka_4_3_1.log").read_bytes()

names = st.text(max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberMetadata, names, st.none() | names, names, names, int32, int32, st.binary(max_size=40), st.binary(max_size=40)
)
groups = st.builds(
    GroupMetadata,
    names,
    int32,
    names,
    st.none() | names,
    int64,
    st.lists(
        members, max_size=3, unique_by=(lambda m: m.member_id, lambda m: m if m.instance_id is None else m.instance_id)
    ).map(tuple),
)


def parsed_of(record: KeyValue) -> OffsetRecord | GroupRecord | None:
    return parse(record.key, record.value)


def test_every_record_of_kafkas_log_reads_and_writes_back_the_same():
    """Apache Kafka 4.3.1: groups empty and full, static members, offsets with and without retention."""
    seen = set()
    count = 0
    for position, _ in walk(KAFKAS):
        for record in iter_records(KAFKAS, position):
            assert record.key is not None
            parsed = parse(record.key, record.value)
            if isinstance(parsed, OffsetRecord):
                again = offset_record(parsed.key, parsed.value)
            else:
                assert isinstance(parsed, GroupRecord) and parsed.metadata is not None
                again = group_record(parsed.group_id, parsed.metadata)
            assert again[:2] == (record.key, record.value)
            seen.add((record.key[1], (record.value or b"\xff\xff")[1]))
            count += 1
    assert seen == {(1, 4), (1, 1), (2, 3)} and count > 30


def test_a_worked_example():
    """The bytes of one commit and one group, by hand."""
    key, value, _ = offset_record(OffsetKey("g", "t", 3), CommittedOffset(258, 5, "m", 1, topic_id=UUID(int=1)))
    assert key == b"\0\x01\0\x01g\0\x01t\0\0\0\x03"
    assert value == (
        b"\0\x04"
        + b"\0\0\0\0\0\0\x01\x02"
        + b"\0\0\0\x05"
        + b"\x02m"
        + b"\0\0\0\0\0\0\0\x01"
        + b"\x01\0\x10"
        + b"\0" * 15
        + b"\x01"
    )
    key, value, _ = group_record("g", GroupMetadata("consumer", 2, None, None, -1, ()))
    assert (key, value) == (
        b"\0\x02\0\x01g",
        b"\0\x03\0\x08consumer\0\0\0\x02\xff\xff\xff\xff" + b"\xff" * 8 + b"\0\0\0\0",
    )


@pytest.mark.parametrize(
    ("group_id", "java_hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("g-dyn", 96563219),
        ("consumers", -421004483),
        ("connect-cluster", 1440343063),
        ("polygenelubricants", -(2**31)),  # Java's Integer.MIN_VALUE, which has no magnitude: Utils.abs says 0
        ("Ünïcode-グループ", 2017147705),
        ("😀", 1772899),  # two UTF-16 units
        ("\ud800x", 1714296),
    ],
)
def test_groups_lie_where_kafka_looks_for_them(group_id, java_hash_code):
    """Utils.abs(String.hashCode) % partitions; the hash codes are what OpenJDK prints."""
    magnitude = 0 if java_hash_code == -(2**31) else abs(java_hash_code)
    assert partition_of(group_id, 50) == magnitude % 50
    assert partition_of(group_id, 2**31) == magnitude


def test_the_partitions_kafka_chose():
    """Seen on a broker of 50 partitions."""
    assert partition_of("g-dyn", 50) == 19
    assert partition_of("g-simple", 50) == 22


@given(
    names, names, int32, int64, int32, names, int64, st.sampled_from([-1, 5]), st.integers(0, 2**128 - 1) | st.just(0)
)
def test_commits_survive_the_log(group_id, topic, partition, offset, epoch, metadata, at_ms, expire_at_ms, topic_id):
    """All fields, as far as the version that Kafka would choose has room for them."""
    key = OffsetKey(group_id, topic, partition)
    value = CommittedOffset(offset, epoch, metadata, at_ms, expire_at_ms, UUID(int=topic_id))
    if expire_at_ms != -1 and topic_id == 0:
        value = value._replace(leader_epoch=-1)  # version 1
    assert parsed_of(offset_record(key, value)) == OffsetRecord(key, value)
    assert parsed_of(offset_record(key, None)) == OffsetRecord(key, None)


@given(names, groups)
def test_groups_survive_the_log(group_id, metadata):
    """And the raw value makes the same record again."""
    record = group_record(group_id, metadata)
    parsed = parsed_of(record)
    assert parsed == GroupRecord(group_id, metadata, record.value)
    assert stored_group_record(group_id, record.value) == record
    assert parsed_of(stored_group_record(group_id, None)) == GroupRecord(group_id, None, None)


def test_records_of_other_kinds_are_left_out():
    """Keys 3–16 belong to KIP-848 and share groups; a broker that knows nothing of them must not stumble."""
    for version in range(3, 20):
        assert parse(bytes([0, version]) + b"\0\x01g", b"\0\0rest") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0", None),
        (b"\0\x01\0\x01g", None),
        (b"\0\x02\0\x01g", b"\0\x03\0\x08cons"),
        (b"\0\x02\0\x01g", b"\0\x09"),
        (b"\0\x01\0\x01g\0\x01t\0\0\0\x03", b"\0\x04\0"),
    ],
)
def test_what_cannot_be_read_is_corrupt(key, value):
    """Never a guess, never another exception."""
    with pytest.raises(Corrupt):
        parse(key, value)


def test_a_group_that_names_a_member_twice_is_corrupt():
    """Such a record could not become a group."""
    row = MemberMetadata("m", None, "", "", 1, 1, b"", b"")
    for rows, protocol in (((row, row), "p"), ((row,), None)):
        with pytest.raises(Corrupt):
            parsed_of(group_record("g", GroupMetadata("consumer", 1, protocol, "m", 0, rows)))
    twins = (row._replace(instance_id="i"), row._replace(member_id="n", instance_id="i"))
    with pytest.raises(Corrupt):
        parsed_of(group_record("g", GroupMetadata("consumer", 1, "p", "m", 0, twins)))


def test_control_batches_have_no_records_and_transactional_ones_name_their_producer():
    """Gaps after a lost disk; commits in transactions, which count when their marker is read."""
    record = offset_record(OffsetKey("g", "t", 0), CommittedOffset(1, -1, "", 0))
    gap = b"".join(gap_batches(0, 1_000, 0))
    transactional = encode_batch(
        [Record(1_000, 0, record.key, record.value)], transactional=True, producer_id=1, producer_epoch=0
    )
    plain = batch_of([record], 0, 1_001)
    parsed = list(parse_batches(gap + transactional + plain))
    assert [next_offset for next_offset, _ in parsed] == [1_000, 1_001, 1_002]
    assert [len(records) for _, records in parsed] == [0, 1, 1]
    producers = [record.producer for found in batches_in(gap + transactional + plain) for record in found.records]
    assert producers == [Producer(1, 0), None]
    assert [found.is_gap for found in batches_in(gap + transactional)] == [True, False]


@given(st.integers(0, 10_000))
def test_no_flipped_bit_is_believed(bit):
    """The CRC is checked here again: a batch that rotted on disk is Corrupt, not another offset."""
    record = offset_record(OffsetKey("g", "t", 0), CommittedOffset(1, -1, "", 0))
    batch = bytearray(batch_of([record], 0))
    bit %= 8 * len(batch)
    batch[bit // 8] ^= 1 << bit % 8
    if bit // 8 in range(8, 12) or bit // 8 >= 16:  # base offset and epoch lie outside the CRC
        with pytest.raises(Corrupt):
            list(parse_batches(bytes(batch)))


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(1, 5), st.integers(1, 60))
def test_chunks_keep_order_and_bounds(values, count_max, bytes_max):
    """Nothing lost; a chunk above the size is a single record."""
    records = [KeyValue(b"k", value) for value in values]
    made = list(chunks(records, count_max, bytes_max))
    assert [record for chunk in made for record in chunk] == records
    for chunk in made:
        assert 1 <= len(chunk) <= count_max
        assert len(chunk) == 1 or sum(record.size for record in chunk) <= bytes_max
