"""The typed facts a cluster is made of: seven kinds, node, gone, topic, rows, deleted, purged, config.

Owns the record kinds stored in `cluster.json`. Always true: a record states an outcome, never a cause (two versions of
this software cannot draw two conclusions from it); nodes and rows are written whole; the image is what applying the
records in order gives (image.py); a kind, once released, keeps its meaning; fields are only added, with defaults. Must
not know where the records are kept.

There are tens of thousands of rows, in trees without a cycle: the collector need not look at them (`gc=False`).
"""

from __future__ import annotations

import msgspec

NO_LEADER = -1
NO_EPOCH = -1
FORGOTTEN = ""
"""The directory id of a node that was given up: that of no directory."""

LogPlace = tuple[str, int]
"""A partition's log, by topic id (a UUID in canonical text form) and index."""


class Listener(msgspec.Struct, frozen=True, gc=False):
    """Where clients reach a broker: the listener's name, host and port as advertised."""

    name: str
    host: str
    port: int


class Node(msgspec.Struct, frozen=True, tag="node", tag_field="t"):
    """A session: one life of a broker as the cluster sees it.

    `broker_epoch` is never given twice in a cluster. `directory_id` names what lies on the broker's disk: the same id,
    nothing acknowledged is missing; another id, everything is. `incarnation` names the process, `boot_id` the run of
    its machine. Not `active`: the session ended, by silence or by leaving; only a new one begins again. FORGOTTEN as
    the directory id: an operator gave the node up, what lies there counts for nothing.
    """

    node_id: int
    broker_epoch: int
    directory_id: str
    incarnation: str
    boot_id: str
    listeners: tuple[Listener, ...]
    rack: str | None = None
    active: bool = True


class NodeGone(msgspec.Struct, frozen=True, tag="gone", tag_field="t"):
    """The node of this session left the cluster for good: nothing is assigned to it."""

    node_id: int
    broker_epoch: int


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one partition, always written whole: about 30 bytes.

    `replicas` are assigned (before a move; `target` after it, empty while there is none), `in_sync` hold every
    committed record. `leader` is NO_LEADER while nobody may lead. `leader_epoch` grows by one with every change of
    leader, also when the same node comes back; `partition_epoch` with every row: 0, and the partition is new, so
    nothing of it exists anywhere. `served_epoch` is the leader epoch of the last row that is `clean`. `unclean_epoch`
    is the last leader epoch that began without all that was acknowledged (NO_EPOCH: none); not `clean`: such a start
    is not yet done.
    """

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[int, ...]
    served_epoch: int
    target: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH
    clean: bool = True

    @property
    def assigned(self) -> tuple[int, ...]:
        """All who hold it, or are to, the preferred leader first: as Kafka lists replicas while they move."""
        return (*self.target, *self.removing) if self.target else self.replicas

    @property
    def adding(self) -> tuple[int, ...]:
        """Who is to hold it after a move and did not before, by id."""
        return tuple(sorted({*self.target} - {*self.replicas}))

    @property
    def removing(self) -> tuple[int, ...]:
        """Who held it before a move and is not to after it, by id."""
        return tuple(sorted({*self.replicas} - {*self.target})) if self.target else ()


class TopicCreated(msgspec.Struct, frozen=True, tag="topic", tag_field="t", gc=False):
    """A topic exists from now on. `topic_id` is a UUID in its canonical text form; `rows` are its partitions in order;
    `configs` are explicit overrides."""

    topic_id: str
    name: str
    rows: tuple[Row, ...]
    configs: dict[str, str]
    internal: bool = False


class RowsSet(msgspec.Struct, frozen=True, tag="rows", tag_field="t", gc=False):
    """These partitions of a topic, by index, are as their rows say; indexes at the topic's end are new partitions."""

    topic_id: str
    rows: tuple[tuple[int, Row], ...]


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted", tag_field="t"):
    """The name is free again; local files and objects of the id are still to be removed."""

    topic_id: str


class TopicPurged(msgspec.Struct, frozen=True, tag="purged", tag_field="t"):
    """Nothing of a deleted topic is left, on disk or in the bucket."""

    topic_id: str


class ConfigsSet(msgspec.Struct, frozen=True, tag="config", tag_field="t"):
    """What was set is exactly this: on a topic (`topic_id`), on a broker (`node_id`), or (neither) on every broker."""

    configs: dict[str, str]
    topic_id: str | None = None
    node_id: int | None = None


MetadataRecord = Node | NodeGone | TopicCreated | RowsSet | TopicDeleted | TopicPurged | ConfigsSet
