"""Creates the internal topics at the first use of groups and of transactions, and locates their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.controller.controller_requests import ControllerRequests
from broker.following.metadata_cache import MetadataCache
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.metadata.records import NO_LEADER
from broker.partition.registry import Registry
from broker.transactions.coordinator import TRANSACTIONS_TOPIC
from logformat.errors import Retryable

_CREATE_TIMEOUT_S: Final = 5.0


class ClusterInternalTopic:
    """A `broker.internal_topics.interfaces.InternalTopic` by the image and the controller. `partitions`, `replicas` and
    `configs` apply when the topic is created."""

    def __init__(
        self,
        controller: ControllerRequests,
        registry: Registry,
        metadata: MetadataCache,
        node_id: int,
        name: str,
        partitions: int,
        replicas: int,
        configs: Mapping[str, str],
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._registry = registry
        self._node_id = node_id
        self._name = name
        self._partitions = partitions
        self._replicas = replicas
        self._configs = configs

    @property
    def partitions(self) -> int:
        topic = self._metadata.topic_named(self._name)
        return self._partitions if topic is None else topic.partitions

    def is_offline(self, index: int) -> bool:
        """Whether this broker should lead the partition but could not open it, although it has opened the topic. The
        partition's keys are then offline."""
        topic = self._metadata.topic_named(self._name)
        if topic is None or self._name not in self._registry.topics or index >= topic.partitions:
            return False
        is_ours = topic.rows[index].leader == self._node_id
        return is_ours and (self._name, index) not in self._registry.partitions

    def leader(self, index: int) -> int:
        topic = self._metadata.topic_named(self._name)
        return NO_LEADER if topic is None or index >= topic.partitions else topic.rows[index].leader

    def leaders(self) -> list[int] | None:
        topic = self._metadata.topic_named(self._name)
        found = sorted({row.leader for row in topic.rows}) if topic is not None else []
        return None if NO_LEADER in found else found

    def _is_there(self) -> bool:
        """Whether the topic exists, and this broker has opened it or leads none of its partitions."""
        if self._name in self._registry.topics:
            return True
        topic = self._metadata.topic_named(self._name)
        return topic is not None and all(row.leader != self._node_id for row in topic.rows)

    async def ensure_created(self) -> None:
        """Create the topic, as Kafka does at its first use. Raises Retryable after 5 s (for example on a full disk).
        The creation then continues, and the client retries. Meanwhile other requests of its connection are answered."""
        if self._is_there():
            return
        try:
            async with asyncio.timeout(_CREATE_TIMEOUT_S):
                await self._controller.create_if_missing(
                    self._name,
                    self._partitions,
                    self._created_with(),
                    replication_factor=self._replicas,
                    internal=True,
                )
        except TimeoutError as late:
            raise Retryable(f"{self._name} is still not created after {_CREATE_TIMEOUT_S:.0f} s") from late

    def _created_with(self) -> dict[str, str]:
        return {**self._configs, "retention.ms": "-1", "max.message.bytes": str(32 * 1024 * 1024)}


class ClusterOffsetsTopic(ClusterInternalTopic):
    """The topic `__consumer_offsets`."""

    def __init__(
        self, controller: ControllerRequests, registry: Registry, metadata: MetadataCache, config: BrokerConfig
    ) -> None:
        super().__init__(
            controller,
            registry,
            metadata,
            config.node_id,
            OFFSETS_TOPIC,
            config.offsets_topic_partitions,
            config.offsets_topic_replication_factor,
            {"segment.bytes": _segment_bytes(config.offsets_topic_segment_bytes)},
        )


class ClusterTransactionsTopic(ClusterInternalTopic):
    """The topic `__transaction_state`."""

    def __init__(
        self, controller: ControllerRequests, registry: Registry, metadata: MetadataCache, config: BrokerConfig
    ) -> None:
        limits = config.transactions
        super().__init__(
            controller,
            registry,
            metadata,
            config.node_id,
            TRANSACTIONS_TOPIC,
            limits.topic_partitions,
            limits.topic_replication_factor,
            {
                "segment.bytes": _segment_bytes(limits.topic_segment_bytes),
                # As in Kafka, the cluster's default does not apply: a leader that lacks a commit would abort the rest
                # of a transaction that is committed in other partitions.
                "unclean.leader.election.enable": "false",
                # A partition with fewer replicas than this needs all of them (`effective_min`). The minimum thus takes
                # effect when a partition that was created with fewer replicas gets more.
                "min.insync.replicas": str(min(limits.topic_min_in_sync, limits.topic_replication_factor)),
            },
        )


def _segment_bytes(wanted: int) -> str:
    """`segment.bytes` of an internal topic: at least the minimum of all topics. Kafka allows less for internal
    topics."""
    return str(max(wanted, 1 << 20))
