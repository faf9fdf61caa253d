"""WriteTxnMarkers: a coordinator ends transactions in partitions that are led here (KIP-98, TX15).

All markers of a request for one partition are one append. A partition is answered when its markers are below the high
watermark, so that no leader change can remove an answered marker (TX22). If a topic was deleted and created again under
its name, a request with topic ids does not write the old topic's markers to the new topic (TX39). While a producer's
transaction is undecided behind a gap, its markers are refused and must be sent again, because readers may have seen an
outcome in the bucket that differs from the restored coordinator's outcome (TX10). Restored group offsets are undecided
too, if they began after the marker's decision. Admin clients may send this request, as Kafka's `kafka-transactions.sh
abort` does (TX42). `broker.security.rules` has the permissions.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import code_of
from broker.partition.leading.leader_replica import LeaderReplica
from broker.transactions.transaction import TV_2
from broker.wire import messages as wire
from broker.wire.primitives import ZERO_UUID
from logformat.errors import ThermoclineError
from logformat.transaction_marker import TransactionMarker
from seams.loop.turns import Turns, next_turn

COMMIT_TIMEOUT_S: Final = 10.0  # wait of a request; its coordinator sends unanswered markers again
ROWS_MAX: Final = 100_000  # partitions of all markers of a request; further partitions are refused
_AT_ONCE_MAX: Final = 1_000  # markers of one append: 10 µs each

Row = wire.WriteTxnMarkersResponsePartition


async def handle_write_txn_markers(
    context: Context, request: wire.WriteTxnMarkersRequest, call: Call
) -> wire.WriteTxnMarkersResponse:
    """Append the markers, then wait until they are committed."""
    response = wire.WriteTxnMarkersResponse()
    wanted: dict[LeaderReplica, list[tuple[TransactionMarker, Row]]] = {}
    turns, room = Turns(), ROWS_MAX
    for sent in request.markers:
        marker = TransactionMarker(
            sent.producer_id,
            sent.producer_epoch,
            sent.transaction_result,
            sent.coordinator_epoch,
            sent.transaction_version,
        )
        topics = []
        for topic in sent.topics:
            rows: list[Row] = []
            if topic.partition_indexes:
                topics.append(wire.WriteTxnMarkersResponseTopic(name=topic.name, partitions=rows))
            for index in topic.partition_indexes:
                row = Row(partition_index=index)
                rows.append(row)
                room -= 1
                partition = None if room < 0 else context.registry.partitions.get((topic.name, row.partition_index))
                if partition is None:
                    too_many = ErrorCode.POLICY_VIOLATION
                    row.error_code = too_many if room < 0 else context.registry.refusal(topic.name, row.partition_index)
                elif topic.topic_id not in (ZERO_UUID, partition.topic_id):
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif marker.producer_id < 0 or marker.producer_epoch < 0 or marker.transaction_version < 0:
                    row.error_code = ErrorCode.INVALID_REQUEST
                else:
                    wanted.setdefault(partition, []).append((marker, row))
                if turns.over():
                    await next_turn()
            if turns.over():  # a topic without partitions also counts as a row
                await next_turn()
        if topics:  # a marker without partitions has no answer
            response.markers.append(wire.WriteTxnMarkersResponseMarker(producer_id=marker.producer_id, topics=topics))
    until_s = asyncio.get_running_loop().time() + COMMIT_TIMEOUT_S
    committing = []
    for partition, markers in wanted.items():
        for start in range(0, len(markers), _AT_ONCE_MAX):
            committing.append(_append(context, partition, markers[start : start + _AT_ONCE_MAX], until_s))
            if turns.over():
                await next_turn()
    for committed in committing:
        await committed
    return response


def _must_wait(context: Context, partition: LeaderReplica, marker: TransactionMarker) -> bool:
    """Whether the leader must first ask how the producer's transaction ended. In version 2 every end has a new epoch.
    Restored group offsets with the marker's epoch thus belong to the next transaction, which the log does not know."""
    if marker.producer_id in partition.undecided:
        return True
    if marker.transaction_version < TV_2 or marker.producer_id in partition.log.producers.transactions.first_offsets:
        return False
    restored = context.groups.undecided(partition.topic, partition.index)
    return restored is None or restored.get(marker.producer_id) == marker.producer_epoch


def _append(
    context: Context, partition: LeaderReplica, markers: list[tuple[TransactionMarker, Row]], until_s: float
) -> asyncio.Future[None]:
    """Append the markers now; the future is done when the rows of the markers have their results."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    due = []
    for marker, row in markers:
        if _must_wait(context, partition, marker):
            row.error_code = ErrorCode.NOT_ENOUGH_REPLICAS  # the coordinator sends the marker again
        else:
            due.append((marker, row))
    markers = due
    try:
        results = partition.append_markers([marker for marker, _ in markers], context.world.clock.wall_ms())
    except (ThermoclineError, OSError) as refused:
        for _, row in markers:
            row.error_code = code_of(refused)
        done.set_result(None)
        return done
    appended, end_offset = [], 0
    for (_, row), result in zip(markers, results, strict=True):
        if isinstance(result, int):
            appended.append(row)
            end_offset = max(end_offset, result + 1)  # the offset of a repeated marker is below this append
        else:
            row.error_code = code_of(result)

    def acked(failure: Exception | None) -> None:
        if failure is not None:
            for row in appended:
                row.error_code = code_of(failure)
        if not done.done():
            done.set_result(None)

    if not appended or partition.when_visible(end_offset, until_s, acked):
        acked(None)
    return done
