"""What a leader goes by, made of the image it applied: the one place that makes an `AppliedRow` (R2, R16).

Always true: set, minimum and sessions of one row come from one image; a set that is read anywhere else, or a minimum
that a broker's file names, would break the proof of `leader`. Pure. Must not know who leads, nor when the image moves.
"""

from __future__ import annotations

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.minimum import effective_min
from broker.replication.in_sync import AppliedRow


def applied_row(topic: Topic, index: int, image: ClusterImage) -> AppliedRow:
    """The row of a partition of `topic`, which is as `image` has it or newer, with the sessions that `image` knows."""
    row = topic.rows[index]
    nodes = image.nodes
    sessions = {
        node_id: node.broker_epoch
        for node_id in (*row.replicas, *row.target)
        if (node := nodes.get(node_id)) is not None and node.active
    }
    return AppliedRow(
        row.leader_epoch, row.partition_epoch, frozenset(row.in_sync), effective_min(topic, row, image), sessions
    )
