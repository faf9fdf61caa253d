"""The committed offsets of one group: what is durable, and what is on its way.

Owns the positions and which of them have a write pending. Always true: what `fetch` shows is durable; a position with a
pending write never expires, so a tombstone decided on old facts cannot follow a commit into the log; a position is the
topic's that had the name when it was committed, and is never shown as a later one's (topic ids, KIP-516). Must not know
members, generations (the machine admits a commit before it comes here), the log, the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from broker.error_codes import ErrorCode
from broker.groups.records import NO_EXPIRY, CommittedOffset
from broker.metadata.topic_facts import TopicFacts, TopicLookup
from broker.wire.primitives import ZERO_UUID

OFFSET_OVERHEAD_BYTES: Final = 500
"""A position without its metadata (measured: 0.19 KB in a topic of many, 0.47 KB alone in its topic, CPython 3.11)."""

NO_OFFSET: Final = CommittedOffset(-1, -1, "", -1)
"""What is answered for a partition nobody committed."""

TopicPosition: TypeAlias = tuple[str, int]


_ANY_TOPIC: Final = TopicFacts(ZERO_UUID, 2**31)


def any_topic(_: str) -> TopicFacts:
    """A `TopicLookup` without topics: whatever is named exists, once."""
    return _ANY_TOPIC


def belongs(value: CommittedOffset, facts: TopicFacts | None) -> bool:
    """Whether a position is of the topic that has its name now."""
    return facts is not None and value.topic_id == facts.topic_id


class Wanted(NamedTuple):
    """A topic of an OffsetFetch."""

    topic: str
    partitions: Sequence[int]


class FetchedOffset(NamedTuple):
    topic: str
    partitions: tuple[tuple[int, CommittedOffset], ...]


class OffsetExpiry(NamedTuple):
    """When offsets of a group go: `since_ms` is when the group emptied, None: each counts from its own commit."""

    since_ms: int | None
    subscribed: frozenset[str]


def refuses_metadata(metadata: str, units_max: int) -> ErrorCode:
    """offset.metadata.max.bytes, which Kafka compares with the length of a Java string (UTF-16 units)."""
    if len(metadata) > units_max or len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > units_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


class GroupOffsets:
    """Positions by topic and partition."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}
        self._pending: dict[TopicPosition, int] = {}
        self._adopted: set[TopicPosition] = set()  # whose topic id is not in the log yet
        self.count = 0
        self.size_bytes = 0

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
        """Whether there is something a tombstone would take away, now or when it reaches the log."""
        return position in self._pending or position[1] in self._topics.get(position[0], {})

    def begin(self, positions: Iterable[TopicPosition]) -> None:
        """These are being written."""
        for position in positions:
            self._pending[position] = self._pending.get(position, 0) + 1

    def end(self, positions: Iterable[TopicPosition]) -> None:
        """That write is decided; `apply` what is durable."""
        for position in positions:
            left = self._pending[position] - 1
            if left:
                self._pending[position] = left
            else:
                del self._pending[position]

    def apply(self, topic: str, partition: int, value: CommittedOffset | None) -> None:
        """A durable record, None a tombstone; in the order of the log, whatever the offsets: rewinding is allowed."""
        partitions = self._topics.setdefault(topic, {})
        previous = partitions.pop(partition, None)
        if previous is not None:
            self.count -= 1
            self.size_bytes -= OFFSET_OVERHEAD_BYTES + len(previous.metadata)
        if value is not None:
            partitions[partition] = value
            self.count += 1
            self.size_bytes += OFFSET_OVERHEAD_BYTES + len(value.metadata)
        elif not partitions:
            del self._topics[topic]
        if self._adopted:
            self._adopted.discard((topic, partition))

    def fetch(self, wanted: Sequence[Wanted] | None, topics: TopicLookup = any_topic) -> tuple[FetchedOffset, ...]:
        """Durable positions, NO_OFFSET where there is none; None asks for all there are."""
        if wanted is None:
            found = ((topic, self._of(topic, topics)) for topic in self._topics)
            return tuple(FetchedOffset(topic, tuple(held.items())) for topic, held in found if held)
        rows = []
        for topic, indexes in wanted:
            held = self._of(topic, topics)
            rows.append(FetchedOffset(topic, tuple((index, held.get(index, NO_OFFSET)) for index in indexes)))
        return tuple(rows)

    def _of(self, topic: str, topics: TopicLookup) -> dict[int, CommittedOffset]:
        held = self._topics.get(topic)
        if held is None:
            return {}
        facts = topics(topic)
        return {partition: value for partition, value in held.items() if belongs(value, facts)}

    # ---- topics that come and go -----------------------------------------------------------------------------------

    def adopt(self, topics: TopicLookup, leaving: Callable[[], Collection[str]]) -> None:
        """Give positions without a topic id to the topics of their names, those in `leaving` excepted."""
        kept: Collection[str] | None = None  # asked for once, and only where such a position is
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
        """What `adopt` changed and no later record replaced or is about to."""
        return [(at, self._topics[at[0]][at[1]]) for at in sorted(self._adopted) if at not in self._pending]

    def orphaned(self, topics: TopicLookup, names: Collection[str] | None = None) -> list[TopicPosition]:
        """Positions in topics that are gone (of these `names` only), but for those being written at this moment."""
        gone: list[TopicPosition] = []
        for topic in self._topics if names is None else names:
            held = self._topics.get(topic)
            if held is None:
                continue
            facts = topics(topic)
            dead = ((topic, partition) for partition, value in held.items() if not belongs(value, facts))
            gone += [position for position in dead if position not in self._pending]
        return gone

    # ---- expiry ----------------------------------------------------------------------------------------------------

    def expired(self, rule: OffsetExpiry, now_ms: int, retention_ms: int) -> list[TopicPosition]:
        """Positions whose time is over. An explicit expiry (OffsetCommit v2–4) overrides the retention."""
        gone = []
        for topic, partition, value in self:
            if topic in rule.subscribed or (topic, partition) in self._pending:
                continue
            if value.expire_at_ms != NO_EXPIRY:
                over = now_ms >= value.expire_at_ms
            else:
                since_ms = value.committed_at_ms if rule.since_ms is None else rule.since_ms
                over = now_ms - since_ms >= retention_ms
            if over:
                gone.append((topic, partition))
        return gone
