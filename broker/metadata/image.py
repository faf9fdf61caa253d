"""The cluster image: a value that records make, and its invariants.

- The same records in the same order give the same image. A record applied twice, or an older row or session, changes
  nothing, because a commit whose response was lost is applied again.
- Epochs only grow. An image is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.metadata.records import (
    NO_LEADER,
    Acl,
    AclsChanged,
    ClientQuotas,
    ConfigsSet,
    Endpoint,
    MetadataRecord,
    Node,
    NodeGone,
    Row,
    RowsSet,
    ScramCredential,
    ScramSecret,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX
from logformat.values import is_topic_name

__all__ = ["ClusterImage", "Endpoint", "Node", "Row", "Topic", "check"]

FIRST_BROKER_EPOCH = 1
_TOPIC_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class Topic(msgspec.Struct, frozen=True, gc=False):
    """An existing topic; `rows` are its partitions by index, `configs` its overrides. `topic_id`: a UUID in canonical
    text form."""

    topic_id: str
    name: str
    rows: tuple[Row, ...]
    configs: dict[str, str]
    internal: bool

    @property
    def partitions(self) -> int:
        return len(self.rows)


class ClusterImage(msgspec.Struct):
    """Topics by id, deleted topics whose bytes remain, nodes by id, the next broker epoch, configs of all brokers and
    of single nodes; SCRAM credentials by user and mechanism, ACLs and client quotas, each without duplicates in the
    order of their creation. `scram`, `acls` and `quotas` are new objects exactly when their content changed."""

    topics: dict[str, Topic] = {}
    deleted: dict[str, Topic] = {}
    nodes: dict[int, Node] = {}
    next_broker_epoch: int = FIRST_BROKER_EPOCH
    cluster_configs: dict[str, str] = {}
    node_configs: dict[int, dict[str, str]] = {}
    scram: dict[str, dict[str, ScramCredential]] = {}
    acls: tuple[Acl, ...] = ()
    quotas: tuple[ClientQuotas, ...] = ()
    scram_secret: bytes = b""  # secret for salts of unknown users; empty until a user is added or a controller makes it

    def configs_of(self, node_id: int) -> tuple[dict[str, str], dict[str, str]]:
        return self.cluster_configs, self.node_configs.get(node_id, {})

    def has_session(self, node_id: int, broker_epoch: int) -> bool:
        """Whether this is the node's session, and has not ended."""
        node = self.nodes.get(node_id)
        return node is not None and node.active and node.broker_epoch == broker_epoch

    def topic_named(self, name: str) -> Topic | None:
        """The topic of this name, found by a scan. The request path uses the index of `MetadataCache` instead."""
        return next((topic for topic in self.topics.values() if topic.name == name), None)

    def with_records(self, records: Iterable[MetadataRecord]) -> ClusterImage:
        """A new image with the records applied. This image does not change. Raises Corrupt if the indexes of new rows
        leave a gap."""
        image = ClusterImage(
            dict(self.topics),
            dict(self.deleted),
            dict(self.nodes),
            self.next_broker_epoch,
            self.cluster_configs,
            dict(self.node_configs),
            self.scram,
            self.acls,
            self.quotas,
            self.scram_secret,
        )
        # Applied in one step, because one request may change thousands, and each step copies all.
        quotas: list[ClientQuotas] = []
        credentials: list[ScramCredential] = []
        for record in records:
            if isinstance(record, ClientQuotas):
                quotas.append(record)
            elif isinstance(record, ScramCredential):
                credentials.append(record)
            else:
                image._apply(record)
        if quotas:
            image.quotas = _with_quotas(self.quotas, quotas)
        if credentials:
            image.scram = _with_credentials(self.scram, credentials)
        return image

    def _apply(self, record: MetadataRecord) -> None:
        match record:
            case Node():
                self._register(record)
            case NodeGone(node_id, broker_epoch):
                known = self.nodes.get(node_id)
                if known is not None and known.broker_epoch <= broker_epoch:
                    del self.nodes[node_id]
            case TopicCreated(topic_id):
                if topic_id not in self.deleted and topic_id not in self.topics:
                    self.topics[topic_id] = Topic(topic_id, record.name, record.rows, record.configs, record.internal)
            case RowsSet(topic_id, rows):
                if (topic := self.topics.get(topic_id)) is not None:
                    self.topics[topic_id] = _with_rows(topic, rows)
            case TopicDeleted(topic_id):
                if (topic := self.topics.pop(topic_id, None)) is not None:
                    self.deleted[topic_id] = topic
            case TopicPurged(topic_id):
                self.deleted.pop(topic_id, None)
            case ConfigsSet(configs, str(topic_id), _):
                if (topic := self.topics.get(topic_id)) is not None:
                    self.topics[topic_id] = replace(topic, configs=configs)
            case ConfigsSet(configs, None, int(node_id)):
                self.node_configs[node_id] = configs
            case ConfigsSet(configs, None, None):
                self.cluster_configs = configs
            case ScramSecret(secret):
                self.scram_secret = self.scram_secret or secret
            case AclsChanged(added, removed):
                self.acls = _with_acls(self.acls, added, removed)

    def _register(self, record: Node) -> None:
        """Apply a new session, or the end of the current session. An ended session never resumes."""
        known = self.nodes.get(record.node_id)
        is_new = record.broker_epoch >= self.next_broker_epoch
        if is_new:
            self.next_broker_epoch = record.broker_epoch + 1
        elif known is None or known.broker_epoch != record.broker_epoch or record.active:
            return
        self.nodes[record.node_id] = record


def _with_rows(topic: Topic, changed: Iterable[tuple[int, Row]]) -> Topic:
    rows = list(topic.rows)
    for index, row in changed:
        if index == len(rows):
            rows.append(row)
        elif not 0 <= index < len(rows):
            raise Corrupt(
                f"cluster metadata has a row of {topic.name}-{index}, but the topic has {len(rows)} partitions"
            )
        elif row.partition_epoch > rows[index].partition_epoch:
            rows[index] = row
    return replace(topic, rows=tuple(rows))


def _with_credentials(
    known: dict[str, dict[str, ScramCredential]], records: Iterable[ScramCredential]
) -> dict[str, dict[str, ScramCredential]]:
    now = dict(known)
    for record in records:
        had = now.get(record.user, {})
        if had.get(record.mechanism) == record or (record.mechanism not in had and not record.stored_key):
            continue
        has = {mechanism: credential for mechanism, credential in had.items() if mechanism != record.mechanism}
        if record.stored_key:
            has[record.mechanism] = record
        now.pop(record.user, None)
        if has:
            now[record.user] = has
    return known if now == known else now


def _with_acls(known: tuple[Acl, ...], added: tuple[Acl, ...], removed: tuple[Acl, ...]) -> tuple[Acl, ...]:
    gone = frozenset(removed)
    kept = dict.fromkeys((*(acl for acl in known if acl not in gone), *added))
    return known if len(kept) == len(known) and all(acl in kept for acl in known) else tuple(kept)


def _with_quotas(known: tuple[ClientQuotas, ...], records: Iterable[ClientQuotas]) -> tuple[ClientQuotas, ...]:
    now = {one.entity: one for one in known}
    for record in records:
        if now.get(record.entity) != record:
            now.pop(record.entity, None)
            if record.quotas:
                now[record.entity] = record
    changed = tuple(now.values())
    return known if changed == known else changed


_EMPTY = ClusterImage()


def check(image: ClusterImage, before: ClusterImage = _EMPTY) -> None:
    """Check the invariants. Raises Corrupt unless a controller can have made this image. Images are checked before
    records are written and after they are read, because names become local paths and ids become keys. `before`: a
    checked image from which records made this image. Objects in both images are skipped; rows only if the nodes are the
    same."""
    for node_id, node in image.nodes.items():
        if node.node_id != node_id or not 0 <= node.broker_epoch < image.next_broker_epoch:
            raise _impossible(f"node {node.node_id} in broker epoch {node.broker_epoch}")
    # No record renames a topic: a duplicate name can only come with a new topic.
    if before.topics.keys() != image.topics.keys() and _is_a_name_twice(image):
        raise _impossible("two topics with the same name")
    same_nodes = before.nodes == image.nodes
    for topic_id, topic in image.topics.items():
        known = before.topics.get(topic_id)
        if known is not topic or not same_nodes:
            _check_topic(topic_id, topic)
            _check_rows(image, topic, () if known is None else known.rows, skip_same=same_nodes)
    for topic_id, topic in image.deleted.items():
        if topic_id not in before.deleted:
            _check_topic(topic_id, topic)


def _is_a_name_twice(image: ClusterImage) -> bool:
    return len({topic.name for topic in image.topics.values()}) < len(image.topics)


def _check_topic(key: str, topic: Topic) -> None:
    is_id = key == topic.topic_id and _TOPIC_ID.fullmatch(key) is not None
    if not is_id or not is_topic_name(topic.name) or not 0 < topic.partitions <= INT32_MAX:
        raise _impossible(f"topic {topic.name[:60]!r} of id {topic.topic_id[:40]!r}, {topic.partitions} partitions")


def _check_rows(image: ClusterImage, topic: Topic, known: tuple[Row, ...], *, skip_same: bool) -> None:
    nodes = image.nodes
    alone = {(node_id,) for node_id, node in nodes.items() if node.active}
    for index, row in enumerate(topic.rows):
        before = known[index] if index < len(known) else None
        if before is row and skip_same:
            continue
        are_epochs = (
            0 <= row.leader_epoch <= INT32_MAX
            and 0 <= row.partition_epoch <= INT32_MAX
            and -1 <= row.served_epoch <= row.leader_epoch
            and -1 <= row.unclean_epoch <= row.leader_epoch
            and (row.clean or row.served_epoch < row.unclean_epoch)
            and (before is None or before.leader_epoch <= row.leader_epoch)
        )
        # The common case: one node is the only replica and leads. 10 000 such rows take 6 ms.
        is_alone = row.replicas == row.in_sync == (row.leader,) in alone and not row.target
        if not are_epochs or not (is_alone or _are_sets(row, nodes)):
            raise _impossible(f"{topic.name}-{index} as {row}")


def _are_sets(row: Row, nodes: dict[int, Node]) -> bool:
    """Whether a row is valid: replicas are registered and distinct, in-sync replicas are assigned, and the leader is an
    in-sync replica with a session, or there is no leader."""
    assigned = (*row.replicas, *row.target)
    return (
        bool(row.replicas)
        and all(len(set(named)) == len(named) for named in (row.replicas, row.in_sync, row.target))
        and all(node_id in nodes for node_id in assigned)
        and all(node_id in assigned for node_id in row.in_sync)
        and (row.leader == NO_LEADER or (row.leader in row.in_sync and nodes[row.leader].active))
    )


def _impossible(what: str) -> Corrupt:
    return Corrupt(f"cluster metadata holds an impossible value: {what}")


class TopicFacts(NamedTuple):
    topic_id: UUID
    partitions: int


TopicLookup: TypeAlias = Callable[[str], TopicFacts | None]
"""The topic of a name; None when there is no such topic."""
