"""Finds the coordinator of a key, and its local shard, for groups and transactional ids.

A shard is returned only while this broker has a session, because otherwise another coordinator may have newer state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic

from broker.error_codes import ErrorCode
from broker.internal_topics.interfaces import InternalTopic
from broker.internal_topics.internal_log import InternalLog, S
from broker.internal_topics.partitioning import partition_of
from broker.internal_topics.shard_life import ShardState
from logformat.errors import ThermoclineError

log = logging.getLogger(__name__)


class ShardLookup(Generic[S]):
    """The look-up of coordinators and shards. `wait_s`: longest wait of `find` for a topic that it created."""

    def __init__(
        self, name: str, shards: InternalLog[S], topic: InternalTopic, in_session: Callable[[], bool], wait_s: float
    ) -> None:
        self._name: Final = name
        self._shards: Final = shards
        self._topic: Final = topic
        self._in_session: Final = in_session
        self._wait_s: Final = wait_s

    def index_of(self, key: str) -> int:
        return partition_of(key, self._topic.partitions)

    def node_of(self, key: str) -> int:
        """The broker that coordinates the key (NO_LEADER: none), by this broker's image."""
        return self._topic.leader(self.index_of(key))

    async def find(self, key: str) -> ErrorCode:
        """Ensure that the key has a coordinator (FindCoordinator)."""
        index = self.index_of(key)
        was_absent = self._shards.state_of(index) is ShardState.ABSENT
        try:
            await self._topic.ensure_created()
        except (ThermoclineError, OSError) as failure:
            log.warning("%s could not be created: %s", self._name, failure)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._shards.ready(index) is not None and not self._in_session():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # another broker may know a newer coordinator
        if was_absent and self._shards.state_of(index) is ShardState.LOADING:
            with suppress(TimeoutError):  # the topic is new and empty: a short wait saves the client a back-off
                async with asyncio.timeout(self._wait_s):
                    await self._shards.wait_loaded()
        return ErrorCode.NONE

    def shard_of(self, key: str) -> tuple[S | None, ErrorCode]:
        """The shard of the key, or the error if it is not available now."""
        index = self.index_of(key)
        shard = self._shards.ready(index)
        if shard is not None:
            return (shard, ErrorCode.NONE) if self._in_session() else (None, ErrorCode.NOT_COORDINATOR)
        match self._shards.state_of(index):
            case ShardState.LOADING:
                return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            case ShardState.FAILED:
                return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
            case ShardState.ABSENT if self._topic.is_offline(index):
                return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        return None, ErrorCode.NOT_COORDINATOR
