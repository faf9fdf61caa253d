"""Authorization of producer ids and transactions: changes need WRITE on the transactional id, descriptions need
DESCRIBE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.security.rules.verdict import (
    ALLOWED,
    CLUSTER,
    GROUP,
    TOPIC,
    TRANSACTION,
    KnownTopics,
    Verdict,
    parted,
    refused_whole,
    shown,
)
from broker.wire import messages as wire

_CodeOf: TypeAlias = Callable[[wire.AddPartitionsToTxnRequestTopic, int], ErrorCode]
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Internal topics that no client may add to a transaction, whatever its permissions."""


async def init_producer_id(
    access: Unrestricted, request: wire.InitProducerIdRequest, version: int, topics: KnownTopics
) -> Verdict:
    """WRITE on the transactional id. Without a transactional id: IDEMPOTENT_WRITE on the cluster, or WRITE on any
    topic."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        if access.allows_cluster(Operation.IDEMPOTENT_WRITE, audited=False):
            return ALLOWED
        if access.allows_any(Operation.WRITE, ResourceType.TOPIC):
            return ALLOWED
        code = CLUSTER
    elif access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ALLOWED
    else:
        code = TRANSACTION
    return refused_whole(wire.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))


async def add_partitions(
    access: Unrestricted, request: wire.AddPartitionsToTxnRequest, version: int, topics: KnownTopics
) -> Verdict:
    """A client needs WRITE on its transactional id and on each topic. One refused or unknown partition causes the
    refusal of the whole request. A broker needs CLUSTER_ACTION."""
    if request.transactions:
        if access.allows_cluster(Operation.CLUSTER_ACTION):
            return ALLOWED
        return refused_whole(wire.AddPartitionsToTxnResponse(error_code=CLUSTER))
    wanted = request.v3_and_below_topics
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return refused_whole(partitions_added(wanted, lambda topic, index: TRANSACTION))
    allowed, refused = await parted(
        access,
        Operation.WRITE,
        ResourceType.TOPIC,
        [topic for topic in wanted if topic.name not in _INTERNAL],
        lambda topic: topic.name,
    )
    if not refused and len(allowed) == len(wanted):
        return ALLOWED
    names = {topic.name for topic in allowed}

    def code_of(topic: wire.AddPartitionsToTxnRequestTopic, index: int) -> ErrorCode:
        if topic.name not in names:
            return TOPIC
        facts = topics.facts(topic.name)
        if facts is None or not 0 <= index < facts.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    return refused_whole(partitions_added(wanted, code_of))


def partitions_added(
    wanted: list[wire.AddPartitionsToTxnRequestTopic], code_of: _CodeOf
) -> wire.AddPartitionsToTxnResponse:
    return wire.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            wire.AddPartitionsToTxnResponseTopic(
                name=topic.name,
                results_by_partition=[
                    wire.AddPartitionsToTxnResponsePartition(
                        partition_index=index, partition_error_code=code_of(topic, index)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in wanted
        ]
    )


async def add_offsets(
    access: Unrestricted, request: wire.AddOffsetsToTxnRequest, version: int, topics: KnownTopics
) -> Verdict:
    """WRITE on the transactional id, READ on the group."""
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return refused_whole(wire.AddOffsetsToTxnResponse(error_code=TRANSACTION))
    if not access.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return refused_whole(wire.AddOffsetsToTxnResponse(error_code=GROUP))
    return ALLOWED


async def end_txn(access: Unrestricted, request: wire.EndTxnRequest, version: int, topics: KnownTopics) -> Verdict:
    """WRITE on the transactional id."""
    if access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return ALLOWED
    return refused_whole(wire.EndTxnResponse(error_code=TRANSACTION))


async def write_markers(
    access: Unrestricted, request: wire.WriteTxnMarkersRequest, version: int, topics: KnownTopics
) -> Verdict:
    """ALTER or CLUSTER_ACTION on the cluster."""
    if access.allows_cluster(Operation.ALTER, audited=False) or access.allows_cluster(Operation.CLUSTER_ACTION):
        return ALLOWED
    return refused_whole(markers_refused(request, CLUSTER))


def markers_refused(request: wire.WriteTxnMarkersRequest, code: ErrorCode) -> wire.WriteTxnMarkersResponse:
    return wire.WriteTxnMarkersResponse(
        markers=[
            wire.WriteTxnMarkersResponseMarker(
                producer_id=marker.producer_id,
                topics=[
                    wire.WriteTxnMarkersResponseTopic(
                        name=topic.name,
                        partitions=[
                            wire.WriteTxnMarkersResponsePartition(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


async def describe_transactions(
    access: Unrestricted, request: wire.DescribeTransactionsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """DESCRIBE on each transactional id. Partitions of topics that the client may not describe are left out."""
    allowed, refused = await parted(
        access, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, request.transactional_ids, str
    )
    rows = [
        wire.DescribeTransactionsResponseState(transactional_id=refused_id, error_code=TRANSACTION)
        for refused_id in refused
    ]

    async def merge(response: wire.DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            state.topics, _ = await parted(
                access, Operation.DESCRIBE, ResourceType.TOPIC, state.topics, lambda topic: topic.topic
            )
        response.transaction_states = [*response.transaction_states, *rows]

    if not allowed and rows:
        return refused_whole(wire.DescribeTransactionsResponse(transaction_states=rows))
    return Verdict(request=replace(request, transactional_ids=allowed), merge=merge)


async def list_transactions(
    access: Unrestricted, request: wire.ListTransactionsRequest, version: int, topics: KnownTopics
) -> Verdict:
    """Lists the transactional ids that the client may describe. Only a broker may ask whether a transaction has a
    partition, because the client may not be allowed to describe the topic."""

    async def only_shown(response: wire.ListTransactionsResponse) -> None:
        every = response.transaction_states
        response.transaction_states = await shown(
            access, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, every, lambda state: state.transactional_id
        )

    return Verdict(request=replace(request, partition_topic_id=wire.ZERO_UUID), merge=only_shown)
