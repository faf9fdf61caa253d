"""DescribeAcls, CreateAcls, DeleteAcls: the answers of Apache Kafka without an authorizer, so that no tool believes an
ACL was made. Source: KIP-140."""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.wire import messages as wire

_NONE_CONFIGURED: Final = "No Authorizer is configured."


async def handle_describe_acls(
    context: Context, request: wire.DescribeAclsRequest, call: Call
) -> wire.DescribeAclsResponse:
    return wire.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )


async def handle_create_acls(context: Context, request: wire.CreateAclsRequest, call: Call) -> wire.CreateAclsResponse:
    refused = wire.CreateAclsResponseResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_CONFIGURED)
    return wire.CreateAclsResponse(results=[refused] * len(request.creations))


async def handle_delete_acls(context: Context, request: wire.DeleteAclsRequest, call: Call) -> wire.DeleteAclsResponse:
    refused = wire.DeleteAclsResponseResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_CONFIGURED)
    return wire.DeleteAclsResponse(filter_results=[refused] * len(request.filters))
