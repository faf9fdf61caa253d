"""Committed offsets of one group, and when they expire."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.offsets import (
    NO_OFFSET,
    GroupOffsets,
    OffsetExpiry,
    Wanted,
    expiry_rule,
    refuses_metadata,
    subscribed_topics,
)
from broker.groups.records import CommittedOffset
from broker.metadata.image import TopicFacts
from tests.support.conversations.group_conversation import subscription
from tests.support.groups.group_play import Play, Protocol

DAY_MS = 86_400_000


def at(offset: int, committed_at_ms: int = 0, metadata: str = "", expire_at_ms: int = -1) -> CommittedOffset:
    return CommittedOffset(offset, -1, metadata, committed_at_ms, expire_at_ms)


def test_what_was_applied_is_fetched_and_nothing_else():
    """Unknown partitions answer −1 without an error."""
    offsets = GroupOffsets()
    offsets.begin([("t", 0)])
    assert offsets.fetch([Wanted("t", [0])])[0].partitions == ((0, NO_OFFSET),), "a write on its way is not seen"
    offsets.end([("t", 0)])
    offsets.apply("t", 0, at(5))
    offsets.apply("u", 1, at(6))
    assert offsets.fetch([Wanted("t", [0, 9])])[0].partitions == ((0, at(5)), (9, NO_OFFSET))
    assert [(row.topic, row.partitions) for row in offsets.fetch(None)] == [("t", ((0, at(5)),)), ("u", ((1, at(6)),))]


def test_tombstones_remove_and_later_commits_win_even_backwards():
    """A consumer may rewind."""
    offsets = GroupOffsets()
    offsets.apply("t", 0, at(9))
    offsets.apply("t", 0, at(3))
    assert offsets.get("t", 0) == at(3)
    offsets.apply("t", 0, None)
    offsets.apply("t", 0, None)
    assert offsets.get("t", 0) is None and offsets.count == 0 and offsets.fetch(None) == ()


@given(st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 2), st.none() | st.integers(0, 50)), max_size=40))
def test_counts_and_sizes_are_those_of_what_is_held(steps):
    """Whatever is applied in whatever order."""
    offsets = GroupOffsets()
    model: dict[tuple[str, int], CommittedOffset] = {}
    for topic, partition, length in steps:
        value = None if length is None else at(length, metadata="m" * length)
        offsets.apply(topic, partition, value)
        if value is None:
            model.pop((topic, partition), None)
        else:
            model[topic, partition] = value
    assert {(t, p): v for t, p, v in offsets} == model
    assert offsets.count == len(model)
    assert offsets.size_bytes == sum(500 + len(value.metadata) for value in model.values())


def test_metadata_is_measured_as_java_does():
    """offset.metadata.max.bytes counts UTF-16 units, whatever its name says."""
    assert refuses_metadata("ü" * 4_096, 4_096) is ErrorCode.NONE
    assert refuses_metadata("m" * 4_097, 4_096) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert refuses_metadata("😀" * 2_049, 4_096) is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_position_being_written_does_not_expire():
    """Else a tombstone decided on the old value would follow the commit into the log."""
    offsets = GroupOffsets()
    offsets.apply("t", 0, at(1))
    offsets.begin([("t", 0)])
    offsets.begin([("t", 0)])
    offsets.end([("t", 0)])
    assert offsets.expired(OffsetExpiry(None, frozenset()), 100, 10) == []
    offsets.end([("t", 0)])
    assert offsets.expired(OffsetExpiry(None, frozenset()), 100, 10) == [("t", 0)]


def test_what_counts_when_offsets_expire():
    """The commit's age, the time since the group emptied, or the client's own retention; never a subscribed topic."""
    offsets = GroupOffsets()
    offsets.apply("old", 0, at(1, 0))
    offsets.apply("new", 0, at(1, 90))
    offsets.apply("own", 0, at(1, 0, expire_at_ms=150))
    assert offsets.expired(OffsetExpiry(None, frozenset()), 100, 100) == [("old", 0)]
    assert offsets.expired(OffsetExpiry(50, frozenset()), 100, 100) == []
    assert offsets.expired(OffsetExpiry(50, frozenset()), 150, 100) == [("old", 0), ("new", 0), ("own", 0)]
    assert offsets.expired(OffsetExpiry(None, frozenset({"old"})), 100, 100) == []


OLD, NEW = UUID(int=1), UUID(int=2)


def test_positions_belong_to_the_topic_id():
    """Neither a topic that is gone nor a later one of its name has them; they are found for their tombstones, but for
    those being written at this moment: a tombstone must not follow a commit to the new topic into the log."""
    offsets = GroupOffsets()
    for topic, partition, topic_id in (("t", 0, OLD), ("t", 1, NEW), ("t", 2, OLD), ("gone", 0, OLD), ("u", 0, OLD)):
        offsets.apply(topic, partition, at(5)._replace(topic_id=topic_id))
    topics = {"t": TopicFacts(NEW, 3), "u": TopicFacts(OLD, 1)}.get
    found = [(row.topic, [i for i, _ in row.partitions]) for row in offsets.fetch(None, topics)]
    assert found == [("t", [1]), ("u", [0])]
    named = offsets.fetch([Wanted("t", [0, 1]), Wanted("gone", [0])], topics)
    assert [value.offset for row in named for _, value in row.partitions] == [-1, 5, -1]
    assert offsets.orphaned(topics) == [("t", 0), ("t", 2), ("gone", 0)]
    offsets.begin([("t", 0)])
    assert offsets.orphaned(topics) == [("t", 2), ("gone", 0)]
    assert offsets.orphaned(topics, {"gone", "u", "never"}) == [("gone", 0)]


def test_positions_without_a_topic_id_are_adopted_once():
    """By the topic that has the name, unless an earlier one of that name is still being removed."""
    offsets = GroupOffsets()
    for topic in ("t", "leaving", "gone"):
        offsets.apply(topic, 0, at(5))
    topics = {"t": TopicFacts(OLD, 1), "leaving": TopicFacts(NEW, 1)}.get
    offsets.adopt(topics, lambda: {"leaving"})
    assert offsets.adopted() == [(("t", 0), at(5)._replace(topic_id=OLD))]
    assert offsets.orphaned(topics) == [("leaving", 0), ("gone", 0)]
    later = {"t": TopicFacts(NEW, 1)}.get
    assert offsets.orphaned(later, {"t"}) == [("t", 0)]
    offsets.begin([("t", 0)])
    assert offsets.adopted() == []
    offsets.end([("t", 0)])
    offsets.apply("t", 0, at(6)._replace(topic_id=NEW))
    assert offsets.adopted() == [] and offsets.orphaned(later) == [("leaving", 0), ("gone", 0)]


# ---- the rule --------------------------------------------------------------------------------------------------------


def test_the_rule_follows_the_group():
    """Simple groups: each commit's age. With members: unsubscribed topics, once it is stable. Empty: since then."""
    p = Play(GroupConfig())
    assert expiry_rule(p.group) == OffsetExpiry(None, frozenset())
    p.join(new_id="a", protocols=(Protocol("range", subscription("t", "u")),))
    assert expiry_rule(p.group) is None, "who reads what is not decided yet"
    p.wait(3_000)
    assert expiry_rule(p.group) is None
    p.sync("a", given={})
    assert expiry_rule(p.group) == OffsetExpiry(None, frozenset({"t", "u"}))
    p.leave("a")
    assert expiry_rule(p.group) == OffsetExpiry(3_000, frozenset())


def test_groups_of_other_kinds_keep_their_offsets_while_they_have_members():
    """Nobody here can read what a Connect worker subscribes to."""
    p = Play(GroupConfig())
    p.become_stable("w", protocol_type="connect")
    assert expiry_rule(p.group) is None


def test_a_subscription_that_does_not_parse_keeps_everything():
    """Not knowing is no reason to delete."""
    p = Play(GroupConfig())
    p.become_stable("a", protocols=(Protocol("range", b"?"),))
    assert expiry_rule(p.group) is None


@pytest.mark.parametrize("topics", [(), ("t",), ("a", "b", "ü")])
def test_subscriptions_are_read(topics):
    """By the prefix that all versions of the consumer protocol share."""
    encoded = b"\0\x03" + len(topics).to_bytes(4, "big")
    for topic in topics:
        encoded += len(topic.encode()).to_bytes(2, "big") + topic.encode()
    assert subscribed_topics(encoded + b"whatever follows") == frozenset(topics)


@given(st.binary(max_size=30))
def test_subscriptions_never_surprise(noise):
    """Any bytes give topics or None."""
    topics = subscribed_topics(noise)
    assert topics is None or isinstance(topics, frozenset)


def test_a_count_that_lies_is_refused_before_anything_is_made_of_it():
    """2³¹ topics in eight bytes."""
    assert subscribed_topics(b"\0\0\x7f\xff\xff\xff\0\0") is None
