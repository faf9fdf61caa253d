"""Placeholder node for unknown replicas; marks a cluster whose `cluster.json` was rebuilt from manifests (R29). Pure.

While an image has this node, no operator has confirmed that all brokers are back, so logs and objects missing from the
image are not deleted. The node never has a session, so a partition that is assigned to it does not start before the
node is given up.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace, Node, RowsSet
from logformat.record_batch import INT32_MAX

UNKNOWN_REPLICA: Final = INT32_MAX  # the node id for any earlier holder of a partition
EPOCHS_ABOVE: Final = 1 << 20
"""A rebuilt cluster's epochs begin this far above the epochs in the bucket, because the lost root may have had higher
epochs."""
_NO_DIRECTORY: Final = "rebuilt"


def unknown_replica(broker_epoch: int) -> Node:
    return Node(UNKNOWN_REPLICA, broker_epoch, _NO_DIRECTORY, "", "", (), None, active=False)


def said_to_hold(image: ClusterImage, node_id: int, places: Collection[LogPlace]) -> list[RowsSet]:
    """`node_id` reports logs of partitions without a known holder: the node becomes a replica of these partitions, and
    is asked about its logs when the placeholder is forgotten."""
    found: list[RowsSet] = []
    if not places:
        return found
    for topic_id, topic in image.topics.items():
        rows = tuple(
            (index, replace(row, replicas=(*row.replicas, node_id), partition_epoch=row.partition_epoch + 1))
            for index, row in enumerate(topic.rows)
            if (topic_id, index) in places
            and UNKNOWN_REPLICA in row.replicas
            and node_id not in (*row.replicas, *row.target)
        )
        if rows:
            found.append(RowsSet(topic_id, rows))
    return found


def is_rebuilt(image: ClusterImage) -> bool:
    """Whether deletion is still forbidden."""
    return UNKNOWN_REPLICA in image.nodes
