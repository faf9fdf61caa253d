"""A decision has one ending, and what comes late of it changes no later transaction.

Regression: the follow-up of a loaded shard met a decision that a client made meanwhile, and sent its markers twice."""

from __future__ import annotations

import asyncio

from broker.error_codes import ErrorCode
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.transaction import TV_0, TV_2
from broker.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tests.support.transactions.transaction_world import TransactionWorld

NONE = ErrorCode.NONE


async def _decided_before_the_follow_up(w: TransactionWorld, version: int) -> tuple[TransactionalPartition, int, int]:
    """One shard of many ids is loaded; the last id's client ends its transaction while the follow-up is at the first
    ones."""
    await w.led(1)
    at = w.partition(0)
    for number in range(2_000):
        await w.coordinator.init_producer_id(f"id-{number}", 60_000, None)
    reply = await w.coordinator.init_producer_id("tx", 60_000, None)
    pid, epoch = reply.producer_id, reply.producer_epoch
    assert await w.coordinator.add_partitions("tx", pid, epoch, [at], version) is NONE
    w.resign()
    old, w.coordinator = w.coordinator, w.make()
    await old.close()
    await w.led(2)
    return at, pid, epoch


async def test_a_decision_is_marked_once_while_the_follow_up_runs() -> None:
    w = TransactionWorld(partitions=1)
    at, pid, epoch = await _decided_before_the_follow_up(w, TV_0)
    w.held = asyncio.Event()
    reply = await w.coordinator.end("tx", pid, epoch, TV_0, is_commit=True)
    assert reply.error is NONE
    await w.settle(1)
    w.held.set()
    await w.settle(1)
    assert w.state("tx") == "CompleteCommit"
    assert len(w.taken[at]) == 1, w.taken[at]
    await w.close()


async def test_no_late_marker_of_a_decision_ends_the_next_transaction() -> None:
    """TV1 (librdkafka): the epoch stays. A second ending's request was late, in a lane of its own; its COMMIT
    landed in the next transaction, which then aborted: its records were shown as committed."""
    w = TransactionWorld(partitions=1)
    at, pid, epoch = await _decided_before_the_follow_up(w, TV_0)
    late, take, delayed = asyncio.Event(), w.take, list[int]()

    async def second_is_late(node_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if len(w.requests) == 1 and not delayed:
            delayed.append(node_id)
            await late.wait()
        return await take(node_id, request)

    w.take = second_is_late  # type: ignore[method-assign]
    assert (await w.coordinator.end("tx", pid, epoch, TV_0, is_commit=True)).error is NONE
    await w.settle(1)
    assert w.state("tx") == "CompleteCommit" and len(w.taken[at]) == 1
    assert await w.coordinator.add_partitions("tx", pid, epoch, [at], TV_0) is NONE
    assert w.state("tx") == "Ongoing"
    late.set()
    await w.settle(1)
    assert len(w.taken[at]) == 1, "a COMMIT of the transaction before reached the partition within the next one"
    await w.close()


async def test_no_late_answer_to_a_marker_completes_the_next_transaction() -> None:
    """TV2: a second ending was answered while the next transaction is prepared, and its partition is silent: it counted
    as complete without a marker, and no later coordinator sent one."""
    w = TransactionWorld(partitions=1)
    _, pid, epoch = await _decided_before_the_follow_up(w, TV_2)
    other = w.partition(1, leader=2)
    late, take, delayed = asyncio.Event(), w.take, list[int]()

    async def second_is_late(node_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if node_id == 1 and w.requests and not delayed:
            delayed.append(node_id)
            await late.wait()
        return await take(node_id, request)

    w.take = second_is_late  # type: ignore[method-assign]
    assert (await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)).error is NONE
    await w.settle(1)
    assert w.state("tx") == "CompleteCommit"
    assert await w.coordinator.add_partitions("tx", pid, epoch + 1, [other], TV_2) is NONE
    w.silent.add(2)
    assert (await w.coordinator.end("tx", pid, epoch + 1, TV_2, is_commit=True)).error is NONE
    await w.settle(1)
    assert w.state("tx") == "PrepareCommit"
    late.set()
    await w.settle(1)
    assert w.state("tx") == "PrepareCommit" and not w.taken[other], (w.state("tx"), w.taken[other])
    await w.close()
