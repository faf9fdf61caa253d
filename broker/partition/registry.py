"""Look-up tables of this broker's partitions, by role.

A partition is in `partitions` from the time when it serves until it resigns or its topic is deleted. A request for a
partition with another leader never gets UNKNOWN_TOPIC_OR_PARTITION.
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
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.log_failures import LogFailures
from broker.partition.readable import HostedReplica, Readable
from broker.replication.catch_up import ReplicationCounters
from hotstore.host.open_log import RefusedLog


class RefusedCopy(NamedTuple):
    """A log that a follower role could not open. Its intact part counts among the candidates (R20)."""

    topic_id: UUID
    leader_epoch: int
    remains: RefusedLog


class Registry:
    """Partitions by (topic name, index), topics by name. `node_id`: the id of this broker."""

    def __init__(self, metadata: MetadataCache, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self.partitions: dict[tuple[str, int], LeaderReplica] = {}  # led here: clients write to and read from them
        self.readable: Mapping[tuple[str, int], Readable] = self.partitions  # consumers may read them here
        self.resigned: dict[tuple[str, int], LeaderReplica] = {}
        """Led earlier in this process; their logs are still open."""
        self.starting: dict[tuple[str, int], LeaderReplica] = {}
        """Led here after an unclean election, hidden until the image says that the recovery is done (R20)."""
        self.topics: dict[str, Topic] = {}  # topics of which a partition was opened to be led here
        self.changes = 0
        """Number of leadership changes here. Topics, partitions and leader epochs change only when this number
        changes."""
        self.followed: dict[tuple[str, int], FollowerReplica] = {}  # partitions copied from other brokers
        self.refused: dict[tuple[str, int], RefusedCopy] = {}  # logs too damaged to open, until their roles end
        self.log_failures = LogFailures()  # logs that failed or lost records
        self.copied = ReplicationCounters()  # counters of replicated data
        self.isr_pending: dict[LeaderReplica, None] = {}
        """Led partitions whose in-sync set may need a change. Only these are checked for proposals."""
        self.touched: set[HostedReplica] = set()
        """Partitions with unsynced appends or waiting acknowledgements. Only these are ticked."""

    def publish(self, topic: Topic, partitions: list[LeaderReplica]) -> None:
        """Make a topic and (more of) its partitions visible to clients."""
        self.changes += 1
        self.topics[topic.name] = topic
        for partition in partitions:
            self.partitions[topic.name, partition.index] = partition
            self.resigned.pop((topic.name, partition.index), None)
            self.starting.pop((topic.name, partition.index), None)

    def start(self, partition: LeaderReplica) -> None:
        """Add a partition that is led, but hidden from clients and replicas."""
        self.starting[partition.topic, partition.index] = partition
        self.resigned.pop((partition.topic, partition.index), None)

    def withdraw(self, topic: Topic) -> None:
        """Hide a deleted topic from clients. A newer topic of the same name stays."""
        self.changes += 1
        if (known := self.topics.get(topic.name)) is not None and known.topic_id == topic.topic_id:
            del self.topics[topic.name]
        for table in (self.partitions, self.resigned, self.starting):
            for index in range(topic.partitions):
                found = table.get((topic.name, index))
                if found is not None and found.topic_id == UUID(topic.topic_id):
                    del table[topic.name, index]
                    self.touched.discard(found)  # a closed log stays dirty, so it would be ticked for ever

    def resign(self, partition: LeaderReplica) -> None:
        """Hide a partition from clients when it is no longer led. It is still ticked, because its appended records must
        be synced in time."""
        self.changes += 1
        key = partition.topic, partition.index
        for table in (self.partitions, self.starting):
            if table.get(key) is partition:
                del table[key]
        self.resigned[key] = partition

    def is_starting(self, partition: LeaderReplica) -> bool:
        return self.starting.get((partition.topic, partition.index)) is partition

    def forget(self, partition: LeaderReplica) -> None:
        """Drop a partition whose log passes to another role or is removed."""
        key = partition.topic, partition.index
        if self.resigned.get(key) is partition:
            del self.resigned[key]
        self.touched.discard(partition)

    def forget_refused(self, topic: str, index: int, copy: RefusedCopy) -> None:
        """Drop the entry of a log that could not be opened: its role ended."""
        if self.refused.get((topic, index)) is copy:
            del self.refused[topic, index]

    def unfollow(self, followed: FollowerReplica) -> None:
        key = followed.topic, followed.index
        if self.followed.get(key) is followed:
            del self.followed[key]
        self.touched.discard(followed)

    def refusal(self, name: str, index: int) -> ErrorCode:
        """The error for a client's request to a partition that is not led here. NOT_LEADER_OR_FOLLOWER: another broker
        or none leads it. UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist, or is not open here yet."""
        if (
            (name, index) in self.resigned
            or (name, index) in self.starting
            or (name, index) in self.followed
            or self.led_elsewhere(name, index) is not None
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def led_elsewhere(self, name: str, index: int) -> Row | None:
        """The row of a partition that is led by another broker or by none; None for other partitions."""
        topic = self._metadata.topic_named(name)
        if topic is None or not 0 <= index < topic.partitions:
            return None
        row = topic.rows[index]
        return None if row.leader == self._node_id else row

    def copy(self, name: str, index: int) -> FollowerFetch | None:
        followed = self.followed.get((name, index))
        return None if followed is None else followed.readable()

    @property
    def reads(self) -> Iterator[FollowerFetch]:
        """Reads of every followed partition that consumers fetched from."""
        return (followed.reads for followed in self.followed.values() if followed.reads is not None)

    def serves(self, partition: Readable) -> bool:
        key = partition.topic, partition.index
        return (self.readable.get(key) or self.copy(*key)) is partition

    def high_watermark(self, name: str, index: int) -> int | None:
        partition = self.readable.get((name, index))
        return None if partition is None else partition.high_watermark

    def led(self, name: str, index: int) -> LeaderReplica | None:
        """The partition that is led here, visible or starting."""
        return self.partitions.get((name, index)) or self.starting.get((name, index))

    @property
    def written(self) -> list[HostedReplica]:
        """Every partition with an open log here, in any role."""
        return [*self, *self.followed.values()]

    def is_open(self, written: HostedReplica) -> bool:
        key = written.topic, written.index
        return any(of.get(key) is written for of in (self.partitions, self.starting, self.followed))

    def __iter__(self) -> Iterator[LeaderReplica]:
        """Every partition that is or was led in this process, except partitions that are followed now."""
        return chain(self.partitions.values(), self.resigned.values(), self.starting.values())
