"""Status of the cluster in one image, for `GET /cluster`, `thermocline cluster status`, conditions and metrics.

This module defines under-replicated, below min, offline and starting (R2, R4, R20). A response shows one image; every
broker gives the same response for the same version. None: unknown (Apache Kafka does not report it). Pure, except that
a status of many partitions yields to other work.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from broker.config.network.addresses import show_address
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import FORGOTTEN, NO_LEADER, Node, Row
from seams.loop.turns import Turns, next_turn


class BrokerRow(msgspec.Struct, frozen=True):
    """A registered node.

    * `host`, `port`: its first listener, for clients; `brokers_at`: its address for brokers, empty when unknown.
    * `active`: it has a session; `broker_epoch`: the epoch of its last session.
    * `leaders`, `replicas`: partitions it leads and holds.
    * `machine`: the boot id of its machine.
    * `given_up`: `cluster forget` gave the node up, so the data on its disk does not count.
    """

    node: int
    host: str
    port: int
    rack: str | None = None
    active: bool = True
    broker_epoch: int | None = None
    leaders: int = 0
    replicas: int = 0
    brokers_at: str = ""
    machine: str = ""
    given_up: bool = False


class PartitionRow(msgspec.Struct, frozen=True, gc=False):
    """A partition.

    * `leader`: None without a leader.
    * `in_sync`: replicas with all committed records, including those without a session.
    * `under_replicated`: a replica is not in sync or has no session.
    * `below_min`: fewer than min.insync.replicas replicas are in sync and have a session, so acks=all is refused.
    * `starting`: the leader began without all acknowledged records and has not recovered them yet.
    """

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    target: tuple[int, ...] | None = None
    under_replicated: bool = False
    below_min: bool | None = None
    offline: bool = False
    starting: bool | None = None


class ClusterStatus(msgspec.Struct, frozen=True):
    """One image. `version`: its number of records. `controller_for_ms`: how long the answering broker has known the
    controller. 0 without a controller.
    """

    cluster_id: str | None
    controller: int | None
    controller_epoch: int | None
    controller_for_ms: int | None
    version: int | None
    brokers: list[BrokerRow]
    partitions: list[PartitionRow]


class AnsweringBroker(msgspec.Struct, frozen=True):
    """Data of the responding broker that are not in the image."""

    cluster_id: str
    controller: ControllerAt | None
    controller_for_s: float
    version: int
    brokers_listener: str


async def cluster_status(image: ClusterImage, asked: AnsweringBroker) -> ClusterStatus:
    """The complete image. 10 000 partitions take 40 ms; other work runs every 5 ms."""
    turns = Turns()
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    partitions = []
    for topic in sorted(image.topics.values(), key=lambda each: each.name):
        for index, row in enumerate(topic.rows):
            leaders[row.leader] += 1
            replicas.update(_assigned(row))
            partitions.append(partition_row(topic, index, image))
            if turns.over():
                await next_turn()
    controller = asked.controller
    return ClusterStatus(
        asked.cluster_id,
        None if controller is None else controller.node_id,
        None if controller is None else controller.epoch,
        int(asked.controller_for_s * 1000),
        asked.version,
        [
            broker_row(node, asked.brokers_listener, leaders[node_id], replicas[node_id])
            for node_id, node in sorted(image.nodes.items())
        ],
        partitions,
    )


def partition_row(topic: Topic, index: int, image: ClusterImage) -> PartitionRow:
    row = topic.rows[index]
    in_session = sum(1 for node_id in row.in_sync if (node := image.nodes.get(node_id)) is not None and node.active)
    return PartitionRow(
        topic.name,
        index,
        None if row.leader == NO_LEADER else row.leader,
        row.leader_epoch,
        row.replicas,
        row.in_sync,
        row.target,
        under_replicated=in_session < len(row.replicas),
        below_min=in_session < effective_min(topic, row, image),
        offline=row.leader == NO_LEADER,
        starting=not row.clean,
    )


def _assigned(row: Row) -> set[int]:
    return {*row.replicas, *row.target}


def broker_row(node: Node, brokers_listener: str = "", leaders: int = 0, replicas: int = 0) -> BrokerRow:
    at = {listener.name: (listener.host, listener.port) for listener in node.listeners}
    host, port = next(iter(at.values()), ("", 0))
    among = at.get(brokers_listener)
    return BrokerRow(
        node.node_id,
        host,
        port,
        node.rack,
        node.active,
        node.broker_epoch,
        leaders,
        replicas,
        "" if among is None else show_address(*among),
        node.boot_id,
        node.directory_id == FORGOTTEN,
    )
