"""The new `cluster.json` made from the partitions' manifests (R29). Pure.

Every epoch in it (leaders, brokers, controllers) is 2^20 above any that the bucket shows, because a newer epoch may
exist that the bucket does not show. Replicas are unknown, so no partition gets a leader before brokers report their
logs and a person confirms that all brokers did. A topic without a name in a manifest, or with the name of another
topic, is included only if a person names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from broker.controller.decisions.topics import PARTITIONS_PER_TOPIC_MAX
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.producer_ids import BROKER_EPOCHS
from broker.metadata.rebuilt import EPOCHS_ABOVE, UNKNOWN_REPLICA, unknown_replica
from broker.metadata.records import NO_LEADER, Row
from coldstore.keys import (
    MetadataKey,
    PageKey,
    RootKey,
    SegmentKey,
    SnapshotKey,
    manifest_key,
    parse_key,
    partition_prefix,
)
from coldstore.manifest.manifest import Manifest
from thermocline.cli.terminal.outcome import CommandFailed

EPOCH_MAX: Final = BROKER_EPOCHS - 2 * EPOCHS_ABOVE
"""Highest epoch that the bucket may show. 2^20 epochs remain for the rebuilt cluster. The producer ids of later ones
would not fit an int64."""
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})
Names = Mapping[UUID, str | None]
"""Topic names by id, from a person; None: leave it out."""


@dataclass(frozen=True, slots=True)
class Found:
    """A partition in the bucket: its manifest, or why it cannot be read; the highest leader epoch in its keys."""

    topic_id: UUID
    partition: int
    manifest: Manifest | str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class TopicRebuilt:
    """`partitions`: their number. `damaged`: partitions without a readable manifest, and why. `missing`: partitions
    without objects. `configs_differ`: the manifests disagree, and the configs of the newest manifest are used.
    """

    topic_id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str]
    damaged: Mapping[int, str]
    missing: Sequence[int]
    configs_differ: bool = False


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """`unnamed`: topics that need a name. `twice`: names of several topics. `epoch`: the number from which all epochs
    continue."""

    topics: Sequence[TopicRebuilt]
    unnamed: Sequence[UUID]
    twice: Mapping[str, Sequence[UUID]]
    left_out: Sequence[UUID]
    epoch: int

    @property
    def is_complete(self) -> bool:
        return not self.unnamed and not self.twice

    def image(self) -> ClusterImage:
        """The content of the new `cluster.json`."""
        assert self.is_complete
        row = Row((UNKNOWN_REPLICA,), NO_LEADER, self.epoch, 1, (), self.epoch)
        topics = {
            str(of.topic_id): Topic(
                str(of.topic_id), of.name, (row,) * of.partitions, dict(of.configs), of.name in INTERNAL
            )
            for of in self.topics
        }
        nodes = {UNKNOWN_REPLICA: unknown_replica(self.epoch)}
        return ClusterImage(topics=topics, nodes=nodes, next_broker_epoch=self.epoch + 1)


def check_keys(keys: Iterable[str]) -> None:
    """Raises CommandFailed for a key that no broker writes, because its partition number and epoch would be trusted."""
    for text in keys:
        key = parse_key(text)
        if key is None:
            continue
        partition = None if isinstance(key, MetadataKey) else key.partition
        if partition is not None and partition >= PARTITIONS_PER_TOPIC_MAX:
            raise CommandFailed(
                f"{text} names partition {partition}, but a topic has at most {PARTITIONS_PER_TOPIC_MAX:,}; {_STRAY}"
            )
        if not isinstance(key, RootKey):
            _check_epoch(key.epoch, text)


def _check_epoch(epoch: int, where: str) -> None:
    if epoch > EPOCH_MAX:
        raise CommandFailed(f"{where} has epoch {epoch}, above the highest possible one, {EPOCH_MAX}; {_STRAY}")


_STRAY: Final = "no broker writes such a name or epoch: move the object out of the bucket, and run this again"


def epochs_in(keys: Iterable[str]) -> dict[tuple[UUID, int], int]:
    """The highest leader epoch by partition in the keys of objects, named by a manifest or not."""
    found: dict[tuple[UUID, int], int] = {}
    for text in keys:
        key = parse_key(text)
        if isinstance(key, SegmentKey | PageKey | SnapshotKey):
            place = key.topic_id, key.partition
            found[place] = max(found.get(place, 0), key.epoch)
    return found


def rebuild_plan(partitions: Iterable[Found], names: Names, controller_epoch: int) -> RebuildPlan:
    """`controller_epoch`: the highest in `lease.json` and the keys of metadata pages. Raises CommandFailed for an
    impossible epoch.
    """
    _check_epoch(controller_epoch, "lease.json, or a page of metadata,")
    by_topic: dict[UUID, list[Found]] = {}
    highest = controller_epoch
    for of in partitions:
        by_topic.setdefault(of.topic_id, []).append(of)
        claimed = 0 if isinstance(of.manifest, str) else of.manifest.leader_epoch
        _check_epoch(claimed, manifest_key(of.topic_id, of.partition))
        _check_epoch(of.epoch, partition_prefix(of.topic_id, of.partition))
        highest = max(highest, of.epoch, claimed)
    topics, unnamed, left_out = [], [], []
    for topic_id, found in sorted(by_topic.items()):
        if topic_id in names and names[topic_id] is None:
            left_out.append(topic_id)
        elif (name := names.get(topic_id) or _name(found)) is None:
            unnamed.append(topic_id)
        else:
            topics.append(_topic(topic_id, name, found))
    counts = Counter(of.name for of in topics)
    twice = {
        name: [of.topic_id for of in topics if of.name == name] for name, count in sorted(counts.items()) if count > 1
    }
    return RebuildPlan(topics, unnamed, twice, left_out, highest + EPOCHS_ABOVE)


def _name(found: Sequence[Found]) -> str | None:
    """The topic name in the manifest with the highest leader epoch."""
    newest = _newest(found)
    return None if newest is None else newest.topic


def _newest(found: Sequence[Found]) -> Manifest | None:
    manifests = [of.manifest for of in found if isinstance(of.manifest, Manifest)]
    return max(manifests, key=lambda manifest: manifest.leader_epoch, default=None)


def _topic(topic_id: UUID, name: str, found: Sequence[Found]) -> TopicRebuilt:
    newest = _newest(found)
    configs = {} if newest is None else newest.configs
    there = {of.partition: of for of in found}
    count = max(there) + 1
    return TopicRebuilt(
        topic_id,
        name,
        count,
        configs,
        {of.partition: of.manifest for of in found if isinstance(of.manifest, str)},
        [index for index in range(count) if index not in there],
        any(isinstance(of.manifest, Manifest) and of.manifest.configs != configs for of in found),
    )
