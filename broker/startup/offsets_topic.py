"""Creates `__consumer_offsets` at the first use of groups, and locates its partitions."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.controller.controller_requests import ControllerRequests
from broker.following.metadata_cache import MetadataCache
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.metadata.records import NO_LEADER
from broker.partition.registry import Registry
from logformat.errors import Retryable

_CREATE_TIMEOUT_S: Final = 5.0


class ClusterOffsetsTopic:
    """`broker.groups.coordinator.OffsetsTopic`, by the controller and the image."""

    def __init__(
        self, controller: ControllerRequests, registry: Registry, metadata: MetadataCache, config: BrokerConfig
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._registry = registry
        self._config = config

    @property
    def partitions(self) -> int:
        topic = self._metadata.topic_named(OFFSETS_TOPIC)
        return self._config.offsets_topic_partitions if topic is None else topic.partitions

    def is_offline(self, index: int) -> bool:
        """This broker leads the partition and opened others of the topic, but not this one: its groups stay offline."""
        topic = self._metadata.topic_named(OFFSETS_TOPIC)
        if topic is None or OFFSETS_TOPIC not in self._registry.topics or index >= topic.partitions:
            return False
        is_ours = topic.rows[index].leader == self._config.node_id
        return is_ours and (OFFSETS_TOPIC, index) not in self._registry.partitions

    def leader(self, index: int) -> int:
        topic = self._metadata.topic_named(OFFSETS_TOPIC)
        return NO_LEADER if topic is None or index >= topic.partitions else topic.rows[index].leader

    def _is_there(self) -> bool:
        """The topic exists, and this broker's partitions of it are open, if it has any."""
        if OFFSETS_TOPIC in self._registry.topics:
            return True
        topic = self._metadata.topic_named(OFFSETS_TOPIC)
        return topic is not None and all(row.leader != self._config.node_id for row in topic.rows)

    async def ensure_created(self) -> None:
        """Create the topic, as Kafka does at the first group. Raises Retryable after 5 s (a full disk). The creation
        continues; the client retries, so that other requests of its connection are answered."""
        if self._is_there():
            return
        configs = {
            # The minimum for any topic; Kafka allows less for this one.
            "segment.bytes": str(max(self._config.offsets_topic_segment_bytes, 1 << 20)),
            "retention.ms": "-1",
            "max.message.bytes": str(32 * 1024 * 1024),
        }
        try:
            async with asyncio.timeout(_CREATE_TIMEOUT_S):
                await self._controller.create_if_missing(
                    OFFSETS_TOPIC,
                    self._config.offsets_topic_partitions,
                    configs,
                    replication_factor=self._config.offsets_topic_replication_factor,
                    internal=True,
                )
        except TimeoutError as late:
            raise Retryable(f"{OFFSETS_TOPIC} is still being made after {_CREATE_TIMEOUT_S:.0f} s") from late
