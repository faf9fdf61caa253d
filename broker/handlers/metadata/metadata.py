"""Metadata: brokers, topics and leaders; creates missing topics if the client and the broker allow it.

A topic named several times is shown once, and only to clients that may describe it. A long response is encoded once for
all equal requests at one image (`ResponseCache`); if it depends on permissions, it is shared only with clients of the
same permissions. Source: KIP-4, KIP-430, KIP-516.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Hashable
from typing import Final, TypeAlias, cast
from uuid import UUID

from broker.config.topic.topic_config import InvalidTopicName, check_topic_name
from broker.context import Call, Context
from broker.controller.decisions.decision import Charge
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.metadata.cluster_view import ClusterView, PartitionView, controller_id, view_stamp
from broker.handlers.request_limits import within
from broker.handlers.responder import encoded_in_turns
from broker.metadata.image import Topic
from broker.security.authorizer.access import NOT_REQUESTED
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.security.rules.cluster import cluster_operations
from broker.wire.apis import ApiKey
from broker.wire.codec import encode_response_element
from broker.wire.message import Encoded, EncodedElements
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
from seams.loop.turns import Turns, next_turn

_NULL_TOPICS_MEAN_ALL_SINCE: Final = 1  # in v0 an empty list means all
_NULL_NAMES_SINCE: Final = 12
_AUTO_CREATED_PER_REQUEST_MAX: Final = 100  # most topics in a Metadata request that creates missing topics
_CACHED_TOPICS_MAX: Final = 16  # most topics in a request whose response is cached
_LISTENER_NOT_FOUND_SINCE: Final = 6
_BEFORE: Final = 2  # bytes of the error code; the index follows it in every version
_INDEX: Final = struct.Struct(">i")
_AUTO_CREATION_S: Final = 5.0  # longest wait of a Metadata request for all topics that it creates


_Named: TypeAlias = dict[tuple[bytes, str | None], MetadataRequestTopic]
"""The requested topics, each once: by the bytes of the id when one is given, else by name. A client could choose many
ids of which Python's hash is the same, but not their bytes."""


async def handle_metadata(context: Context, request: MetadataRequest, call: Call) -> Encoded:
    """Brokers, and the requested topics; a missing topic is created if the client and the broker allow it."""
    named = _named(request, call.version)
    hidden: list[MetadataResponseTopic] = []
    if named is not None and call.access.is_enforced:
        named, hidden = await _split(context, call, named)
    stamp, key = view_stamp(context), None if hidden else _cache_key(request, call, named)
    cached = context.response_cache.get(stamp, key)
    if cached is not None:
        return Encoded(cached)
    response = await _answer(context, request, call, named)
    response.topics += hidden
    # The response has no records, so its parts are bytes.
    body = b"".join(cast(list[bytes], await encoded_in_turns(ApiKey.METADATA, call.version, response)))
    # A response with a missing topic is not cached, because the topic may exist at the next request.
    is_whole = all(topic.error_code == ErrorCode.NONE for topic in response.topics)
    if key is not None and is_whole and stamp == view_stamp(context):
        context.response_cache.keep(stamp, key, body)
    return Encoded(body)


def _named(request: MetadataRequest, version: int) -> _Named | None:
    """The requested topics; None for all."""
    if request.topics is None or (version < _NULL_TOPICS_MEAN_ALL_SINCE and not request.topics):
        return None
    # The names are a set, as in Kafka: a name repeated 12 000 times is one topic.
    return {
        (wanted.topic_id.bytes, "" if wanted.topic_id != ZERO_UUID else wanted.name): wanted
        for wanted in request.topics
    }


async def _split(context: Context, call: Call, named: _Named) -> tuple[_Named, list[MetadataResponseTopic]]:
    """The topics that the client may describe, and rows for the other topics. Such a row is the same for an existing
    and a missing topic. A row for an id has no name."""
    shown: _Named = {}
    hidden: list[MetadataResponseTopic] = []
    turns = Turns()
    for key, wanted in named.items():
        by_id = wanted.topic_id != ZERO_UUID
        name = context.metadata.names.get(wanted.topic_id) if by_id else wanted.name or ""
        if name is None:  # decided here: the image may have the topic when the other rows are made
            hidden.append(_unknown_id(wanted, call.version))
        elif call.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            shown[key] = wanted
        else:
            told = None if by_id and call.version >= _NULL_NAMES_SINCE else wanted.name or ""
            hidden.append(MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, told, topic_id=wanted.topic_id))
        if turns.over():
            await next_turn()
    return shown, hidden


def _cache_key(request: MetadataRequest, call: Call, named: _Named | None) -> Hashable | None:
    """The cache key: everything that the response depends on besides the stamp; None if the response is not cached. The
    key does not include the permission to create topics, because only responses that found every topic are cached. The
    key includes the client's permissions if the response has authorized operations or lists all topics, because it then
    depends on them.
    """
    if named is not None and len(named) > _CACHED_TOPICS_MAX:
        return None
    shows_rights = (
        named is None or request.include_topic_authorized_operations or request.include_cluster_authorized_operations
    )
    return (
        call.access.identity if shows_rights else None,
        call.version,
        call.peer.listener,
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
        None if named is None else tuple(named),
    )


async def _answer(context: Context, request: MetadataRequest, call: Call, named: _Named | None) -> MetadataResponse:
    """A new response. `named`: None for all topics."""
    query = _Query(context, call, with_operations=request.include_topic_authorized_operations)
    turns = Turns()
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(*each) for each in query.view().brokers.values()],
        cluster_id=context.metadata.cluster_id,
        controller_id=controller_id(context),
        cluster_authorized_operations=cluster_operations(
            call.access, asked=request.include_cluster_authorized_operations
        ),
    )
    if named is None:
        for known in tuple(context.metadata.image.topics.values()):
            if query.view().shows(known) and call.access.allows(
                Operation.DESCRIBE, ResourceType.TOPIC, known.name, audited=False
            ):
                response.topics.append(query.shown(known))
            if turns.over(known.partitions):
                await next_turn()
        return response
    may_create = context.config.auto_create_topics_enable and request.allow_auto_topic_creation
    may_create = may_create and len(named) <= _AUTO_CREATED_PER_REQUEST_MAX
    create_until_s = asyncio.get_running_loop().time() + _AUTO_CREATION_S if may_create else 0.0
    for wanted in named.values():
        found = await _one(query, wanted, create_until_s)
        response.topics.append(found)
        if turns.over(1 + len(found.partitions)):
            await next_turn()
    response.throttle_time_ms = query.mutations.throttle_ms
    return response


class _Query:
    """One request, and a view of the cluster that is renewed when the cluster changes."""

    def __init__(self, context: Context, call: Call, *, with_operations: bool) -> None:
        self.context = context
        self.version = call.version
        self.access = call.access
        self.mutations = context.quotas.mutations(call.peer, call.client_id, is_strict=True)
        self._with_operations = with_operations
        self._listener = call.peer.listener
        self._view = ClusterView(context, self._listener)
        self._partitions = PartitionEncoder(self._view, self.version)

    def view(self) -> ClusterView:
        if not self._view.is_current:
            self._view = ClusterView(self.context, self._listener)
            self._partitions = PartitionEncoder(self._view, self.version)
        return self._view

    def operations(self, name: str) -> int:
        """The client's authorized operations on the topic, if requested (KIP-430)."""
        return self.access.operations(ResourceType.TOPIC, name) if self._with_operations else NOT_REQUESTED

    def may_create(self, name: str) -> bool:
        """Whether the client's request may create the topic."""
        return self.access.allows_cluster(Operation.CREATE, audited=False) or self.access.allows(
            Operation.CREATE, ResourceType.TOPIC, name
        )

    def topic_named(self, name: str) -> Topic | None:
        """The topic's view; None if it does not exist or none of its partitions serves."""
        topic = self.context.metadata.topic_named(name)
        return topic if topic is not None and self.view().shows(topic) else None

    def shown(self, topic: Topic) -> MetadataResponseTopic:
        self.view()
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=UUID(topic.topic_id),
            is_internal=topic.internal,
            partitions=cast(list[MetadataResponsePartition], self._partitions.of(topic)),
            topic_authorized_operations=self.operations(topic.name),
        )


async def _create(context: Context, name: str, charge: Charge) -> None:
    config = context.config
    await context.controller.create_if_missing(
        name, config.num_partitions, {}, replication_factor=config.default_replication_factor, charge=charge
    )


async def _one(query: _Query, wanted: MetadataRequestTopic, create_until_s: float) -> MetadataResponseTopic:
    """The row of one topic. `create_until_s`: the event loop's time until which the request waits for the creation of a
    missing topic."""
    context, name = query.context, wanted.name
    if wanted.topic_id != ZERO_UUID:
        name = context.metadata.names.get(wanted.topic_id)
        if name is None or query.topic_named(name) is None:
            return _unknown_id(wanted, query.version)
    name = name or ""
    topic = query.topic_named(name)
    if topic is not None:
        return query.shown(topic)
    now_s = asyncio.get_running_loop().time()
    creates = create_until_s > now_s and context.metadata.topic_named(name) is None
    if creates and not query.may_create(name):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    missing = MetadataResponseTopic(name=name, topic_authorized_operations=query.operations(name))
    try:
        check_topic_name(name)
    except InvalidTopicName:
        # The error is final, because after "not available" a client would retry for ever.
        missing.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return missing
    if not creates:
        # The topic may be in the image, but it is not shown while its partitions are being opened.
        missing.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return missing
    try:
        await within(create_until_s, lambda: _create(context, name, query.mutations.charge()))
        made = query.topic_named(name)
        if made is not None:
            return query.shown(made)
        missing.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # the topic was deleted as soon as it was open
    except ApiError as refused:
        # Clients of Metadata do not know the quota's error: they ask again.
        is_over_quota = refused.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        missing.error_code = ErrorCode.LEADER_NOT_AVAILABLE if is_over_quota else refused.code
    except (ThermoclineError, TimeoutError):
        missing.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return missing


def _unknown_id(wanted: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
    name = wanted.name if version >= _NULL_NAMES_SINCE else wanted.name or ""
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)


class PartitionEncoder:
    """Encodes the partitions of a view, of which most differ only in their index. The bytes equal the codec's.

    Hot path: 0.2 µs a partition. A message and its encoding by the codec would take 0.8 µs.
    """

    def __init__(self, view: ClusterView, version: int) -> None:
        self._view = view
        self._version = version
        self._ends: dict[int, tuple[bytes, bytes]] = {}  # by identity of the view's shared objects

    def of(self, topic: Topic) -> EncodedElements:
        """The topic's partitions, by index."""
        look, ends, pack, found = self._view.partition, self._ends, _INDEX.pack, []
        for index in range(topic.partitions):
            seen = look(topic, index)
            known = ends.get(id(seen))
            if known is None:
                known = ends[id(seen)] = self._encoded(seen)
            before, after = known
            found.append(before + pack(index) + after)
        return EncodedElements(len(found), b"".join(found))

    def _encoded(self, seen: PartitionView) -> tuple[bytes, bytes]:
        """The bytes before the index, and after it."""
        error, leader, epoch, replicas, in_sync, offline = seen
        if error is ErrorCode.LISTENER_NOT_FOUND and self._version < _LISTENER_NOT_FOUND_SINCE:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        partition = MetadataResponsePartition(error, 0, leader, epoch, replicas, in_sync, offline)
        body = encode_response_element(ApiKey.METADATA, self._version, partition, "topics", "partitions")
        return body[:_BEFORE], body[_BEFORE + _INDEX.size :]
