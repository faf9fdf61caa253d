"""Asking for what `cluster status` shows: one broker for the image it obeys, each for itself.

Owns the connections of one look. Always true: one broker that answers is enough; what the others do not say is not
known, and that they do not answer is said. A cluster without our HTTP port (Apache Kafka) is shown as Metadata has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from broker.config.addresses import show_address
from broker.wire.messages import MetadataResponse
from thermocline.cli.cluster_status import Broker, Cluster, Partition, Seen
from thermocline.cli.tier_source import connect, http_of, said
from thermocline.cli.tier_status import BrokerStatus
from thermocline.cli.wire_client import BrokerUnreachable, WireClient

_STORE_AWAY: Final = "store_unreachable"
_ANSWER_S: Final = 3.0  # of each broker: one that is stopped keeps the picture waiting no longer


class _Image(msgspec.Struct, frozen=True):
    """What `GET /cluster` answers."""

    cluster_id: str
    controller: int
    controller_epoch: int
    controller_for_ms: int
    version: int
    brokers: list[Broker]
    partitions: list[Partition]


class ClusterSource:
    """Repeated looks at the same cluster: brokers that were seen once are asked when those of `bootstrap` are away."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._known: list[str] = []

    def read(self) -> Seen:
        """The cluster now. BrokerUnreachable when no address answers."""
        with connect(",".join((self._bootstrap, *self._known))) as client:
            metadata = client.metadata()
        self._known = [show_address(broker.host, broker.port) for broker in metadata.brokers]
        image: _Image | None = None
        silent: dict[int, str] = {}
        own: dict[int, BrokerStatus] = {}
        for broker in metadata.brokers:
            try:
                with WireClient(broker.host, broker.port, _ANSWER_S) as client:
                    address = http_of(client, broker.node_id)
            except BrokerUnreachable as failed:
                silent[broker.node_id] = str(failed)
                continue
            if address is None:
                continue
            image = image or said(address, "/cluster", _Image)
            if (status := said(address, "/broker", BrokerStatus)) is not None:
                own[broker.node_id] = status
        if image is None:
            return _as_metadata_has_it(metadata, silent)
        return _as_image_has_it(image, own, silent)


def _as_image_has_it(image: _Image, own: Mapping[int, BrokerStatus], silent: dict[int, str]) -> Seen:
    """`own`: what each broker says of itself."""
    conditions = {node: status.conditions for node, status in own.items()}
    reached = {node: all(one.name != _STORE_AWAY for one in held) for node, held in conditions.items()}
    cluster = Cluster(
        image.cluster_id,
        image.controller if image.controller >= 0 else None,
        image.controller_epoch if image.controller_epoch >= 0 else None,
        image.controller_for_ms,
        image.version,
    )
    brokers = [msgspec.structs.replace(one, store_reachable=reached.get(one.node)) for one in image.brokers]
    partitions = [one if one.leader != -1 else msgspec.structs.replace(one, leader=None) for one in image.partitions]
    return Seen(cluster, brokers, partitions, silent, conditions)


def _as_metadata_has_it(metadata: MetadataResponse, silent: dict[int, str]) -> Seen:
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    partitions = []
    for topic in sorted(metadata.topics, key=lambda each: each.name or ""):
        for found in sorted(topic.partitions, key=lambda each: each.partition_index):
            leaders[found.leader_id] += 1
            replicas.update(found.replica_nodes)
            partitions.append(
                Partition(
                    topic.name or "",
                    found.partition_index,
                    found.leader_id if found.leader_id >= 0 else None,
                    found.leader_epoch if found.leader_epoch >= 0 else None,
                    tuple(found.replica_nodes),
                    tuple(found.isr_nodes),
                    under_replicated=len(found.isr_nodes) < len(found.replica_nodes),
                    offline=found.leader_id < 0,
                )
            )
    brokers = [
        Broker(one.node_id, one.host, one.port, one.rack, leaders=leaders[one.node_id], replicas=replicas[one.node_id])
        for one in sorted(metadata.brokers, key=lambda each: each.node_id)
    ]
    controller = metadata.controller_id if metadata.controller_id >= 0 else None
    return Seen(Cluster(metadata.cluster_id, controller), brokers, partitions, silent)
