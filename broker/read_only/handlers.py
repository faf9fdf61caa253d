"""The handlers that a read-only broker has of its own: they see to what those of every broker find.

Owns what is read from the bucket before a request is answered. Always true: what a client is told of a log's end is as
new as the bucket's answer, or as what is known where it does not answer in time. Must not know how it is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from broker.context import Call, Context
from broker.handlers.fetch import list_offsets as offsets
from broker.partition.registry import Registry
from broker.read_only.archived_partition import ArchivedPartition
from broker.read_only.roots import Roots
from broker.wire.apis import ApiKey
from broker.wire.message import Encoded, Message
from broker.wire.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest

Handler = Callable[[Context, Any, Call], Awaitable[Message | Encoded]]


def own_handlers(roots: Roots) -> dict[int, Handler]:
    """Instead of the dispatcher's."""

    async def list_offsets(context: Context, request: ListOffsetsRequest, call: Call) -> Message:
        named = ((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
        await roots.known(_archived(context.registry, named), _wait_s(context))
        return await offsets.handle_list_offsets(context, request, call)

    async def epoch_ends(context: Context, request: OffsetForLeaderEpochRequest, call: Call) -> Message:
        named = ((topic.topic, wanted.partition) for topic in request.topics for wanted in topic.partitions)
        await roots.known(_archived(context.registry, named), _wait_s(context), lineage=True)
        return await offsets.handle_offset_for_leader_epoch(context, request, call)

    return {ApiKey.LIST_OFFSETS: list_offsets, ApiKey.OFFSET_FOR_LEADER_EPOCH: epoch_ends}


def _wait_s(context: Context) -> float:
    return context.config.list_offsets_wait_ms_max / 1000


def _archived(registry: Registry, named: Iterable[tuple[str, int]]) -> list[ArchivedPartition]:
    """Those that there are, each once."""
    found = {key: registry.readable.get(key) for key in named}
    return [partition for partition in found.values() if isinstance(partition, ArchivedPartition)]
