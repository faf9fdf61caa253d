"""Whether the session of this process still stands, by an image. Pure. Two processes differ by their incarnation,
whatever else they share (R1)."""

from __future__ import annotations

from enum import Enum

from broker.metadata.image import ClusterImage


class Standing(Enum):
    """What an image says about a process that registered."""

    IN_SESSION = "in session"
    ENDED = "its session ended"  # by silence or by leaving; no other process replaced it
    REPLACED = "another process serves as the node"  # exit 3: this one must answer no more


def standing(image: ClusterImage, node_id: int, incarnation: str) -> Standing:
    """Of the process `incarnation`, registered as `node_id` (R1)."""
    node = image.nodes.get(node_id)
    if node is not None and node.incarnation != incarnation:
        return Standing.REPLACED
    return Standing.IN_SESSION if node is not None and node.active else Standing.ENDED
