"""Handlers and refusals of a read-only broker.

Requests that write are refused with an error that clients do not retry, and a message that names the right brokers.
`NoCommitQueue` refuses requests for a controller, with the errors of each API. `RefusesWrites` refuses requests that
write to a partition, before any handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from broker.context import Call, Context
from broker.controller.decisions.decision import Decider, T
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.handlers.fetch import list_offsets as offsets
from broker.net.dispatch import CloseConnection, Peer
from broker.partition.registry import Registry
from broker.read_only.archived_partition import ArchivedPartition
from broker.read_only.root_cache import RootCache
from broker.security.brokers_only import BrokersOnly
from broker.security.rules import data, groups, transactions
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from broker.wire.message import Encoded, Message

WHY: Final = (
    "this broker only reads the bucket of another cluster (serve --read-only): send requests that write to the "
    "brokers of that cluster"
)
OF_TOPICS: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OF_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class NoCommitQueue:
    """The commit queue of a broker without a controller."""

    epoch = -1
    image_bytes = 0

    async def decide(self, decider: Decider[T], rows: int = 0) -> T:
        raise ApiError(OF_CLUSTER, WHY)


async def _produce(request: wire.ProduceRequest, code: ErrorCode) -> wire.ProduceResponse:
    if request.acks == 0:
        raise CloseConnection(f"a produce without acknowledgement: {WHY}")  # as Kafka does
    return wire.ProduceResponse(responses=[data.produce_row(topic, code, WHY) for topic in request.topic_data])


async def _delete_records(request: wire.DeleteRecordsRequest, code: ErrorCode) -> wire.DeleteRecordsResponse:
    return wire.DeleteRecordsResponse(topics=[data.deletion_refused(topic, code) for topic in request.topics])


async def _init_producer_id(request: wire.InitProducerIdRequest, code: ErrorCode) -> wire.InitProducerIdResponse:
    return wire.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


async def _add_partitions(request: wire.AddPartitionsToTxnRequest, code: ErrorCode) -> wire.AddPartitionsToTxnResponse:
    """The response has one error in the versions for brokers, and an error per partition in the versions for
    clients."""
    response = transactions.partitions_added(request.v3_and_below_topics, lambda topic, index: code)
    return replace(response, error_code=code)


async def _add_offsets(_: wire.AddOffsetsToTxnRequest, code: ErrorCode) -> wire.AddOffsetsToTxnResponse:
    return wire.AddOffsetsToTxnResponse(error_code=code)


async def _end_transaction(_: wire.EndTxnRequest, code: ErrorCode) -> wire.EndTxnResponse:
    return wire.EndTxnResponse(error_code=code)


async def _write_markers(request: wire.WriteTxnMarkersRequest, code: ErrorCode) -> wire.WriteTxnMarkersResponse:
    return transactions.markers_refused(request, code)


async def _commit_in_transaction(request: wire.TxnOffsetCommitRequest, code: ErrorCode) -> wire.TxnOffsetCommitResponse:
    return wire.TxnOffsetCommitResponse(topics=[groups.txn_commit_row(topic, code) for topic in request.topics])


_REFUSED: Final[dict[int, tuple[ErrorCode, Callable[[Any, ErrorCode], Awaitable[Message]]]]] = {
    ApiKey.PRODUCE: (OF_TOPICS, _produce),
    ApiKey.DELETE_RECORDS: (OF_TOPICS, _delete_records),
    ApiKey.INIT_PRODUCER_ID: (OF_CLUSTER, _init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: (OF_CLUSTER, _add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: (OF_CLUSTER, _add_offsets),
    ApiKey.END_TXN: (OF_CLUSTER, _end_transaction),
    ApiKey.WRITE_TXN_MARKERS: (OF_CLUSTER, _write_markers),
    ApiKey.TXN_OFFSET_COMMIT: (OF_CLUSTER, _commit_in_transaction),
}
REFUSALS: Final = {api_key: refuse for api_key, (_, refuse) in _REFUSED.items()}
"""Refusals added to those of the dispatcher."""


class RefusesWrites(BrokersOnly):
    """A dispatcher that also refuses requests that write."""

    def refusal(self, peer: Peer, api_key: int, request: Message, *, is_client: bool = False) -> ErrorCode | None:
        if api_key in _REFUSED:
            return _REFUSED[api_key][0]
        return super().refusal(peer, api_key, request, is_client=is_client)


Handler = Callable[[Context, Any, Call], Awaitable[Message | Encoded]]


def own_handlers(roots: RootCache) -> dict[int, Handler]:
    """Handlers that replace those of the dispatcher. They first read the manifests of the named partitions, so that log
    ends are current. If the bucket does not answer in time, they use the known manifests."""

    async def list_offsets(context: Context, request: wire.ListOffsetsRequest, call: Call) -> Message:
        named = ((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
        await roots.refresh(_archived(context.registry, named), _wait_s(context))
        return await offsets.handle_list_offsets(context, request, call)

    async def epoch_ends(context: Context, request: wire.OffsetForLeaderEpochRequest, call: Call) -> Message:
        named = ((topic.topic, wanted.partition) for topic in request.topics for wanted in topic.partitions)
        await roots.refresh(_archived(context.registry, named), _wait_s(context), lineage=True)
        return await offsets.handle_offset_for_leader_epoch(context, request, call)

    return {ApiKey.LIST_OFFSETS: list_offsets, ApiKey.OFFSET_FOR_LEADER_EPOCH: epoch_ends}


def _wait_s(context: Context) -> float:
    return context.config.list_offsets_wait_ms_max / 1000


def _archived(registry: Registry, named: Iterable[tuple[str, int]]) -> list[ArchivedPartition]:
    """The named partitions that exist, without duplicates."""
    found = {key: registry.readable.get(key) for key in named}
    return [partition for partition in found.values() if isinstance(partition, ArchivedPartition)]
