"""Which partitions this broker leads.

Owns the look-up tables of the request path, and what is said of a partition that is not in them. Always true: a
partition is in `partitions` from the moment it may be served until it resigns or its topic is deleted; one that the
image knows and somebody else is to lead is never told to be unknown. Must not know how partitions come to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.records import Row
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.following.follower_replica import FollowerReplica
from broker.partition.hosted_replica import HostedReplica
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.log_failures import LogFailures
from broker.partition.readable import Fetchable, Readable
from broker.replication.replication_counters import ReplicationCounters
from hotstore.host.open_log import Remains


class RefusedCopy(NamedTuple):
    """A log that a follower role could not open: the part of it that is whole counts among the candidates (R20)."""

    topic_id: UUID
    leader_epoch: int
    remains: Remains


class Registry:
    """Partitions by (topic name, index); topics by name. `node_id`: this broker's."""

    def __init__(self, metadata: MetadataCache, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self.partitions: dict[tuple[str, int], LeaderReplica] = {}
        """Those led here: what clients may write to and read from."""
        self.readable: Mapping[tuple[str, int], Readable] = self.partitions
        """Those that consumers may read here."""
        self.resigned: dict[tuple[str, int], LeaderReplica] = {}
        """Those that were led in this process and are no more: their logs are open."""
        self.starting: dict[tuple[str, int], LeaderReplica] = {}
        """Those that began uncleanly here and serve when the image says that it is done (R20)."""
        self.topics: dict[str, Topic] = {}
        """Those of which something was opened to be led here."""
        self.changes = 0
        """How often something began or ceased to be led: which topics and partitions these are, and in which epochs, is
        still so while this stands."""
        self.followed: dict[tuple[str, int], FollowerReplica] = {}
        """Those copied from another broker."""
        self.refused: dict[tuple[str, int], RefusedCopy] = {}
        """Those whose logs are too damaged to be copied to, as long as their roles last."""
        self.log_failures = LogFailures()
        """Logs here that are not as the cluster believes."""
        self.copied = ReplicationCounters()
        """What came from other brokers."""
        self.restless: dict[LeaderReplica, None] = {}
        """Those led here about whose in-sync sets something may be to do: what proposals are made of, never all."""
        self.touched: set[HostedReplica] = set()
        """Partitions appended to since they were last seen clean: what a tick looks at, never all of them."""

    def publish(self, topic: Topic, partitions: list[LeaderReplica]) -> None:
        """Make a topic and (more of) its partitions visible to clients."""
        self.changes += 1
        self.topics[topic.name] = topic
        for partition in partitions:
            self.partitions[topic.name, partition.index] = partition
            self.resigned.pop((topic.name, partition.index), None)
            self.starting.pop((topic.name, partition.index), None)

    def start(self, partition: LeaderReplica) -> None:
        """It is led, and not to be seen by clients or replicas yet."""
        self.starting[partition.topic, partition.index] = partition
        self.resigned.pop((partition.topic, partition.index), None)

    def withdraw(self, topic: Topic) -> None:
        """Take a topic away from clients; one of its name that came since stays."""
        self.changes += 1
        if (known := self.topics.get(topic.name)) is not None and known.topic_id == topic.topic_id:
            del self.topics[topic.name]
        for table in (self.partitions, self.resigned, self.starting):
            for index in range(topic.partitions):
                found = table.get((topic.name, index))
                if found is not None and found.topic_id == UUID(topic.topic_id):
                    del table[topic.name, index]
                    self.touched.discard(found)  # a closed log is never seen clean again: ticks would hold it for ever

    def resign(self, partition: LeaderReplica) -> None:
        """Take a partition that is led no longer away from clients. Its topic stays, and so do its ticks: what was
        appended has to be synced in time."""
        self.changes += 1
        key = partition.topic, partition.index
        for table in (self.partitions, self.starting):
            if table.get(key) is partition:
                del table[key]
        self.resigned[key] = partition

    def is_starting(self, partition: LeaderReplica) -> bool:
        """Whether it is led, and not to be seen by clients or replicas yet."""
        return self.starting.get((partition.topic, partition.index)) is partition

    def forget(self, partition: LeaderReplica) -> None:
        """It is led no more, and its log is another role's, or goes."""
        key = partition.topic, partition.index
        if self.resigned.get(key) is partition:
            del self.resigned[key]
        self.touched.discard(partition)

    def refuse(self, topic: str, index: int, copy: RefusedCopy) -> None:
        """A follower role could not open this log, and nobody leads."""
        self.refused[topic, index] = copy

    def forget_refused(self, topic: str, index: int, copy: RefusedCopy) -> None:
        """That role is over."""
        if self.refused.get((topic, index)) is copy:
            del self.refused[topic, index]

    def unfollow(self, followed: FollowerReplica) -> None:
        """It is copied no more."""
        key = followed.topic, followed.index
        if self.followed.get(key) is followed:
            del self.followed[key]
        self.touched.discard(followed)

    def refusal(self, name: str, index: int) -> ErrorCode:
        """What a client hears who asks for a partition that is not led here: that somebody else leads it, or nobody;
        unknown where there is none, and where this broker is to lead it and did not come to open it."""
        if (
            (name, index) in self.resigned
            or (name, index) in self.starting
            or (name, index) in self.followed
            or self.led_elsewhere(name, index) is not None
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def led_elsewhere(self, name: str, index: int) -> Row | None:
        """The row of a partition that another broker is to lead, or nobody; None for any other."""
        topic = self._metadata.topic_named(name)
        if topic is None or not 0 <= index < topic.partitions:
            return None
        row = topic.rows[index]
        return None if row.leader == self._node_id else row

    def copy(self, name: str, index: int) -> FollowerFetch | None:
        """What consumers may fetch of a partition that is followed here."""
        followed = self.followed.get((name, index))
        return None if followed is None else followed.readable()

    @property
    def reads(self) -> Iterator[FollowerFetch]:
        """Of all partitions that consumers read as they are followed here."""
        return (followed.reads for followed in self.followed.values() if followed.reads is not None)

    def serves(self, partition: Fetchable) -> bool:
        """Whether consumers are answered from it."""
        key = partition.topic, partition.index
        return (self.readable.get(key) or self.copy(*key)) is partition

    def high_watermark(self, name: str, index: int) -> int | None:
        """Of a partition that serves."""
        partition = self.readable.get((name, index))
        return None if partition is None else partition.high_watermark

    def led(self, name: str, index: int) -> LeaderReplica | None:
        """The one that is led here, whether it serves or is starting."""
        return self.partitions.get((name, index)) or self.starting.get((name, index))

    def of_topic(self, name: str) -> list[LeaderReplica]:
        """The led partitions of a topic, by index."""
        topic = self.topics.get(name)
        if topic is None:
            return []
        found = (self.partitions.get((name, index)) for index in range(topic.partitions))
        return [partition for partition in found if partition is not None]

    @property
    def written(self) -> list[HostedReplica]:
        """All whose logs are open here, in whatever role."""
        return [*self, *self.followed.values()]

    def is_open(self, written: HostedReplica) -> bool:
        """Whether it is led here, or followed."""
        key = written.topic, written.index
        return any(of.get(key) is written for of in (self.partitions, self.starting, self.followed))

    def __iter__(self) -> Iterator[LeaderReplica]:
        """All that were led here, and still are or not, followed ones left out."""
        return chain(self.partitions.values(), self.resigned.values(), self.starting.values())
