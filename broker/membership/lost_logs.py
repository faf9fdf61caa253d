"""Logs that a returning directory does not hold as its place in an in-sync set promises: which they are. Pure.

Owns the judgement, made before a session begins: the registering commit then takes the node out of those sets, so that
it copies them from others instead of leading without what was acknowledged (R18, R22; scenarios D6, D70, D75). Always
true: a log is named where others are assigned the partition, be they in its set or not: where nobody is left there,
all are asked what they hold, and the best of them begins uncleanly (R20); a log that nobody else may have is looked
into by who leads it (C30). One that is not in the set is named while its last session stands: a proposal that takes it
in may be decided before the next session begins. A log that is named without need is copied again, no more. Must not
know directories, nor how a session begins.

Of a cluster that was rebuilt nobody knows who held what (R29): there a directory says what lies in it, by topic id, for
a topic that was deleted and made again has its name twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from broker.membership.identity import DirectoryIdentity
from broker.metadata.image import ClusterImage
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from broker.metadata.records import LogPlace
from broker.metadata.row_steps import is_alone
from logformat.values import TopicPartition


def lost_logs(image: ClusterImage, node_id: int, boot_id: str, directory: DirectoryIdentity) -> tuple[LogPlace, ...]:
    """Of the directory that `node_id` served from before, now that its machine runs as `boot_id`: logs that are gone
    from it; all of them where a power cut may have taken what was written last, or where the node's last process did
    not write here: this is an older copy of the directory."""
    node = image.nodes.get(node_id)
    if node is None:
        return ()
    all_may_lack = is_older_copy(image, node_id, directory) or (directory.is_unsynced and node.boot_id != boot_id)
    return tuple(
        (topic.topic_id, index)
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if (node_id in row.in_sync or (node.active and node_id in (*row.replicas, *row.target)))
        and not is_alone(row, node_id)
        and (all_may_lack or TopicPartition(topic.name, index) not in directory.logs)
    )


def is_older_copy(image: ClusterImage, node_id: int, directory: DirectoryIdentity) -> bool:
    """Whether the node's last process did not write here: what it acknowledged, and the offsets it gave, are not known
    here. Where none was ever noted nobody can tell."""
    node, noted = image.nodes.get(node_id), directory.incarnations
    return node is not None and noted is not None and node.incarnation not in noted


def held_logs(image: ClusterImage, found: Mapping[TopicPartition, UUID]) -> tuple[LogPlace, ...]:
    """Of the logs that lie in a directory of this cluster, and the topics that they say they are of, those of
    partitions that nobody is known to hold."""
    return tuple(
        (topic.topic_id, index)
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if UNKNOWN_REPLICA in row.replicas and str(found.get(TopicPartition(topic.name, index))) == topic.topic_id
    )
