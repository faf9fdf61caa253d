"""AlterConfigs and IncrementalAlterConfigs: change configs of topics and of running brokers.

Changes of one resource are made together or not at all; a resource named twice is not changed. Source: KIP-133,
KIP-226, KIP-339.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from broker.config.api.alterations import Alteration, AlterOperation, altered_overrides, replaced_overrides
from broker.config.topic.changes import altered_configs, replaced_configs
from broker.config.topic.topic_config import check_topic_name
from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.admin.configs import BROKER, TOPIC, is_node_id
from broker.handlers.request_limits import refuse_flood, together
from broker.metadata.image import Topic
from broker.security.audit import AuditEvent
from broker.wire import messages as wire
from broker.wire.row_counts import resource_counts
from logformat.errors import ThermoclineError

Resource = wire.AlterConfigsRequestResource | wire.IncrementalAlterConfigsRequestResource
R = TypeVar("R", wire.AlterConfigsRequestResource, wire.IncrementalAlterConfigsRequestResource)
A = TypeVar("A", wire.AlterConfigsResponseResource, wire.IncrementalAlterConfigsResponseResource)


class Change(NamedTuple):
    """A resource's new configs, as functions of the old configs. The second argument `own` is true for the configs of
    this broker alone, and false for the configs of all brokers.
    """

    of_topic: Callable[[Topic], Mapping[str, str]]
    of_broker: Callable[[Mapping[str, str], bool], Mapping[str, str]]


async def handle_alter_configs(
    context: Context, request: wire.AlterConfigsRequest, call: Call
) -> wire.AlterConfigsResponse:
    """Replace all configs of each resource."""
    answers = await _answers(
        context,
        call,
        request.resources,
        _replacing,
        wire.AlterConfigsResponseResource,
        validate_only=request.validate_only,
    )
    return wire.AlterConfigsResponse(responses=answers)


def _replacing(context: Context, resource: wire.AlterConfigsRequestResource) -> Change:
    given = [(config.name, config.value) for config in resource.configs]
    return Change(
        lambda topic: replaced_configs(context.config, topic.configs, given, internal=topic.internal),
        lambda _, own: replaced_overrides(context.config, given, own=own),
    )


async def handle_incremental_alter_configs(
    context: Context, request: wire.IncrementalAlterConfigsRequest, call: Call
) -> wire.IncrementalAlterConfigsResponse:
    """Change the named configs of each resource."""
    answers = await _answers(
        context,
        call,
        request.resources,
        _altering,
        wire.IncrementalAlterConfigsResponseResource,
        validate_only=request.validate_only,
    )
    return wire.IncrementalAlterConfigsResponse(responses=answers)


def _altering(context: Context, resource: wire.IncrementalAlterConfigsRequestResource) -> Change:
    try:
        alterations = [
            Alteration(config.name, AlterOperation(config.config_operation), config.value)
            for config in resource.configs
        ]
    except ValueError as unknown:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown operation: {unknown}") from unknown
    return Change(
        lambda topic: altered_configs(context.config, topic.configs, alterations, internal=topic.internal),
        lambda existing, own: altered_overrides(context.config, existing, alterations, own=own),
    )


async def _answers(
    context: Context,
    call: Call,
    resources: Sequence[R],
    change_of: Callable[[Context, R], Change],
    answer_type: type[A],
    *,
    validate_only: bool,
) -> list[A]:
    """One answer for each resource. Too many resources get one answer, for the first resource, because an answer for
    each resource would take seconds."""

    def refused(resource: R, why: ThermoclineError) -> A:
        return answer_type(code_of(why), str(why), resource.resource_type, resource.resource_name)

    try:
        refuse_flood(resources)
    except ApiError as flood:
        return [refused(resources[0], flood)]
    names = resource_counts(resources)
    answers = [answer_type(ErrorCode.NONE, None, each.resource_type, each.resource_name) for each in resources]

    async def alter(at: int, resource: R) -> None:
        try:
            await _alter(context, resource, change_of(context, resource), names, validate_only=validate_only)
        except ThermoclineError as why:
            answers[at] = refused(resource, why)
        else:
            if not validate_only:
                _audit(context, call, resource)

    await together(alter(at, resource) for at, resource in enumerate(resources))
    return answers


def _audit(context: Context, call: Call, resource: Resource) -> None:
    """Write the audit line, with names of configs but never values, because some are secrets."""
    if resource.resource_type == TOPIC:
        what = f"topic {resource.resource_name}"
    else:
        what = f"broker {resource.resource_name}" if resource.resource_name else "every broker"
    names = ", ".join(sorted({config.name for config in resource.configs})) or "none"
    context.clients.audit.note(
        AuditEvent.CONFIGS, call.peer.principal, call.peer.address, f"altered configs of {what}: {names}"
    )


async def _alter(
    context: Context, resource: Resource, change: Change, names: Counter[tuple[int, str]], *, validate_only: bool
) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if names[kind, name] > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if kind == BROKER:
        node_id = _node_of(context, name)
        own = node_id is not None
        await context.controller.set_broker_configs(
            node_id, lambda existing: change.of_broker(existing, own), validate_only=validate_only
        )
        return
    if kind != TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    if context.metadata.topic_named(name) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    await context.controller.set_configs(name, change.of_topic, validate_only=validate_only)


def _node_of(context: Context, name: str) -> int | None:
    """The id of this or another broker; None for every broker. Raises ApiError, in Kafka's words, for any other
    name."""
    if not name:
        return None
    if not is_node_id(name):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != context.config.node_id and int(name) not in context.metadata.image.nodes:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {context.config.node_id}, but received {int(name)}",
        )
    return int(name)
