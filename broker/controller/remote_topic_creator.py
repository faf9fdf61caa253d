"""The controller on another node, for what this broker itself wants of it: topics that it makes by itself.

Owns how that is said in Kafka's requests. Always true: what is answered is obeyed here already, as far as the wait for
that went. Must not know who the controller is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.peers.forward import Forward
from broker.wire.apis import APIS, ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
)

_TIMEOUT_MS: Final = 30_000


class RemoteTopicCreator:
    """Over the connections to it."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def decides(self) -> bool:
        """Whether another broker is the controller."""
        return self._forward.is_elsewhere()

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str | None], replication_factor: int
    ) -> None:
        """Create a topic, an internal one by its name. Raises ApiError."""
        wanted = CreateTopicsRequestTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreateTopicsRequestConfig(key, value) for key, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=_TIMEOUT_MS)
        key = ApiKey.CREATE_TOPICS
        answer = await self._forward.ask(key, APIS[key].version_max, request)
        if answer is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "the controller cannot be asked now; ask again")
        assert isinstance(answer, CreateTopicsResponse)
        for topic in answer.topics:
            if topic.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(topic.error_code), topic.error_message or "")
