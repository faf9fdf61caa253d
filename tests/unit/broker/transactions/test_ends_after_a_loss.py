"""After a lost log of `__transaction_state` the snapshot may show an earlier transaction than the one that is open."""

from __future__ import annotations

from broker.error_codes import ErrorCode
from broker.transactions.interfaces import Decision
from broker.transactions.transaction import TV_0, TV_2
from logformat.gap import gap_batches
from tests.support.transactions.coordinator_pair import AT_1, CoordinatorPair
from tests.support.transactions.transaction_world import TransactionWorld

NONE = ErrorCode.NONE
IDS = 500
"""So many that the last id's client asks while the follow-up of the load is at the first ones."""


async def _restored_as_ongoing(w: TransactionWorld, version: int) -> tuple[int, int]:
    """A snapshot shows the id's transaction with partition 0. The transaction got partition 1 after the snapshot, and
    the log behind the snapshot is lost."""
    await w.led(1)
    for number in range(IDS):
        await w.coordinator.init_producer_id(f"id-{number}", 60_000, None)
    reply = await w.coordinator.init_producer_id("tx", 60_000, None)
    pid, epoch = reply.producer_id, reply.producer_epoch
    add = w.coordinator.add_partitions
    assert await add("tx", pid, epoch, [w.partition(0)], version) is NONE
    (shard,) = w.coordinator.log.shards()
    end, batches = await shard.snapshot()
    assert await add("tx", pid, epoch, [w.partition(1)], version) is NONE
    w.resign()
    old, w.coordinator = w.coordinator, w.make()
    await old.close()
    w.memory.snapshots[0], w.memory.starts[0], w.memory.batches[0] = (end, batches), end, []
    await w.led(2)
    return pid, epoch


async def test_no_producer_of_before_commits_a_transaction_of_the_snapshot() -> None:
    """TX11: the commit was answered, and partition 1 got no marker, because the record that added it was lost."""
    for version in (TV_0, TV_2):
        w = TransactionWorld(partitions=1)
        pid, epoch = await _restored_as_ongoing(w, version)
        reply = await w.coordinator.end("tx", pid, epoch, version, is_commit=True)
        await w.settle(5)
        assert reply.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING, version
        assert [marker.is_commit for marker in w.taken[w.partition(0)]] == [False]
        assert w.known("tx").producer_id != pid
        await w.close()


async def test_a_loss_forgets_no_commit_that_a_partition_may_ask_for() -> None:
    """TX10: a power cut took the marker in a partition, and the end of `__transaction_state`. The record that the
    transaction is complete survived: the partition's leader must not abort what was committed."""
    pair = CoordinatorPair()
    await pair.ready()
    world, at = pair.world, pair.world.partition(0)
    pid, epoch = await pair.begin(AT_1, at, TV_2)
    assert (await pair.of(AT_1).end(AT_1, pid, epoch, TV_2, is_commit=True)).error is NONE
    await world.settle(1)
    assert pair.state(AT_1) == "CompleteCommit"
    for leader_epoch in (2, 3):  # also after another load, of a log that has what was written after the loss
        await _lose_the_end(pair, 0, leader_epoch)
        assert await pair.outcomes.decide(at, pid, epoch, aborts=True) is Decision.COMMITTED
        assert await pair.outcomes.decide(at, pid, epoch + 1, aborts=True) is Decision.UNKNOWN, (
            "the next one is not this one"
        )
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await pair.of(AT_1).end(AT_1, pid, epoch, TV_2, is_commit=True)).error is mapping
        assert await pair.of(AT_1).add_partitions(AT_1, pid, epoch + 1, [at], TV_2) is mapping
    reply = await pair.of(AT_1).init_producer_id(AT_1, 60_000, None)
    assert (reply.error, reply.producer_epoch) == (NONE, 0) and reply.producer_id != pid
    await pair.close()


async def _lose_the_end(pair: CoordinatorPair, index: int, epoch: int) -> None:
    """The coordinator's log ends with a gap, and is loaded again."""
    memory, log = pair.world.memory, pair.by_node[1].log
    log.resign(index)
    end = memory.ends[index]
    memory.batches[index] += list(gap_batches(end, end + 10, 1))
    memory.ends[index] = end + 10
    log.lead(memory.shard_log(index, epoch))
    await log.wait_loaded()
    await pair.world.settle(1)
