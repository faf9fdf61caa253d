"""After a lost log of `__transaction_state` the snapshot may show an earlier transaction than the one that is open."""

from __future__ import annotations

from broker.error_codes import ErrorCode
from broker.transactions.transaction import TV_0, TV_2
from tests.support.transactions.transaction_world import TransactionWorld

NONE = ErrorCode.NONE
IDS = 2_000
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
