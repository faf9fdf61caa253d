"""What the configs of a topic mean for its partitions here: for the log, for the tier, for the leader.

Owns the last resolution: partitions of a topic come together. Always true: a topic's own configs come before the
broker's as they are now. Must not know roles, nor when configs change.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.config.topic.topic_config import TopicConfig, log_config_of, resolve_topic
from broker.metadata.image import Topic
from broker.partition.leading.leader_replica import LeaderReplica
from tiering.tier_config import TierConfig


class TopicConfigs:
    """Of one broker."""

    def __init__(self, config: LiveConfig) -> None:
        self._live = config
        self._resolved: tuple[BrokerConfig, Topic, TopicConfig] | None = None

    def of(self, topic: Topic) -> TopicConfig:
        """Resolved against the broker's configs; 80 µs where another topic was asked for last."""
        broker, last = self._live.now, self._resolved
        if last is None or last[0] is not broker or last[1] is not topic:
            config = resolve_topic(broker, topic.configs, internal=topic.internal)
            self._resolved = last = broker, topic, config
        return last[2]

    def of_tier(self, topic: Topic) -> TierConfig:
        """As the tier of its partitions is to be."""
        config = self.of(topic)
        return TierConfig(
            enabled=config.remote_storage_enable,
            internal=topic.internal,
            copy_disable=config.remote_log_copy_disable,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            local_retention_ms=config.local_retention_ms,
            local_retention_bytes=config.local_retention_bytes,
            seal_ms=self._live.now.seal_ms,
            topic=topic.name,
            configs=topic.configs,
        )

    def apply(self, topic: Topic, partitions: Iterable[LeaderReplica]) -> None:
        """Let led partitions obey the topic's configs as they are now."""
        config = self.of(topic)
        for partition in partitions:
            partition.config = config
            partition.log.reconfigure(log_config_of(config))
            partition.tier.reconfigure(self.of_tier(topic))
