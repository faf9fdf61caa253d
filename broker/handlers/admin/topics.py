"""CreateTopics, DeleteTopics, CreatePartitions.

A topic that a request names twice is not changed. Source: KIP-4, KIP-195, KIP-516.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from broker.config.api.describe import describe_topic
from broker.context import Call, Context
from broker.controller.decisions.topics import INTERNAL_TOPICS
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.handlers.request_limits import CHANGES_PER_REQUEST_MAX, deadline_s, refuse_flood, together, within
from broker.quotas.client_quotas import Mutations
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from broker.wire.row_counts import deletion_counts, topic_counts
from logformat.errors import ThermoclineError

_STRICT_SINCE: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""Versions whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

_DELETION_DISABLED_SINCE: Final = 3
_DEFAULT: Final = -1  # partitions or replication factor: the broker's default (KIP-464)


async def handle_create_topics(
    context: Context, request: wire.CreateTopicsRequest, call: Call
) -> wire.CreateTopicsResponse:
    """Create each topic, or return its error."""
    until_s = deadline_s(request.timeout_ms)
    names = topic_counts(request)
    response = wire.CreateTopicsResponse()
    mutations = _mutations(context, call, ApiKey.CREATE_TOPICS)

    async def create(wanted: wire.CreateTopicsRequestTopic) -> None:
        answer = wire.CreateTopicsResponseTopic(name=wanted.name, error_message=None)
        response.topics.append(answer)
        try:
            refuse_flood(request.topics)
            _refuse_duplicate(names[wanted.name])
            await _create(context, call, request, wanted, answer, until_s, mutations)
        except (ThermoclineError, TimeoutError) as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused) or answer.error_code.name

    await together(create(wanted) for wanted in {wanted.name: wanted for wanted in request.topics}.values())
    response.throttle_time_ms = mutations.throttle_ms
    return response


def _mutations(context: Context, call: Call, api: ApiKey) -> Mutations:
    return context.quotas.mutations(call.peer, call.client_id, is_strict=call.version >= _STRICT_SINCE[api])


def _refuse_duplicate(count: int) -> None:
    if count > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def _create(
    context: Context,
    call: Call,
    request: wire.CreateTopicsRequest,
    wanted: wire.CreateTopicsRequestTopic,
    answer: wire.CreateTopicsResponseTopic,
    until_s: float,
    mutations: Mutations,
) -> None:
    _refuse_two_shapes(wanted)
    broker, factor = context.config, wanted.replication_factor
    configs = {config.name: config.value for config in wanted.configs}
    topic = await within(
        until_s,
        lambda: context.controller.create_topic(
            wanted.name,
            broker.num_partitions if wanted.num_partitions == _DEFAULT else wanted.num_partitions,
            configs,
            replication_factor=broker.default_replication_factor if factor == _DEFAULT else factor,
            assignments=[(each.partition_index, each.broker_ids) for each in wanted.assignments],
            # A client's ordinary topic of an internal name is refused; brokers create the internal topic.
            internal=wanted.name in INTERNAL_TOPICS
            and call.peer.listener == broker.brokers_listener
            and not call.access.is_enforced,
            validate_only=request.validate_only,
            charge=mutations.charge(),
        ),
    )
    answer.topic_id = UUID(topic.topic_id)
    answer.num_partitions = topic.partitions
    answer.replication_factor = len(topic.rows[0].replicas)
    answer.configs = [
        wire.CreateTopicsResponseConfig(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in describe_topic(context.config, topic.configs)
    ]


def _refuse_two_shapes(wanted: wire.CreateTopicsRequestTopic) -> None:
    numbers = (("replication factor", wanted.replication_factor), ("numPartitions", wanted.num_partitions))
    for name, count in numbers if wanted.assignments else ():
        if count != _DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"A manual partition assignment was specified, but {name} was not set to -1."
            )


async def handle_delete_topics(
    context: Context, request: wire.DeleteTopicsRequest, call: Call
) -> wire.DeleteTopicsResponse:
    """Free each name; the topic's data is deleted in the background. A topic that is named by name and by id counts as
    named twice."""
    until_s = deadline_s(request.timeout_ms)
    named = deletion_counts(request)
    ids = _named_by_id(context, named)
    response = wire.DeleteTopicsResponse()
    mutations = _mutations(context, call, ApiKey.DELETE_TOPICS)
    by_both = {topic_id for name, topic_id in ids.items() if (name, wire.ZERO_UUID.bytes) in named}

    async def delete(name: str | None, topic_id: UUID, count: int) -> None:
        answer = wire.DeleteTopicsResponseTopic(name=name, topic_id=topic_id)
        response.responses.append(answer)
        try:
            refuse_flood(request.topics or request.topic_names)
            _refuse_unclear(answer, count, ids)
            await _delete(context, call, answer, until_s, mutations)
        except (ThermoclineError, TimeoutError) as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused)

    await together(
        delete(name, UUID(bytes=topic_id), count)
        for (name, topic_id), count in named.items()
        # The topic was answered already, by its name. An id that is named twice is answered for every client, because
        # the authorizer does not check it.
        if name is not None or count > 1 or UUID(bytes=topic_id) not in by_both
    )
    response.throttle_time_ms = mutations.throttle_ms
    return response


def _named_by_id(context: Context, named: Collection[tuple[str | None, bytes]]) -> dict[str, UUID]:
    """The ids in `named`, by the names of their topics. Empty when there are too many ids; the request is then
    refused."""
    found: dict[str, UUID] = {}
    if len(named) <= CHANGES_PER_REQUEST_MAX:
        for name, topic_id in named:
            topic = context.metadata.image.topics.get(str(UUID(bytes=topic_id))) if name is None else None
            if topic is not None:
                found[topic.name] = UUID(topic.topic_id)
    return found


def _refuse_unclear(answer: wire.DeleteTopicsResponseTopic, count: int, ids: Mapping[str, UUID]) -> None:
    """Raise ApiError, in Kafka's words, unless the topic is named once, by name or by id. `ids`: the ids that the
    request names, by the names of their topics."""
    if answer.name is None:
        if answer.topic_id == wire.ZERO_UUID:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if count > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        return
    if answer.topic_id != wire.ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    _refuse_duplicate(count)
    if answer.name in ids:
        answer.topic_id = ids[answer.name]
        raise ApiError(ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")


async def _delete(
    context: Context, call: Call, answer: wire.DeleteTopicsResponseTopic, until_s: float, mutations: Mutations
) -> None:
    """Delete the topic that `answer` names, by name or id."""
    if not context.config.delete_topics:
        known = call.version >= _DELETION_DISABLED_SINCE
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST,
            "this broker runs with delete.topic.enable=false",
        )
    name, topic_id = answer.name, None
    if name is None:
        topic_id = str(answer.topic_id)
        known_as = context.metadata.image.topics.get(topic_id)
        if known_as is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        name = known_as.name
    deleted = await within(until_s, lambda: context.controller.delete_topic(name, topic_id, mutations.charge()))
    answer.name, answer.topic_id = name, UUID(deleted.topic_id)


async def handle_create_partitions(
    context: Context, request: wire.CreatePartitionsRequest, call: Call
) -> wire.CreatePartitionsResponse:
    until_s = deadline_s(request.timeout_ms)
    names = topic_counts(request)
    response = wire.CreatePartitionsResponse()
    mutations = _mutations(context, call, ApiKey.CREATE_PARTITIONS)

    async def grow(wanted: wire.CreatePartitionsRequestTopic) -> None:
        answer = wire.CreatePartitionsResponseTopic(name=wanted.name)
        response.results.append(answer)
        try:
            refuse_flood(request.topics)
            _refuse_duplicate(names[wanted.name])
            await _grow(context, request, wanted, until_s, mutations)
        except (ThermoclineError, TimeoutError) as refused:
            answer.error_code = code_of(refused)
            answer.error_message = str(refused)

    await together(grow(wanted) for wanted in {wanted.name: wanted for wanted in request.topics}.values())
    response.throttle_time_ms = mutations.throttle_ms
    return response


async def _grow(
    context: Context,
    request: wire.CreatePartitionsRequest,
    wanted: wire.CreatePartitionsRequestTopic,
    until_s: float,
    mutations: Mutations,
) -> None:
    assignments = None if wanted.assignments is None else [each.broker_ids for each in wanted.assignments]
    await within(
        until_s,
        lambda: context.controller.add_partitions(
            wanted.name,
            wanted.count,
            assignments=assignments,
            validate_only=request.validate_only,
            charge=mutations.charge(),
        ),
    )
