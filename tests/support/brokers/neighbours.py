"""Other brokers of the cluster, as the image has them: for one broker that is asked what it says and does beside them.

Owns the records; they are committed by the broker's own office, so the broker obeys them as anybody's. Nobody runs the
others: what they lead is led by nobody else.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.controller.decisions.decision import Decision
from broker.metadata.image import Topic
from broker.metadata.records import NO_LEADER, Endpoint, MetadataRecord, Node, Row, RowsSet, TopicCreated
from tests.support.brokers.broker_kit import Life
from tests.support.brokers.cluster_kit import id_of


async def commit(life: Life, *records: MetadataRecord) -> None:
    """Make these records facts, and wait until the broker obeys them."""
    await life.context.controller._commit_queue.decide(lambda _: Decision(records, None))


def neighbour(life: Life, node_id: int, *, rack: str | None = None, active: bool = True) -> Node:
    """A new session of another node, reached at b<node id>:9092 by the listener PLAINTEXT."""
    listeners = (Endpoint("PLAINTEXT", f"b{node_id}", 9092),)
    epoch = life.context.metadata.image.next_broker_epoch
    return Node(node_id, epoch, f"d{node_id}", f"i{node_id}", "boot", listeners, rack, active)


async def join(life: Life, *node_ids: int) -> None:
    """These nodes have sessions."""
    for node_id in node_ids:
        await commit(life, neighbour(life, node_id))


def row(*replicas: int, leader: int | None = None, in_sync: tuple[int, ...] | None = None, epoch: int = 0) -> Row:
    """The first replica leads and all are in sync unless it is said otherwise."""
    return Row(replicas, replicas[0] if leader is None else leader, epoch, 0, in_sync or replicas, epoch)


async def create(life: Life, name: str, *rows: Row, number: int = 77) -> Topic:
    """A topic whose partitions have these rows."""
    await commit(life, TopicCreated(id_of(number), name, rows, {}))
    return life.context.metadata.topic(name)


async def move(life: Life, name: str, index: int, leader: int, *, beside: tuple[int, ...] = ()) -> None:
    """The partition moves to `leader` (NO_LEADER: nobody leads it), alone in the set, in its next leader epoch.
    `beside`: who holds it too, and thus keeps its log."""
    topic = life.context.metadata.topic(name)
    now = topic.rows[index]
    epoch, holders = now.leader_epoch + 1, now.replicas if leader == NO_LEADER else (leader,)
    moved = replace(
        now,
        replicas=(*holders, *beside),
        in_sync=holders,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=now.partition_epoch + 1,
        served_epoch=epoch,
    )
    await commit(life, RowsSet(topic.topic_id, ((index, moved),)))
