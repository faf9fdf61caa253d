"""The requests of `thermocline acl`: DescribeAcls, CreateAcls, DeleteAcls.

A refusal raises CommandFailed with the remedy. The requests work with Apache Kafka too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from broker.config.authorizer import CLASS_NAME, STANDARD_AUTHORIZER
from broker.error_codes import ErrorCode, error_name
from broker.metadata.records import Acl
from broker.security.authorizer.acl_filter import AclFilter
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from thermocline.cli.clients.connections import connect
from thermocline.cli.terminal.outcome import CommandFailed


def described(bootstrap: str, filters: Sequence[AclFilter]) -> list[Acl]:
    """Every ACL that one of the filters matches, once, by resource."""
    found: dict[Acl, None] = {}
    with connect(bootstrap) as client:
        for wanted in filters:
            answer = client.call(ApiKey.DESCRIBE_ACLS, wire.DescribeAclsRequest(*wanted), wire.DescribeAclsResponse)
            _check("listing ACLs", answer.error_code, answer.error_message)
            for resource in answer.resources:
                place = resource.resource_type, resource.resource_name, resource.pattern_type
                found |= {Acl(*place, *astuple(row)): None for row in resource.acls}
    return sorted(found, key=lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal))


def create(bootstrap: str, acls: Sequence[Acl]) -> None:
    """Create the ACLs. Raises CommandFailed for the first refused ACL; the others may be created."""
    rows = [wire.CreateAclsRequestCreation(*astuple(acl)) for acl in acls]
    with connect(bootstrap) as client:
        answer = client.call(ApiKey.CREATE_ACLS, wire.CreateAclsRequest(creations=rows), wire.CreateAclsResponse)
    for acl, result in zip(acls, answer.results, strict=True):
        _check(f"adding an ACL of {acl.principal}", result.error_code, result.error_message)


def delete(bootstrap: str, filters: Sequence[AclFilter]) -> int:
    """Returns the number of deleted ACLs."""
    rows = [wire.DeleteAclsRequestFilter(*wanted) for wanted in filters]
    with connect(bootstrap) as client:
        answer = client.call(ApiKey.DELETE_ACLS, wire.DeleteAclsRequest(filters=rows), wire.DeleteAclsResponse)
    gone = set()
    for result in answer.filter_results:
        _check("deleting ACLs", result.error_code, result.error_message)
        gone |= {astuple(row) for row in result.matching_acls}
    return len(gone)


def _check(what: str, code: int, message: str | None) -> None:
    if code == ErrorCode.NONE:
        return
    if code == ErrorCode.SECURITY_DISABLED:
        raise CommandFailed(
            f"{what}: the broker has no authorizer, so every client may do everything; start it with "
            f"{CLASS_NAME}={STANDARD_AUTHORIZER}"
        )
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise CommandFailed(
            f"{what}: this user may not do it; it needs a super user (super.users), or a user with Alter (to list: "
            "Describe) on the cluster"
        )
    raise CommandFailed(f"{what}: {message or error_name(code)}")
