"""Selects the `Access` of a peer: unrestricted for a broker or without an authorizer, else that of its principal.

A peer is a broker if it uses the brokers' listener and its principal has CLUSTER_ACTION on the cluster (or is a super
user). A broker may send any request: in an Envelope it acts for any client, so more checks would gain nothing. All
other peers are clients.

Hot path: a client costs two attribute reads. A broker also costs one remembered decision.
"""

from __future__ import annotations

from broker.net.dispatch import Peer
from broker.security.audit import Audit, AuditEvent
from broker.security.authorizer.access import UNRESTRICTED, Access, Unrestricted
from broker.security.authorizer.kinds import Operation
from broker.security.authorizer.standard import Authorizer
from broker.wire.apis import ApiKey


class ClientAccess:
    """Selects the access of each peer. `authorizer` is None if ACLs are not enforced."""

    def __init__(self, authorizer: Authorizer | None, audit: Audit, brokers_listener: str) -> None:
        self.authorizer = authorizer
        self.audit = audit
        self._brokers_listener = brokers_listener

    def of(self, peer: Peer) -> Unrestricted:
        authorizer = self.authorizer
        if authorizer is None:
            return UNRESTRICTED
        access = peer.access
        if not isinstance(access, Access) or access.principal != peer.principal:
            access = peer.access = Access(authorizer, self.audit, peer.principal, peer.address)
        if peer.listener == self._brokers_listener and access.allows_cluster(Operation.CLUSTER_ACTION, audited=False):
            return UNRESTRICTED
        return access

    def is_broker(self, peer: Peer) -> bool:
        """Without an authorizer, the brokers' listener alone makes a peer a broker."""
        return peer.listener == self._brokers_listener and not self.of(peer).is_enforced

    def is_free_of_quotas(self, peer: Peer) -> bool:
        """Whether quotas do not apply, because the peer is a broker or a super user. With an authorizer, a connection
        to the brokers' listener alone does not suffice."""
        authorizer = self.authorizer
        return self.is_broker(peer) or (authorizer is not None and authorizer.is_super_user(peer.principal))

    def note_plays_broker(self, peer: Peer, api_key: int) -> None:
        """Write an audit line for a client that sent a request that only brokers may send."""
        why = "only brokers may send this request: on the brokers' listener, and with ClusterAction on the cluster"
        self.audit.note(AuditEvent.DENIED, peer.principal, peer.address, f"request {ApiKey(api_key).name}", why)
