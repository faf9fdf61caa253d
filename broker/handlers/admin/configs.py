"""DescribeConfigs and ListConfigResources. Source: KIP-133, KIP-226, KIP-1142."""

from __future__ import annotations

import re
from typing import Final, cast

from broker.config.api.describe import DescribedConfig, describe_broker, describe_every_broker, describe_topic
from broker.config.topic.topic_config import check_topic_name
from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.metadata.cluster_view import ClusterView
from broker.handlers.request_limits import refuse_flood
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from broker.wire.codec import encode_response_element
from broker.wire.message import EncodedElements
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

TOPIC: Final = 2
BROKER: Final = 4
_CLIENT_METRICS: Final = 16
_LISTED: Final = frozenset({TOPIC, BROKER, 8, _CLIENT_METRICS, 32})  # 8: loggers, 32: groups; none have configs here
_KINDS_SINCE: Final = 1
_NODE_ID: Final = re.compile(r"[+-]?\d{1,10}", re.ASCII)


async def handle_describe_configs(
    context: Context, request: wire.DescribeConfigsRequest, call: Call
) -> wire.DescribeConfigsResponse:
    """Every config of each resource, or the named configs."""
    response = wire.DescribeConfigsResponse()
    turns = Turns()
    # Each resource is described once, even if it is named many times: its configs are 200 times as long as its name.
    named = {(each.resource_type, each.resource_name, _keys(each)): each for each in request.resources}
    for resource in named.values():
        result = wire.DescribeConfigsResponseResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            refuse_flood(named)
            entries = _entries(context, resource)
            result.configs = _encoded(entries, request, call.version)
        except ThermoclineError as refused:
            result.error_code = code_of(refused)
            result.error_message = str(refused)
        response.results.append(result)
        if turns.over(1 + len(result.configs)):
            await next_turn()
    return response


def _keys(resource: wire.DescribeConfigsRequestResource) -> frozenset[str] | None:
    return None if resource.configuration_keys is None else frozenset(resource.configuration_keys)


def _entries(context: Context, resource: wire.DescribeConfigsRequestResource) -> list[DescribedConfig]:
    if resource.resource_type == TOPIC:
        check_topic_name(resource.resource_name)
        topic = context.metadata.topic(resource.resource_name)
        entries = describe_topic(context.config, topic.configs, internal=topic.internal)
    elif resource.resource_type == BROKER:
        _check_node(context, resource.resource_name)
        if resource.resource_name:
            entries = describe_broker(context.config, context.live_configs)
        else:
            entries = describe_every_broker(context.config)
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no configs here")
    if resource.configuration_keys is None:
        return entries
    wanted = set(resource.configuration_keys)
    return [entry for entry in entries if entry.name in wanted]


def is_node_id(name: str) -> bool:
    """Whether a resource's name is a node id, by Kafka's parser."""
    return _NODE_ID.fullmatch(name) is not None


def _check_node(context: Context, name: str) -> None:
    """Raise ApiError, in Kafka's words, unless `name` is this broker's id or empty (every broker)."""
    if not name:
        return
    if not is_node_id(name):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) != context.config.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {context.config.node_id} or empty string, but received {name}",
        )


def _encoded(
    entries: list[DescribedConfig], request: wire.DescribeConfigsRequest, version: int
) -> list[wire.DescribeConfigsResponseConfig]:
    """The configs in encoded form. A request may name 40 000, and each takes 2 KB as objects."""
    rows = [
        encode_response_element(ApiKey.DESCRIBE_CONFIGS, version, _entry(found, request), "results", "configs")
        for found in entries
    ]
    return cast(list[wire.DescribeConfigsResponseConfig], EncodedElements(len(rows), b"".join(rows)))


def _entry(found: DescribedConfig, request: wire.DescribeConfigsRequest) -> wire.DescribeConfigsResponseConfig:
    return wire.DescribeConfigsResponseConfig(
        name=found.name,
        value=found.value,
        read_only=found.read_only,
        config_source=found.source,
        is_sensitive=found.sensitive,
        synonyms=[
            wire.DescribeConfigsResponseSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in found.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=found.type,
        documentation=found.doc if request.include_documentation else None,
    )


async def handle_list_config_resources(
    context: Context, request: wire.ListConfigResourcesRequest, call: Call
) -> wire.ListConfigResourcesResponse:
    """Topics and brokers. Kafka's other kinds (client metrics, the only kind in version 0; broker loggers; groups) have
    no configs here."""
    wanted = set(request.resource_types) if call.version >= _KINDS_SINCE else {_CLIENT_METRICS}
    if not wanted <= _LISTED:
        return wire.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image, view = context.metadata.image, ClusterView(context, call.peer.listener)
    named = [(BROKER, str(node_id)) for node_id in sorted(image.nodes.keys() - {UNKNOWN_REPLICA})]
    named += [(TOPIC, name) for name in sorted(topic.name for topic in image.topics.values() if view.shows(topic))]
    return wire.ListConfigResourcesResponse(
        config_resources=[
            wire.ListConfigResourcesResponseResource(resource_type=kind, resource_name=name)
            for kind, name in named
            if not wanted or kind in wanted
        ]
    )
