"""From the leadership of partitions to the log of one internal topic.

Owns the filter by the topic's name: it is a `broker.partition.roles.LeadershipWatcher`. Must not know what the
log does then.
"""

from __future__ import annotations

from typing import Any

from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_partition import LedPartition
from broker.partition.leading.leader_replica import LeaderReplica
from seams.clock import Clock
from seams.workers import Workers


class InternalTopicWatcher:
    """One an internal topic. Calls return without waiting."""

    def __init__(self, internal_log: InternalLog[Any], clock: Clock, workers: Workers) -> None:
        self._log = internal_log
        self._clock = clock
        self._workers = workers

    def led(self, partition: LeaderReplica) -> None:
        if partition.topic == self._log.name:
            self._log.lead(LedPartition(partition, self._clock, self._workers))

    def resigned(self, topic: str, index: int) -> None:
        if topic == self._log.name:
            self._log.resign(index)

    def withdrawn(self, topic: str) -> None:
        if topic == self._log.name:
            self._log.forget()
