"""This broker's requests to the controller that the current image names, here or on another node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import BrokerRpc, ProposalsRequest
from broker.controller.remote_controller import RemoteController
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.following.metadata_cache import MetadataCache
from broker.metadata.records import NO_EPOCH
from broker.peers.forward import Forward
from broker.peers.links import Links
from broker.replication.isr_policy import PartitionProposal
from broker.wire.apis import APIS, ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
)


class ControllerClient:
    """Client of node `node_id`, in its session of the current image. `own`: the local controller. Each request goes to
    one controller, once."""

    def __init__(
        self, own: BrokerRpc, metadata: MetadataCache, links: Links, node_id: int, times: ClusterTimes
    ) -> None:
        self._own = own
        self._metadata = metadata
        self._links = links
        self._node_id = node_id
        self._times = times

    async def propose(self, proposals: Sequence[PartitionProposal]) -> tuple[ErrorCode, ...]:
        """As `BrokerRpc.alter_partition`. ConnectionError: the request was not sent; also raised without a session or a
        known controller."""
        broker_epoch = self._metadata.broker_epoch(self._node_id)
        if broker_epoch == NO_EPOCH:
            raise ConnectionError(f"broker {self._node_id} is not registered; nothing was sent")
        asked = ProposalsRequest(self._node_id, broker_epoch, tuple(proposals))
        return await self._door().alter_partition(asked)

    def _door(self) -> BrokerRpc:
        at = self._metadata.decided_elsewhere(self._node_id)
        if at is None:
            return self._own
        node = self._metadata.image.nodes.get(at.node_id)
        if node is None:
            raise ConnectionError(f"the controller, broker {at.node_id}, is not registered; nothing was sent")
        return RemoteController(partial(self._links.to, node), self._times)


_TIMEOUT_MS: Final = 30_000


class RemoteTopicCreator:
    """Creates topics through the controller on another broker, by Kafka's requests. The response comes after this
    broker applied the new image, or after a time-out."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def decides(self) -> bool:
        return self._forward.is_elsewhere()

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str | None], replication_factor: int
    ) -> None:
        """An internal topic is created by its name. Raises ApiError."""
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
            raise ApiError(ErrorCode.NOT_CONTROLLER, "the controller cannot be reached; try again")
        assert isinstance(answer, CreateTopicsResponse)
        for topic in answer.topics:
            if topic.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(topic.error_code), topic.error_message or "")
