"""What this broker asks of the controller for its leaders, wherever that is: here, or on another node.

Owns the choice, made anew for each request by what the image says, and in whose name is asked: this broker's session
as the image has it. Always true: a request goes to one controller, once. Must not know what is decided, nor why it is
asked (partition.proposing, unclean elections).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import BrokerRpc, ProposalsRequest
from broker.controller.remote_controller import RemoteController
from broker.error_codes import ErrorCode
from broker.following.metadata_cache import MetadataCache
from broker.metadata.records import NO_EPOCH
from broker.peers.links import Links
from broker.replication.isr_policy import PartitionProposal


class ControllerClient:
    """For node `node_id`; `own` is its own door, which decides while the image names this broker."""

    def __init__(
        self, own: BrokerRpc, metadata: MetadataCache, links: Links, node_id: int, times: ClusterTimes
    ) -> None:
        self._own = own
        self._metadata = metadata
        self._links = links
        self._node_id = node_id
        self._times = times

    async def propose(self, proposals: Sequence[PartitionProposal]) -> tuple[ErrorCode, ...]:
        """As `BrokerRpc.alter_partition`. ConnectionError also where there is no session, or no controller is known:
        nothing was sent."""
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
