"""The metadata records in `cluster.json`: node, gone, topic, rows, deleted, purged, config, scram, secret,
acls, quota.

A record states an outcome, never a cause, so two versions of this software cannot interpret it differently. Nodes and
rows are written whole. A released kind keeps its meaning; fields are only added, with defaults.

There are tens of thousands of rows, in trees without cycles: the garbage collector skips them (`gc=False`).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

NO_LEADER = -1
NO_EPOCH = -1
FORGOTTEN = ""  # the directory id of a node that was given up

LogPlace = tuple[str, int]
"""A partition's log: topic id (a UUID in canonical text form) and index."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    name: str
    host: str
    port: int


class Node(msgspec.Struct, frozen=True, tag="node", tag_field="t"):
    """A session of a broker. `broker_epoch` is unique in the cluster. `directory_id`: an unchanged id means that no
    acknowledged record is missing; with another id, all acknowledged records are missing. FORGOTTEN: an operator forgot
    the node. `incarnation` is the process, `boot_id` the machine since its boot. Not `active`: the session ended and
    never resumes.
    """

    node_id: int
    broker_epoch: int
    directory_id: str
    incarnation: str
    boot_id: str
    listeners: tuple[Endpoint, ...]
    rack: str | None = None
    active: bool = True


class NodeGone(msgspec.Struct, frozen=True, tag="gone", tag_field="t"):
    """The node of this session left the cluster. No partition is assigned to the node."""

    node_id: int
    broker_epoch: int


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one partition, always written whole: about 30 bytes.

    - `replicas`: the assigned replicas, before an ongoing move. `target`: the replicas after the move; empty without a
      move. `in_sync`: replicas with every committed record.
    - `leader`: NO_LEADER while no replica may lead. `leader_epoch` grows by one with every change of leader, also when
      the same node leads again.
    - `partition_epoch` grows with every row; 0: the partition is new and has no log anywhere.
    - `served_epoch`: the leader epoch of the last `clean` row. `unclean_epoch`: the last leader epoch that began
      without all acknowledged records (NO_EPOCH: none). Not `clean`: the unclean start is not done.
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
        """All replicas before and after a move, the preferred leader first, as Kafka lists them."""
        return (*self.target, *self.removing) if self.target else self.replicas

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(sorted({*self.target} - {*self.replicas}))

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(sorted({*self.replicas} - {*self.target})) if self.target else ()


class TopicCreated(msgspec.Struct, frozen=True, tag="topic", tag_field="t", gc=False):
    """A topic was created. `topic_id` is a UUID in canonical text form; `rows` are the partitions in order; `configs`
    are overrides."""

    topic_id: str
    name: str
    rows: tuple[Row, ...]
    configs: dict[str, str]
    internal: bool = False


class RowsSet(msgspec.Struct, frozen=True, tag="rows", tag_field="t", gc=False):
    """New rows of a topic's partitions, by index. Indexes at the topic's end are new partitions."""

    topic_id: str
    rows: tuple[tuple[int, Row], ...]


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted", tag_field="t"):
    """The topic is deleted and its name is free; local files and objects of the id remain to be removed."""

    topic_id: str


class TopicPurged(msgspec.Struct, frozen=True, tag="purged", tag_field="t"):
    """No file or object of a deleted topic is left, on disk or in the bucket."""

    topic_id: str


class ConfigsSet(msgspec.Struct, frozen=True, tag="config", tag_field="t"):
    """The configs of a topic (`topic_id`), of a broker (`node_id`), or of every broker (neither id is set). The record
    has all configs."""

    configs: dict[str, str]
    topic_id: str | None = None
    node_id: int | None = None


class ScramCredential(msgspec.Struct, frozen=True, tag="scram", tag_field="t"):
    """A user's credential of one SCRAM mechanism, as RFC 5802 stores it; `stored_key` empty: the credential is deleted.
    `mechanism` is Kafka's name, `SCRAM-SHA-256` or `SCRAM-SHA-512`."""

    user: str
    mechanism: str
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: int = 0


class ScramSecret(msgspec.Struct, frozen=True, tag="secret", tag_field="t"):
    """The cluster's secret for salts of unknown SCRAM users. It is set once, with the first user."""

    secret: bytes

    def __repr__(self) -> str:
        return "ScramSecret()"


class Acl(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One binding, by Kafka's numbers of resource types, pattern types, operations and permissions; fields in the order
    of Kafka's messages. Two bindings with equal values are the same binding."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclsChanged(msgspec.Struct, frozen=True, tag="acls", tag_field="t"):
    """Removed and added bindings, applied in this order."""

    added: tuple[Acl, ...] = ()
    removed: tuple[Acl, ...] = ()


PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
"""Kafka's names of client quotas (KIP-13, 124, 599, 612)."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]


class ClientQuotas(msgspec.Struct, frozen=True, tag="quota", tag_field="t"):
    """All quotas of one entity; empty: the quotas are deleted. `entity`: pairs of type (`user`, `client-id`, `ip`) and
    name (None: the default of that type), sorted by type. `quotas`: values by Kafka's names of the quotas (KIP-546)."""

    entity: QuotaEntity
    quotas: dict[str, float]


MetadataRecord = (
    Node
    | NodeGone
    | TopicCreated
    | RowsSet
    | TopicDeleted
    | TopicPurged
    | ConfigsSet
    | ScramCredential
    | ScramSecret
    | AclsChanged
    | ClientQuotas
)
