"""DescribeAcls, CreateAcls, DeleteAcls: the answers of Apache Kafka without an authorizer, so that no tool believes an
ACL was made. Source: KIP-140."""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreateAclsResponseResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseResult,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_NONE_CONFIGURED: Final = "No Authorizer is configured."


async def handle_describe_acls(context: Context, request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )


async def handle_create_acls(context: Context, request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    refused = CreateAclsResponseResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_CONFIGURED)
    return CreateAclsResponse(results=[refused] * len(request.creations))


async def handle_delete_acls(context: Context, request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    refused = DeleteAclsResponseResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NONE_CONFIGURED)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
