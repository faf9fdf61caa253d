"""`Access`: the permissions of one client, for handlers and rules.

Without an authorizer every client has `Unrestricted`, which allows everything; its `is_enforced` is False. As in Kafka,
the denial of a requested resource is audited. A denial that only filters an answer is not audited (`audited=False`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from broker.security.audit import Audit, AuditEvent
from broker.security.authorizer.acl_index import canonical_host
from broker.security.authorizer.kinds import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType, shown
from broker.security.authorizer.standard import Authorizer

NOT_REQUESTED: Final = -(1 << 31)
"""Value of an `…_authorized_operations` field that was not asked for."""


class Unrestricted:
    """Allows everything."""

    is_enforced = False

    @property
    def version(self) -> int:
        """Version of the permissions. A decision is valid while the version is unchanged."""
        return 0

    @property
    def identity(self) -> Hashable:
        """Key of the permissions. Two accesses with an equal key allow the same."""
        return None

    def allows(self, operation: Operation, resource_type: ResourceType, name: str, *, audited: bool = True) -> bool:
        return True

    def allows_cluster(self, operation: Operation, *, audited: bool = True) -> bool:
        return True

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        return True

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The allowed operations on the resource as a bit set by their numbers (KIP-430)."""
        return _BITS[resource_type]


class Access(Unrestricted):
    """Allows what the authorizer allows to `principal` at `address` (host and port, as in `Peer.address`)."""

    is_enforced = True

    def __init__(self, authorizer: Authorizer, audit: Audit, principal: str, address: str) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self.principal = principal
        self.address = address
        self.host = canonical_host(address.rpartition(":")[0])

    @property
    def version(self) -> int:
        return self._authorizer.version

    @property
    def identity(self) -> Hashable:
        return self.principal, self.host, self._authorizer.version

    def allows(self, operation: Operation, resource_type: ResourceType, name: str, *, audited: bool = True) -> bool:
        if self._authorizer.allows(self.principal, self.host, operation, resource_type, name):
            return True
        if audited:
            self._denied(operation, resource_type, name)
        return False

    def allows_cluster(self, operation: Operation, *, audited: bool = True) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME, audited=audited)

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether some resource of the type is allowed, existing or not."""
        if self._authorizer.allows_any(self.principal, self.host, operation, resource_type):
            return True
        self._denied(operation, resource_type, "any")
        return False

    def operations(self, resource_type: ResourceType, name: str) -> int:
        allows, found = self._authorizer.allows, 0
        for operation in OPERATIONS_OF[resource_type]:
            if allows(self.principal, self.host, operation, resource_type, name):
                found |= 1 << operation
        return found

    def _denied(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        what = f"{shown(operation.name)} on {shown(resource_type.name)}:{name}"
        self._audit.note(AuditEvent.DENIED, self.principal, self.address, what, "no ACL allows it, or one denies it")


UNRESTRICTED: Final = Unrestricted()

_BITS: Final = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS_OF.items()}
