"""A cluster's root without a broker: sessions, topics and claims as membership and the controller make them.

Owns no decisions: whoever wants to see those asks the broker's rooms.
"""

from __future__ import annotations

from typing import TypeVar, TypeVarTuple
from uuid import UUID

from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot, ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Endpoint, MetadataRecord, Node, Row, TopicCreated
from broker.metadata.rows import session_began
from coldstore.object_store import ObjectStore
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.workers import InlineWorkers

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLUSTER = "eVGDrcSeSvinoZwBGM8ODg"


def session(
    incarnation: str = "i", *, node_id: int = 1, broker_epoch: int = 1, directory_id: str = "d", active: bool = True
) -> Node:
    return Node(
        node_id, broker_epoch, directory_id, incarnation, "boot", (Endpoint("PLAINTEXT", "h", 1),), None, active
    )


def id_of(number: int) -> str:
    return str(UUID(int=number))


def row(node_id: int = 1, epoch: int = 0, partition_epoch: int = 0) -> Row:
    """Of a partition that one node holds and leads."""
    return Row((node_id,), node_id, epoch, partition_epoch, (node_id,), epoch)


def created(number: int, partitions: int = 1, *, node_id: int = 1, **configs: str) -> TopicCreated:
    return TopicCreated(id_of(number), f"topic-{number}", (row(node_id),) * partitions, configs)


def registration(image: ClusterImage, incarnation: str, *, node_id: int = 1) -> list[MetadataRecord]:
    """A new session of the node, and what it leads from then on."""
    began = session(incarnation, node_id=node_id, broker_epoch=image.next_broker_epoch)
    return [began, *session_began(image.with_records([began]), node_id, is_other_directory=False)]


def cluster_root(store: ObjectStore, seed: int | str = 1) -> ClusterRoot:
    return ClusterRoot(store, SeededRng(seed), FastClock(), InlineWorkers())


async def claim(cluster: ClusterRoot, incarnation: str = "i", cluster_id: str = CLUSTER) -> ImageAt:
    """Become the controller, as one node's next session."""
    return await cluster.claim(cluster_id, Controller(1, incarnation), lambda image: registration(image, incarnation))
