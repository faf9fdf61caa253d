"""Metadata: which broker leads what, and topics that are made because somebody asked for them.

Always true: a topic is shown once however often it is named; what this broker leads of it, when it serves; a long
answer is encoded once for all who ask the same of one image (`kept_answers`). Must not know how a topic is made, nor
what makes a leader (`cluster_view`). Source: KIP-4, KIP-430, KIP-516.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Final, TypeAlias, cast
from uuid import UUID

from broker.config.topic.topic_config import InvalidTopicName, check_topic_name
from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.admin.bounded_changes import within
from broker.handlers.authorized_operations import Operations, authorized_operations
from broker.handlers.metadata.cluster_view import ClusterView, controller_id, looked_at
from broker.handlers.metadata.partition_encoder import PartitionEncoder
from broker.handlers.responding import encoded_in_turns
from broker.metadata.image import Topic
from broker.wire.apis import ApiKey
from broker.wire.message import Encoded
from broker.wire.messages import (
    ZERO_UUID,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from logformat.errors import ThermoclineError
from seams.turns import Turns, next_turn

_NULL_TOPICS_MEAN_ALL_SINCE: Final = 1  # in v0 an empty list means all
_NULL_NAMES_SINCE: Final = 12
_AUTO_CREATED_PER_REQUEST_MAX: Final = 100  # topics a Metadata request may name and still create what is missing
_KEPT_NAMED_MAX: Final = 16  # topics that a request may name whose answer is kept
_AUTO_CREATION_S: Final = 5.0  # how long a Metadata request waits for the topics it makes, all together


_Named: TypeAlias = dict[tuple[UUID, str | None], MetadataRequestTopic]
"""What a request names, each once: by id where one is given, else by name."""


async def handle_metadata(context: Context, request: MetadataRequest, call: Call) -> Encoded:
    """Brokers, and the topics asked for; a missing one is created when both sides allow it."""
    named = _named(request, call.version)
    stamp, question = looked_at(context), _question(request, call, named)
    kept = context.kept_answers.get(stamp, question)
    if kept is not None:
        return Encoded(kept)
    response = await _answer(context, request, call, named)
    (body,) = await encoded_in_turns(ApiKey.METADATA, call.version, response)
    assert isinstance(body, bytes)  # there are no records in it
    # What was missing may be made by the next request, or was refused for a while.
    is_whole = all(topic.error_code == ErrorCode.NONE for topic in response.topics)
    if question is not None and is_whole and stamp == looked_at(context):
        context.kept_answers.keep(stamp, question, body)
    return Encoded(body)


def _named(request: MetadataRequest, version: int) -> _Named | None:
    """The topics asked for, each once; None: all."""
    if request.topics is None or (version < _NULL_TOPICS_MEAN_ALL_SINCE and not request.topics):
        return None
    # A set, as in Kafka: a name repeated 12 000 times is one topic.
    return {(wanted.topic_id, "" if wanted.topic_id != ZERO_UUID else wanted.name): wanted for wanted in request.topics}


def _question(request: MetadataRequest, call: Call, named: _Named | None) -> Hashable | None:
    """All that the answer depends on beside the stamp; None: the answer is not kept. Whether what is missing may be
    made is no part of it: only answers that found everything are kept."""
    if named is not None and len(named) > _KEPT_NAMED_MAX:
        return None
    return (
        call.version,
        call.peer.listener,
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
        None if named is None else tuple(named),
    )


async def _answer(context: Context, request: MetadataRequest, call: Call, named: _Named | None) -> MetadataResponse:
    """Made anew. `named`: None for all topics."""
    asked = _Asked(context, call, with_operations=request.include_topic_authorized_operations)
    turns = Turns()
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(*each) for each in asked.view().brokers.values()],
        cluster_id=context.metadata.cluster_id,
        controller_id=controller_id(context),
        cluster_authorized_operations=authorized_operations(
            Operations.CLUSTER, asked=request.include_cluster_authorized_operations
        ),
    )
    if named is None:
        for known in tuple(context.metadata.image.topics.values()):
            if asked.view().shows(known):
                response.topics.append(asked.shown(known))
            if turns.over(known.partitions):
                await next_turn()
        return response
    may_create = context.config.auto_create_topics_enable and request.allow_auto_topic_creation
    may_create = may_create and len(named) <= _AUTO_CREATED_PER_REQUEST_MAX
    create_until_s = asyncio.get_running_loop().time() + _AUTO_CREATION_S if may_create else 0.0
    for wanted in named.values():
        found = await _one(asked, wanted, create_until_s)
        response.topics.append(found)
        if turns.over(1 + len(found.partitions)):
            await next_turn()
    return response


class _Asked:
    """One request: who asks, and the cluster as it is at the moment for whoever asks."""

    def __init__(self, context: Context, call: Call, *, with_operations: bool) -> None:
        self.context = context
        self.version = call.version
        self.authorized = authorized_operations(Operations.TOPIC, asked=with_operations)
        self._listener = call.peer.listener
        self._view = ClusterView(context, self._listener)
        self._partitions = PartitionEncoder(self._view, self.version)

    def view(self) -> ClusterView:
        if not self._view.is_current:
            self._view = ClusterView(self.context, self._listener)
            self._partitions = PartitionEncoder(self._view, self.version)
        return self._view

    def topic_named(self, name: str) -> Topic | None:
        """None too while nothing of it serves yet."""
        topic = self.context.metadata.topic_named(name)
        return topic if topic is not None and self.view().shows(topic) else None

    def shown(self, topic: Topic) -> MetadataResponseTopic:
        self.view()
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=UUID(topic.topic_id),
            is_internal=topic.internal,
            partitions=cast(list[MetadataResponsePartition], self._partitions.of(topic)),
            topic_authorized_operations=self.authorized,
        )


async def _create(context: Context, name: str) -> None:
    config = context.config
    await context.controller.create_if_missing(
        name, config.num_partitions, {}, replication_factor=config.default_replication_factor
    )


async def _one(asked: _Asked, wanted: MetadataRequestTopic, create_until_s: float) -> MetadataResponseTopic:
    """`create_until_s`: the loop's time up to which a missing topic is made and waited for."""
    context, name = asked.context, wanted.name
    if wanted.topic_id != ZERO_UUID:
        name = context.metadata.names.get(wanted.topic_id)
        if name is None or asked.topic_named(name) is None:
            unknown = wanted.name if asked.version >= _NULL_NAMES_SINCE else wanted.name or ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=unknown, topic_id=wanted.topic_id)
    name = name or ""
    topic = asked.topic_named(name)
    if topic is not None:
        return asked.shown(topic)
    missing = MetadataResponseTopic(name=name, topic_authorized_operations=asked.authorized)
    try:
        check_topic_name(name)
    except InvalidTopicName:
        # Final: "not available" would make a client ask for ever.
        missing.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return missing
    now_s = asyncio.get_running_loop().time()
    if create_until_s <= now_s or context.metadata.topic_named(name) is not None:
        # In the image but not shown: its partitions are still being opened.
        missing.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return missing
    try:
        await within(create_until_s, lambda: _create(context, name))
        made = asked.topic_named(name)
        if made is not None:
            return asked.shown(made)
        missing.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # deleted in the moment it was open
    except ApiError as refused:
        missing.error_code = refused.code
    except (ThermoclineError, TimeoutError):
        missing.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return missing
