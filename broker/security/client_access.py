"""Selects the `Access` of a peer: unrestricted without an authorizer, that of a broker, or that of its principal.

A peer of the brokers' listener whose principal has CLUSTER_ACTION on the cluster (or is a super user) is a broker. It
may send any request: in an Envelope it acts for any client, so more checks would gain nothing. The same principal on
another listener is a client, and so is any other principal on the brokers' listener.

Hot path: a client costs two attribute reads, a broker one remembered decision more.
"""

from __future__ import annotations

from broker.net.dispatch import Peer
from broker.security.audit import Audit, AuditEvent
from broker.security.authorizer.access import UNRESTRICTED, Access, Unrestricted
from broker.security.authorizer.kinds import Operation
from broker.security.authorizer.standard import Authorizer
from broker.wire.apis import ApiKey


class ClientAccess:
    """`authorizer`: None when there is none."""

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

    def is_free_of_quotas(self, peer: Peer) -> bool:
        """Whether the peer is a broker or a super user. Access to the brokers' listener alone does not
        suffice."""
        authorizer = self.authorizer
        if authorizer is None:
            return peer.listener == self._brokers_listener
        return self.of(peer) is UNRESTRICTED or authorizer.is_super_user(peer.principal)

    def note_plays_broker(self, peer: Peer, api_key: int) -> None:
        """Write an audit line for a client that sent a request of brokers."""
        why = "only brokers may send this request: on the brokers' listener, and with ClusterAction on the cluster"
        self.audit.note(AuditEvent.DENIED, peer.principal, peer.address, f"request {ApiKey(api_key).name}", why)
