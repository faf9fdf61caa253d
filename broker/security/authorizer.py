"""May this peer ask this? The one place that decides it, asked by dispatch before any handler.

Owns what only brokers may ask. Always true: it is asked once for every request that a handler sees, with who asks
(principal, listener), which API, and the decoded request, which names the resources; a request that a client may not
make changes nothing. Today every client may ask everything a client can ask: there are no ACLs. Must not know handlers,
nor how a refusal is put into an answer. Pure.

Hot path: two look-ups for most requests, 0.1 µs. The fast path of produce (`handlers.produce_fast_path`) does not ask
again: what the same principal was allowed on the same listener, topic by topic, it may do again. So whoever makes this
decision depend on more than those must have it forget them when an answer changes.
"""

from __future__ import annotations

from typing import Final

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.wire.apis import BROKERS_ONLY, ApiKey
from broker.wire.message import Message
from broker.wire.messages import FetchRequest, OffsetForLeaderEpochRequest

_LOOKED_AT: Final = BROKERS_ONLY | {int(ApiKey.FETCH), int(ApiKey.OFFSET_FOR_LEADER_EPOCH)}
_CONSUMERS: Final = (-1, -2)  # replica ids of ordinary and debugging consumers


class Authorizer:
    """Everything to clients, and to brokers what only they may ask, on their own listener.

    `brokers_listener`: the name of the one that brokers use.
    """

    def __init__(self, brokers_listener: str) -> None:
        self._brokers_listener = brokers_listener

    def refusal(self, peer: Peer, api_key: int, request: Message) -> ErrorCode | None:
        """The error to answer instead of asking the handler; None: go on."""
        if api_key not in _LOOKED_AT or peer.listener == self._brokers_listener:
            return None
        if isinstance(request, FetchRequest) and not is_from_follower(request):
            return None
        if isinstance(request, OffsetForLeaderEpochRequest) and not request.of_candidates:
            return None
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def is_from_follower(request: FetchRequest) -> bool:
    """Whether it asks as a replica, which reads beyond the high watermark and moves it (CVE-2018-1288)."""
    replica_id = request.replica_id if request.replica_state is None else request.replica_state.replica_id
    return replica_id not in _CONSUMERS
