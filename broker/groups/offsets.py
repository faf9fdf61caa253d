"""Committed offsets of one group: durable positions, offsets of open transactions (`open_offsets`), and pending writes.

- `fetch` shows durable, committed positions only. A position with a pending write never expires. Otherwise its
  tombstone could be appended after a newer commit, and delete the commit.
- A position belongs to the topic that had the name at its commit, and is never shown for a later topic of the name
  (topic ids, KIP-516).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from broker.error_codes import ErrorCode
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import GroupState
from broker.groups.open_offsets import OpenOffsets
from broker.groups.records import NO_EXPIRY, CommittedOffset
from broker.metadata.image import TopicFacts, TopicLookup
from broker.wire.primitives import ZERO_UUID

# Bytes of a position without its metadata. Measured (CPython 3.11): 0.19 KB in a topic of many positions, 0.47 KB
# alone.
OFFSET_OVERHEAD_BYTES: Final = 500
NO_OFFSET: Final = CommittedOffset(-1, -1, "", -1)  # the answer for a partition without a commit
UNSTABLE: Final = CommittedOffset(-1, -1, "", -2)  # the answer for a position that an open transaction may change

TopicPosition: TypeAlias = tuple[str, int]


_ANY_TOPIC: Final = TopicFacts(ZERO_UUID, 2**31)


def any_topic(_: str) -> TopicFacts:
    """A `TopicLookup` without an image: every name is the name of an existing topic."""
    return _ANY_TOPIC


def belongs(value: CommittedOffset, facts: TopicFacts | None) -> bool:
    """Whether a position belongs to the current topic of its name."""
    return facts is not None and value.topic_id == facts.topic_id


class Wanted(NamedTuple):
    """A topic of an OffsetFetch."""

    topic: str
    partitions: Sequence[int]


class FetchedOffset(NamedTuple):
    topic: str
    partitions: tuple[tuple[int, CommittedOffset], ...]


class OffsetExpiry(NamedTuple):
    """Expiry rule for the offsets of a group. `since_ms`: time at which the group became empty; None: an offset's time
    begins at its commit."""

    since_ms: int | None
    subscribed: frozenset[str]


def refuses_metadata(metadata: str, units_max: int) -> ErrorCode:
    """Whether the metadata exceeds offset.metadata.max.bytes. As in Kafka, its length is that of a Java string (UTF-16
    units)."""
    if len(metadata) > units_max or len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > units_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


class GroupOffsets:
    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}
        self._pending: dict[TopicPosition, int] = {}
        self._adopted: set[TopicPosition] = set()  # positions without a topic id in the log yet
        self.open = OpenOffsets()
        self.count = 0  # number of committed positions
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes + self.open.count * OFFSET_OVERHEAD_BYTES + self.open.metadata_bytes

    @property
    def is_empty(self) -> bool:
        return not (self.count or self._pending or self.open.count)

    @property
    def positions_count(self) -> int:
        """An upper bound for the number of `positions`."""
        return self.count + self.open.count

    def positions(self) -> Iterator[TopicPosition]:
        """Positions with committed offsets, then positions with open offsets only."""
        for topic, partition, _ in self:
            yield topic, partition
        for topic, partition in self.open.positions():
            if self.get(topic, partition) is None:
                yield topic, partition

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._topics.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        return self._topics.get(topic, {}).get(partition)

    def holds(self, position: TopicPosition) -> bool:
        """Whether a tombstone would delete an offset here: a durable offset, a pending offset, or an open offset."""
        is_held = position in self._pending or self.open.holds(position)
        return is_held or position[1] in self._topics.get(position[0], {})

    def begin(self, positions: Iterable[TopicPosition]) -> None:
        for position in positions:
            self._pending[position] = self._pending.get(position, 0) + 1

    def end(self, positions: Iterable[TopicPosition]) -> None:
        """The outcome of a write of these positions is known. If the write is durable, `apply` follows."""
        for position in positions:
            left = self._pending[position] - 1
            if left:
                self._pending[position] = left
            else:
                del self._pending[position]

    def apply(self, topic: str, partition: int, value: CommittedOffset | None) -> None:
        """Apply a durable record (None: a tombstone). Calls follow the log's order. A smaller offset is allowed."""
        self.open.override((topic, partition))
        self._put(topic, partition, value)

    def repeated(self, topic: str, partition: int, value: CommittedOffset | None) -> None:
        """Apply a rewritten copy of a committed record (`ReplayedState.repeated`). The copy is not a later commit, so
        it does not replace open offsets."""
        self._put(topic, partition, value)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> list[TopicPosition]:
        """A marker commits or drops the open offsets of its producer. Returns the positions."""
        ended = self.open.end(producer_id, producer_epoch)
        for position, found in ended if is_commit else ():
            self.open.override(position, found.order)
            self._put(*position, found.value)
        return [position for position, _ in ended]

    def _put(self, topic: str, partition: int, value: CommittedOffset | None) -> None:
        partitions = self._topics.setdefault(topic, {})
        previous = partitions.pop(partition, None)
        if previous is not None:
            self.count -= 1
            self._size_bytes -= OFFSET_OVERHEAD_BYTES + len(previous.metadata)
        if value is not None:
            partitions[partition] = value
            self.count += 1
            self._size_bytes += OFFSET_OVERHEAD_BYTES + len(value.metadata)
        elif not partitions:
            del self._topics[topic]
        if self._adopted:
            self._adopted.discard((topic, partition))

    def fetch(
        self, wanted: Sequence[Wanted] | None, topics: TopicLookup = any_topic, *, require_stable: bool = False
    ) -> tuple[FetchedOffset, ...]:
        """Durable positions, NO_OFFSET for a position without one; `wanted` None: all. `require_stable`: UNSTABLE for a
        position with an open offset."""
        if require_stable and self.open.count:
            fetched = self.fetch(wanted, topics)
            return tuple(FetchedOffset(topic, tuple(self._stable(topic, rows, topics))) for topic, rows in fetched)
        if wanted is None:
            found = ((topic, self._of(topic, topics)) for topic in self._topics)
            return tuple(FetchedOffset(topic, tuple(held.items())) for topic, held in found if held)
        rows = []
        for topic, indexes in wanted:
            held = self._of(topic, topics)
            rows.append(FetchedOffset(topic, tuple((index, held.get(index, NO_OFFSET)) for index in indexes)))
        return tuple(rows)

    def _stable(
        self, topic: str, rows: Iterable[tuple[int, CommittedOffset]], topics: TopicLookup
    ) -> Iterator[tuple[int, CommittedOffset]]:
        facts = topics(topic)
        for partition, value in rows:
            may_change = any(belongs(one, facts) for one in self.open.of((topic, partition)))
            yield partition, UNSTABLE if may_change else value

    def _of(self, topic: str, topics: TopicLookup) -> dict[int, CommittedOffset]:
        held = self._topics.get(topic)
        if held is None:
            return {}
        facts = topics(topic)
        return {partition: value for partition, value in held.items() if belongs(value, facts)}

    # ---- topic ids -------------------------------------------------------------------------------------------------

    def adopt(self, topics: TopicLookup, leaving: Callable[[], Collection[str]]) -> None:
        """Give positions without a topic id to the current topics of their names, except those in `leaving`."""
        kept: Collection[str] | None = None  # read once, and only if there is such a position
        for topic, partitions in self._topics.items():
            for partition, value in partitions.items():
                if value.topic_id != ZERO_UUID:
                    continue
                kept = frozenset(leaving()) if kept is None else kept
                if topic in kept:
                    continue
                facts = topics(topic)
                if facts is not None and facts.topic_id != ZERO_UUID:
                    partitions[partition] = value._replace(topic_id=facts.topic_id)
                    self._adopted.add((topic, partition))

    def adopted(self) -> list[tuple[TopicPosition, CommittedOffset]]:
        """Positions that `adopt` changed and that have no later record, written or pending. Positions with an open
        offset are left out: the open offset may be newer, and a plain record would replace it."""
        free = (at for at in sorted(self._adopted) if at not in self._pending and not self.open.holds(at))
        return [(at, self._topics[at[0]][at[1]]) for at in free]

    def orphaned(self, topics: TopicLookup, names: Collection[str] | None = None) -> list[TopicPosition]:
        """Positions in deleted topics (with `names`, only in topics of these names). Positions that are being written
        now are left out. Positions with an open offset for the current topic of the name are left out too, because a
        tombstone would also remove the open offset."""
        gone: list[TopicPosition] = []
        for topic in self._topics if names is None else names:
            held = self._topics.get(topic)
            if held is None:
                continue
            facts = topics(topic)
            dead = ((topic, partition) for partition, value in held.items() if not belongs(value, facts))
            gone += [
                position
                for position in dead
                if position not in self._pending and not any(belongs(one, facts) for one in self.open.of(position))
            ]
        return gone

    # ---- expiry ----------------------------------------------------------------------------------------------------

    def expired(self, rule: OffsetExpiry, now_ms: int, retention_ms: int) -> list[TopicPosition]:
        """Expired positions. An explicit expiry (OffsetCommit v2–4) overrides the retention."""
        gone = []
        for topic, partition, value in self:
            at = (topic, partition)
            if topic in rule.subscribed or at in self._pending or self.open.holds(at):
                continue
            if value.expire_at_ms != NO_EXPIRY:
                over = now_ms >= value.expire_at_ms
            else:
                since_ms = value.committed_at_ms if rule.since_ms is None else rule.since_ms
                over = now_ms - since_ms >= retention_ms
            if over:
                gone.append((topic, partition))
        return gone


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def expiry_rule(group: ClassicGroup) -> OffsetExpiry | None:
    """The group's current expiry rule; None: no offset expires, for example while the members' subscriptions are
    unknown. Source: KIP-211; Kafka 4.3's `ClassicGroup.offsetExpirationCondition`."""
    if group.protocol_type is None:  # offsets of consumers outside group management
        return OffsetExpiry(None, frozenset())
    if group.state is GroupState.EMPTY:
        return OffsetExpiry(group.state_since_ms if group.state_since_ms >= 0 else None, frozenset())
    if group.is_consumer_group and group.state is GroupState.STABLE:
        subscribed = subscribed_of(group)
        return None if subscribed is None else OffsetExpiry(None, subscribed)
    return None


def subscribed_of(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that the members subscribe to under the group's protocol; None when unknown."""
    topics: set[str] = set()
    for member in group.members:
        of_member = subscribed_topics(member.subscriptions.get(group.protocol_name or "", b""))
        if of_member is None:
            return None
        topics |= of_member
    return frozenset(topics)


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Topics of a consumer protocol subscription; None when the bytes do not parse. All versions begin with these
    fields (KIP-429 "ConsumerProtocolSubscription": version int16, topics [string]); the rest is opaque."""
    try:
        (version,) = _INT16.unpack_from(subscription, 0)
        (count,) = _INT32.unpack_from(subscription, 2)
        if version < 0 or not 0 <= count <= len(subscription) // 2:
            return None
        at = 6
        topics = set()
        for _ in range(count):
            (length,) = _INT16.unpack_from(subscription, at)
            at += 2
            if length < 0 or at + length > len(subscription):
                return None
            topics.add(subscription[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
