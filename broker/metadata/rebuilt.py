"""The mark of a cluster whose `cluster.json` was lost and made anew from the manifests (R29). Pure.

Owns the node that stands for replicas nobody knows, and how those that have a log take its side. Always true: an image
that has it was rebuilt and no operator said yet that all is there, so nothing is deleted by what such an image lacks;
it has no session and never gets one, so that where it is assigned nobody begins before it is given up, as with any
machine that may hold more than the others. Must not know how an image is rebuilt, nor who looks for the mark.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace, Node, RowsSet
from logformat.record_batch import INT32_MAX

UNKNOWN_REPLICA: Final = INT32_MAX
"""Its node id: whoever held a partition before."""
EPOCHS_ABOVE: Final = 1 << 20
"""So far above any epoch that the bucket shows a rebuilt cluster goes on: claims are lazy, so roots lag."""
_NO_DIRECTORY: Final = "rebuilt"


def unknown_replica(broker_epoch: int) -> Node:
    """The mark itself."""
    return Node(UNKNOWN_REPLICA, broker_epoch, _NO_DIRECTORY, "", "", (), None, active=False)


def said_to_hold(image: ClusterImage, node_id: int, places: Collection[LogPlace]) -> list[RowsSet]:
    """`node_id` says that it has logs of partitions that nobody is known to hold: it is a replica of them, and is asked
    for what is there when the others were given up."""
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
    """Whether nothing may be deleted yet."""
    return UNKNOWN_REPLICA in image.nodes
