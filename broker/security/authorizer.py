"""The authorizer: decides for every request, before its handler, whether the peer may make it.

There are no ACLs: clients may make every request of a client. Requests of brokers, fetches and epoch look-ups as a
replica, and additions to transactions of others, are allowed on the brokers' listener only. A refused request changes
nothing.

Hot path: two look-ups for most requests, 0.1 µs. The fast path of Produce (`handlers.produce.fast_path`) does not ask
again: it repeats what the same principal was allowed on the same listener, topic by topic. An authorizer that depends
on more than these must clear that memory when its answer changes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.wire.apis import BROKERS_ONLY, ApiKey
from broker.wire.message import Message
from broker.wire.messages import AddPartitionsToTxnRequest, FetchRequest, OffsetForLeaderEpochRequest

_RESTRICTED: Final = BROKERS_ONLY | {
    int(ApiKey.FETCH),
    int(ApiKey.OFFSET_FOR_LEADER_EPOCH),
    int(ApiKey.ADD_PARTITIONS_TO_TXN),
}
_CONSUMERS: Final = (-1, -2)  # replica ids of ordinary and debugging consumers
_NOT_REQUESTED: Final = -(1 << 31)


class Authorizer:
    """Allows everything on `brokers_listener`, and elsewhere what a client may do."""

    def __init__(self, brokers_listener: str) -> None:
        self._brokers_listener = brokers_listener

    def refusal(self, peer: Peer, api_key: int, request: Message) -> ErrorCode | None:
        """The error to answer with; None when the request is allowed."""
        if api_key not in _RESTRICTED or peer.listener == self._brokers_listener:
            return None
        if isinstance(request, AddPartitionsToTxnRequest) and not request.transactions:
            return None
        if isinstance(request, FetchRequest) and not is_from_follower(request):
            return None
        if isinstance(request, OffsetForLeaderEpochRequest) and not request.of_candidates:
            return None
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def is_from_follower(request: FetchRequest) -> bool:
    """Whether it fetches as a replica, which reads beyond the high watermark and moves it (CVE-2018-1288)."""
    replica_id = request.replica_id if request.replica_state is None else request.replica_state.replica_id
    return replica_id not in _CONSUMERS


class Operations(IntEnum):
    """All operations on a kind of resource, as bits: read 3, write 4, create 5, delete 6, alter 7, describe 8, cluster
    action 9, describe configs 10, alter configs 11, idempotent write 12.

    Source: KIP-430, Kafka's `AclOperation` and `AclEntry.supportedOperations`.
    """

    TOPIC = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11
    CLUSTER = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
    GROUP = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def authorized_operations(operations: Operations, *, asked: bool) -> int:
    """The value of an `…_authorized_operations` field: every operation, as from Kafka without an authorizer."""
    return int(operations) if asked else _NOT_REQUESTED
