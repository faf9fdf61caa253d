"""The authorizer's configs: `authorizer.class.name`, `super.users`, `allow.everyone.if.no.acl.found`.

The only class that can be configured is Kafka's StandardAuthorizer. If `authorizer.class.name` is not set, there is no
authorizer, and the other two configs have no effect. Source: Kafka 4.3.1's StandardAuthorizer; KIP-801.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker.config.values import InvalidConfig

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLASS_NAME: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOWS_WITHOUT_ACLS: Final = "allow.everyone.if.no.acl.found"


class AuthorizerConfig(msgspec.Struct, frozen=True):
    """The authorizer's configuration. `super_users`: principals that may do everything. `allows_without_acls`:
    resources without an ACL are open to everybody."""

    super_users: frozenset[str] = frozenset()
    allows_without_acls: bool = False


def authorizer_config(class_name: str, super_users: str | None, allows_without_acls: bool) -> AuthorizerConfig | None:
    """The authorizer's configuration; None if there is no authorizer. Raises InvalidConfig."""
    class_name = class_name.strip()
    if not class_name:
        return None
    if class_name != STANDARD_AUTHORIZER:
        raise InvalidConfig(
            f"Invalid value {class_name} for configuration {CLASS_NAME}: this broker runs no Java class, and without "
            f"an authorizer every client may do everything; write {STANDARD_AUTHORIZER}"
        )
    return AuthorizerConfig(_principals(super_users or ""), allows_without_acls)


def _principals(text: str) -> frozenset[str]:
    found = set()
    for written in text.split(";"):
        principal = written.strip()
        if not principal:
            continue
        if ":" not in principal:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {SUPER_USERS}: expected a string in format "
                f"principalType:principalName but got {principal}; separate several by semicolons"
            )
        found.add(principal)
    return frozenset(found)
