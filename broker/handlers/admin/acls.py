"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290).

The controller decides and audits changes; any broker shows the ACLs of its image. Without an authorizer all three
answer SECURITY_DISABLED, so that a tool does not believe that an ACL was made.

Kafka's messages, `Acl` and `AclFilter` have the same fields in the same order (`astuple`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import astuple

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import code_of
from broker.metadata.records import Acl
from broker.security.audit import AuditEvent
from broker.security.authorizer.acl_filter import AclFilter, filter_refusal
from broker.security.authorizer.kinds import Operation, PatternType, Permission, ResourceType, shown
from broker.wire import messages as wire
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

_NONE_CONFIGURED: Final = "No Authorizer is configured."


async def handle_describe_acls(
    context: Context, request: wire.DescribeAclsRequest, call: Call
) -> wire.DescribeAclsResponse:
    """The ACLs that the filter matches, by resource pattern."""
    if context.clients.authorizer is None:
        return wire.DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
        )
    wanted = AclFilter(*astuple(request))
    if (refusal := filter_refusal(wanted)) is not None:
        return wire.DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=refusal)
    found: dict[tuple[int, str, int], list[wire.DescribeAclsResponseAcl]] = {}
    turns = Turns()
    for acl in context.metadata.image.acls:
        if wanted.matches(acl):
            found.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(
                wire.DescribeAclsResponseAcl(acl.principal, acl.host, acl.operation, acl.permission)
            )
        if turns.over():
            await next_turn()
    return wire.DescribeAclsResponse(
        error_message=None, resources=[wire.DescribeAclsResponseResource(*key, acls) for key, acls in found.items()]
    )


async def handle_create_acls(context: Context, request: wire.CreateAclsRequest, call: Call) -> wire.CreateAclsResponse:
    if context.clients.authorizer is None:
        refused = wire.CreateAclsResponseResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_CONFIGURED)
        return wire.CreateAclsResponse(results=[refused] * len(request.creations))
    wanted = [Acl(*astuple(row)) for row in request.creations]
    try:
        answers: Sequence[ThermoclineError | None] = await context.controller.create_acls(wanted)
    except ThermoclineError as refused_all:
        answers = [refused_all] * len(wanted)
    _audit(context, call, "created", [acl for acl, refusal in zip(wanted, answers, strict=True) if refusal is None])
    return wire.CreateAclsResponse(
        results=[
            wire.CreateAclsResponseResult(error_message=None)
            if refusal is None
            else wire.CreateAclsResponseResult(code_of(refusal), str(refusal))
            for refusal in answers
        ]
    )


async def handle_delete_acls(context: Context, request: wire.DeleteAclsRequest, call: Call) -> wire.DeleteAclsResponse:
    if context.clients.authorizer is None:
        refused = wire.DeleteAclsResponseResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_CONFIGURED)
        return wire.DeleteAclsResponse(filter_results=[refused] * len(request.filters))
    filters = [AclFilter(*astuple(row)) for row in request.filters]
    try:
        answers: Sequence[ThermoclineError | tuple[Acl, ...]] = await context.controller.delete_acls(filters)
    except ThermoclineError as refused_all:
        answers = [refused_all] * len(filters)
    gone = {acl: None for found in answers if isinstance(found, tuple) for acl in found}
    _audit(context, call, "deleted", list(gone))
    return wire.DeleteAclsResponse(filter_results=[_deleted(found) for found in answers])


def _deleted(found: ThermoclineError | tuple[Acl, ...]) -> wire.DeleteAclsResponseResult:
    if isinstance(found, ThermoclineError):
        return wire.DeleteAclsResponseResult(code_of(found), str(found))
    return wire.DeleteAclsResponseResult(
        error_message=None,
        matching_acls=[wire.DeleteAclsResponseAcl(ErrorCode.NONE, None, *astuple(acl)) for acl in found],
    )


def _audit(context: Context, call: Call, verb: str, acls: list[Acl]) -> None:
    audit, peer = context.clients.audit, call.peer
    audit.note_changes(AuditEvent.ACLS, peer.principal, peer.address, acls, lambda acl: f"{verb} {_shown(acl)}")


def _shown(acl: Acl) -> str:
    """The ACL as text: `Allow User:alice from * Read on Topic:LITERAL:orders`."""
    return (
        f"{shown(Permission(acl.permission).name)} {acl.principal} from {acl.host} "
        f"{shown(Operation(acl.operation).name)} on {shown(ResourceType(acl.resource_type).name)}:"
        f"{PatternType(acl.pattern_type).name}:{acl.resource_name}"
    )
