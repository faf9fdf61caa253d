"""Filters of ACLs (Kafka's AclBindingFilter): which bindings they match, and when they are invalid. Pure.

A filter with `MATCH` matches every pattern that applies to the named resource: its name as a literal, `*`, and prefixes
of its name.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.metadata.records import Acl
from broker.security.authorizer.kinds import WILDCARD, Operation, PatternType, Permission, ResourceType, is_kind


class AclFilter(NamedTuple):
    """A filter, with Kafka's numbers. None and ANY match everything."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def place(self) -> tuple[int, str, int] | None:
        """The only pattern whose ACLs the filter can match; None if there may be several."""
        if self.resource_name is None or self.resource_type == ResourceType.ANY:
            return None
        if self.pattern_type in (PatternType.ANY, PatternType.MATCH):
            return None
        return self.resource_type, self.resource_name, self.pattern_type

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
            and (self.resource_name is None or self._names(acl))
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        name = self.resource_name
        assert name is not None
        if self.pattern_type != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)


def filter_refusal(wanted: AclFilter) -> str | None:
    """The reason why the filter is invalid, in Kafka's words."""
    if not (is_kind(ResourceType, wanted.resource_type) and is_kind(PatternType, wanted.pattern_type)):
        return "Unknown patternFilter."
    if not (is_kind(Operation, wanted.operation) and is_kind(Permission, wanted.permission)):
        return "Unknown entryFilter."
    return None
