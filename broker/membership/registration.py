"""A session of this broker: what registering says, and whether it still stands. Pure.

Owns the records of a start, and the fence between processes (R1). Always true: a session begins in a broker epoch never
given before, in one commit with a new leader epoch of all that the node leads; two processes are told apart by their
incarnation, whatever else they share. Must not know leases, controller epochs, or how records are committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.metadata.image import ClusterImage
from broker.metadata.records import Listener, MetadataRecord, Node
from broker.metadata.rows import registered


@dataclass(frozen=True, slots=True)
class Registration:
    """What a process says of itself. `incarnation` names it, `boot_id` the run of its machine; `listeners` are what it
    advertises, `rack` is where it stands."""

    node_id: int
    incarnation: str
    boot_id: str
    listeners: tuple[Listener, ...]
    rack: str | None = None


def session_records(image: ClusterImage, who: Registration, directory_id: str) -> list[MetadataRecord]:
    """`who` serves from the directory of this id from now on. Another id than before: nothing of what was acknowledged
    lies there (C30)."""
    before = image.nodes.get(who.node_id)
    session = Node(
        who.node_id, image.next_broker_epoch, directory_id, who.incarnation, who.boot_id, who.listeners, who.rack
    )
    is_other = before is not None and before.directory_id != directory_id
    return [session, *registered(image, who.node_id, is_other_directory=is_other)]


class Standing(Enum):
    """What an image says of a process that registered."""

    IN_SESSION = "in session"
    ENDED = "its session ended"  # by silence or by leaving; nobody took its place
    REPLACED = "another process serves as the node"  # exit 3: what this one answers is not the cluster's word


def standing(image: ClusterImage, node_id: int, incarnation: str) -> Standing:
    """Of the process `incarnation`, which registered as `node_id`."""
    node = image.nodes.get(node_id)
    if node is not None and node.incarnation != incarnation:
        return Standing.REPLACED
    return Standing.IN_SESSION if node is not None and node.active else Standing.ENDED
