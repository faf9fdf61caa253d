"""Refuses requests that only brokers may send, except on the brokers' own listener (CVE-2018-1288).

These requests are: broker APIs, fetches and epoch look-ups as a replica, and additions to other clients' transactions.
A refused request changes nothing. With an authorizer, `client_access` decides which peers of the brokers' listener are
brokers.

Hot path: two look-ups for most requests, 0.1 µs.
"""

from __future__ import annotations

from typing import Final

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.wire.apis import BROKERS_ONLY, ApiKey
from broker.wire.message import Message
from broker.wire.messages import AddPartitionsToTxnRequest, FetchRequest, OffsetForLeaderEpochRequest

RESTRICTED: Final = BROKERS_ONLY | {
    int(ApiKey.FETCH),
    int(ApiKey.OFFSET_FOR_LEADER_EPOCH),
    int(ApiKey.ADD_PARTITIONS_TO_TXN),
}
"""APIs of which all or some requests may come from brokers only."""
_CONSUMERS: Final = (-1, -2)  # replica ids of ordinary and debugging consumers


class BrokersOnly:
    """Allows all requests on `brokers_listener`, and only client requests on other listeners."""

    def __init__(self, brokers_listener: str) -> None:
        self._brokers_listener = brokers_listener

    def refusal(self, peer: Peer, api_key: int, request: Message, *, is_client: bool = False) -> ErrorCode | None:
        """The error to answer with; None if the request is allowed. `is_client`: the peer is known not to be a broker,
        on any listener."""
        if api_key not in RESTRICTED or (peer.listener == self._brokers_listener and not is_client):
            return None
        if isinstance(request, AddPartitionsToTxnRequest) and not request.transactions:
            return None
        if isinstance(request, FetchRequest) and not is_from_follower(request):
            return None
        if isinstance(request, OffsetForLeaderEpochRequest) and not request.of_candidates:
            return None
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def is_from_follower(request: FetchRequest) -> bool:
    """Whether the request fetches as a replica, which reads above the high watermark and advances it
    (CVE-2018-1288)."""
    replica_id = request.replica_id if request.replica_state is None else request.replica_state.replica_id
    return replica_id not in _CONSUMERS
