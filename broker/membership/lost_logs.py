"""Finds logs of a returning directory that lack acknowledged records although their replica is in sync. Pure.

The check is made before the session begins. The commit of the registration removes the node from the in-sync sets of
these logs. The node thus copies the logs from other brokers and does not lead without acknowledged records (R18, R22;
scenarios D6, D70, D75).

- A log is reported if other brokers are assigned the partition, in sync or not. If no in-sync replica is left, all
  replicas are asked and the best replica leads uncleanly (R20). The leader itself checks a log that no other broker may
  have (C30).
- A replica outside the set is reported while its last session exists, because a proposal may add the replica before the
  next session begins. A log that is reported without need is only copied again.
- After a rebuild no holder is known (R29). The directory then reports its logs by topic id, because a deleted and
  re-created topic has the same name.
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
    """The lost logs in the directory of `node_id`, on a machine booted as `boot_id`. Missing logs are lost. After a
    possible power cut, and in an older copy of the directory, all logs count as lost.
    """
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
    """Whether the node's last process wrote to another directory, so that its acknowledgements and reservations are
    unknown here. False if no process is recorded."""
    node, noted = image.nodes.get(node_id), directory.incarnations
    return node is not None and noted is not None and node.incarnation not in noted


def held_logs(image: ClusterImage, found: Mapping[TopicPartition, UUID]) -> tuple[LogPlace, ...]:
    """The logs in this directory of partitions without a known holder. `found`: topic ids of the logs here."""
    return tuple(
        (topic.topic_id, index)
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if UNKNOWN_REPLICA in row.replicas and str(found.get(TopicPartition(topic.name, index))) == topic.topic_id
    )
