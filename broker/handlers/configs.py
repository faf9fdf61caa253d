"""DescribeConfigs and IncrementalAlterConfigs: topic configs change, broker configs are shown.

Always true: what is refused says which config and why; broker configs are set at start only. Must not know defaults or
rules: `broker.config` owns them. Source: KIP-133, KIP-226, KIP-339.
"""

from __future__ import annotations

from typing import Final

from broker.config.describe import Described, describe_broker, describe_topic
from broker.config.topic_changes import Alteration, AlterOperation, altered_configs
from broker.context import Call, Context
from broker.errors import ApiError, code_of
from broker.handlers.topics import refuse_flood
from broker.wire.errors import ErrorCode
from broker.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeConfigsResponseSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)
from logformat.errors import ThermoclineError

_TOPIC: Final = 2
_BROKER: Final = 4


async def handle_describe_configs(
    context: Context, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    """Every config of each resource, or the ones asked for by name."""
    response = DescribeConfigsResponse()
    for resource in request.resources:
        result = DescribeConfigsResponseResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            refuse_flood(request.resources)
            entries = _entries(context, resource)
            result.configs = [_entry(found, request) for found in entries]
        except ThermoclineError as refused:
            result.error_code = code_of(refused)
            result.error_message = str(refused)
        response.results.append(result)
    return response


def _entries(context: Context, resource: DescribeConfigsRequestResource) -> list[Described]:
    if resource.resource_type == _TOPIC:
        topic = context.controller.topic(resource.resource_name)
        entries = describe_topic(context.config, topic.configs, internal=topic.internal)
    elif resource.resource_type == _BROKER:
        if resource.resource_name not in ("", str(context.config.node_id)):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"ask node {context.config.node_id}, not {resource.resource_name!r}"
            )
        entries = describe_broker(context.config, context.live_configs)
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no configs here")
    if resource.configuration_keys is None:
        return entries
    wanted = set(resource.configuration_keys)
    return [entry for entry in entries if entry.name in wanted]


def _entry(found: Described, request: DescribeConfigsRequest) -> DescribeConfigsResponseConfig:
    return DescribeConfigsResponseConfig(
        name=found.name,
        value=found.value,
        read_only=found.read_only,
        config_source=found.source,
        is_sensitive=found.sensitive,
        synonyms=[
            DescribeConfigsResponseSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in found.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=found.type,
        documentation=found.doc if request.include_documentation else None,
    )


async def handle_incremental_alter_configs(
    context: Context, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    """Apply each resource's changes as one, or none of them."""
    response = IncrementalAlterConfigsResponse()
    for resource in request.resources:
        answer = IncrementalAlterConfigsResponseResource(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            refuse_flood(request.resources)
            await _alter(context, resource, validate_only=request.validate_only)
        except ThermoclineError as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused)
        response.responses.append(answer)
    return response


async def _alter(context: Context, resource: IncrementalAlterConfigsRequestResource, *, validate_only: bool) -> None:
    if resource.resource_type != _TOPIC:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "only topic configs can be altered; set broker configs at start (--set, file)"
        )
    try:
        alterations = [
            Alteration(config.name, AlterOperation(config.config_operation), config.value)
            for config in resource.configs
        ]
    except ValueError as unknown:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown operation: {unknown}") from unknown
    await context.controller.set_configs(
        resource.resource_name,
        lambda topic: altered_configs(context.config, topic.configs, alterations, internal=topic.internal),
        validate_only=validate_only,
    )
