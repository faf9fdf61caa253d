"""A compacted, replicated log is tiered later: the bucket gets no record whose tombstone a replica has removed before.

One replica's cleaner is later than `delete.retention.ms`, and it leads (ADR 32).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hotstore.cleaning.clean_pass import PassOver
from hotstore.host.log_host import LogHost
from logformat.record_batch import walk
from logformat.records import iter_records
from tests.support.brokers.shared_bucket import Pair, both, until
from tests.unit.broker.partition.following.test_catching_up import leading
from tests.unit.broker.partition.test_compacted_and_tiered_again import COMPACT, copied, filled, in_bucket, put, switch

NOT_TIERED = COMPACT | {"remote_storage_enable": "false"}


def keys_of(pair: Pair, node_id: int) -> set[bytes | None]:
    """The keys in the node's local log."""
    data = pair.bytes_of(node_id)
    return {
        record.key
        for position, header in walk(data)
        if not header.is_control
        for record in iter_records(data[position : position + header.size])
    }


def hold_cleaner(pair: Pair, *, held: bool) -> None:
    """Let 1's cleaner pass over the log while it is `held`, as if a slot cleaned it for hours."""
    cleaner, opened = pair.lives[1].broker.components.cleaner, leading(pair).opened
    assert cleaner is not None
    if held:
        cleaner._cleaning.add(opened)
    else:
        cleaner._cleaning.discard(opened)


async def one_lags(ratio: str = "0.0", *, is_idle: bool = False) -> Pair:
    """1 leads and has the record and its tombstone; 2 cleaned both away. The topic is not tiered. `is_idle`: 2 cleaned
    after the last record."""
    pair = await both(**NOT_TIERED | {"min_cleanable_dirty_ratio": ratio, "max_compaction_lag_ms": "300000"})
    hold_cleaner(pair, held=True)
    await put(pair, b"deleted", b"value")
    for _ in range(6):
        await filled(pair, "a")
    await put(pair, b"deleted", None)
    for _ in range(6):
        await filled(pair, "b")
        if not is_idle:
            await asyncio.sleep(60)
    if is_idle:
        await asyncio.sleep(700)  # the second pass seals the active segment after max.compaction.lag.ms
    assert b"deleted" in keys_of(pair, 1) and b"deleted" not in keys_of(pair, 2)
    return pair


@pytest.mark.parametrize("is_idle", [False, True])
async def test_a_deleted_key_stays_away_if_a_late_replica_dies_as_it_begins_to_copy(is_idle: bool) -> None:
    """Regression: 1 copied the record and died, 2 copied the rest, without the tombstone. The bucket showed the deleted
    record for ever. Then the same in an idle topic: 2 told only with its next record how far it is clean."""
    pair = await one_lags(is_idle=is_idle)
    switch(pair, on=True)
    state = leading(pair).tier.partition_state
    await until(lambda: state.remote_end_offset > 0 or state.blocked_by == "cleaning", "it copies, or says why not")
    why = state.blocked_why
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "2 leads")
    await copied(pair, by=2)
    found = await in_bucket(pair)
    assert b"deleted" not in found and b"a-0" in found and b"b-0" in found
    assert "clean below offset 0, and another replica's may be below" in why
    await pair.stop()


async def test_a_deleted_key_stays_away_if_a_replica_was_away_as_the_copy_began() -> None:
    """Regression: 2 led alone, late, and copied the record while 1, which had removed its tombstone, was away. 1 came
    back, led, and copied the rest."""
    pair = await both("log.cleaner.backoff.ms=1000", **NOT_TIERED)
    late, followed = pair.lives[2].broker.components.cleaner, pair.followed(2)
    assert late is not None and followed is not None
    late._cleaning.add(followed.opened)
    await put(pair, b"deleted", b"value")
    for _ in range(3):
        await filled(pair, "a")
    await put(pair, b"deleted", None)
    for _ in range(3):
        await filled(pair, "b")
        await asyncio.sleep(3)  # longer than delete.retention.ms
    assert b"deleted" in keys_of(pair, 2) and b"deleted" not in keys_of(pair, 1)
    pair.end(1)
    pair.elect(2, (2,))
    pair.publish(2)
    await until(lambda: pair.leads(2), "2 leads")
    one = pair.lives.pop(1)  # it hears nothing of the switch
    switch(pair, on=True)
    pair.lives[1] = one
    state = leading(pair, 2).tier.partition_state
    await until(lambda: state.remote_end_offset > 0 or state.blocked_by == "cleaning", "it copies, or says why not")
    pair.places[2].store.down = True  # one range at most
    pair.renew(1)
    pair.publish()
    await until(lambda: pair.followed(1) is not None, "1 follows")
    pair.elect(1, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(1), "1 leads")
    await copied(pair, by=1)
    found = await in_bucket(pair)
    assert [value for _, value in found.get(b"deleted", [])][-1:] in ([], [None])
    assert b"a-0" in found and b"b-0" in found


async def test_a_deleted_key_stays_away_if_passes_were_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an interrupted pass of 2 set the horizon of the tombstone, and the next one removed it and was
    interrupted too. 2 reported no clean end, so 1 copied the record. 2 copied the rest, without the tombstone."""

    async def interrupted(*_: Any) -> None:
        raise PassOver("before its end was written")

    monkeypatch.setattr(LogHost, "checkpoint_cleaned", interrupted)
    pair = await both("log.cleaner.backoff.ms=1000", **NOT_TIERED)
    hold_cleaner(pair, held=True)
    await put(pair, b"deleted", b"value")
    for _ in range(3):
        await filled(pair, "a")
    await put(pair, b"deleted", None)
    for _ in range(3):
        await filled(pair, "b")
        await asyncio.sleep(2)  # longer than delete.retention.ms
    assert pair.bytes_of(1) != pair.bytes_of(2)
    switch(pair, on=True)
    state = leading(pair).tier.partition_state
    await until(lambda: state.remote_end_offset > 0 or state.blocked_by == "cleaning", "it copies, or says why not")
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "2 leads")
    await copied(pair, by=2)
    found = await in_bucket(pair)
    assert [value for _, value in found.get(b"deleted", [])][-1:] in ([], [None])
    assert b"a-0" in found and b"b-0" in found
    await pair.stop()


async def test_a_late_leader_cleans_at_any_share_and_then_copies() -> None:
    """Little of its log is new, so no pass would be due by `min.cleanable.dirty.ratio`."""
    pair = await one_lags()
    switch(pair, on=True, min_cleanable_dirty_ratio="1.0")
    state = leading(pair).tier.partition_state
    await until(lambda: state.blocked_by == "cleaning", "it waits")
    hold_cleaner(pair, held=False)
    await copied(pair)
    assert state.blocked_by is None
    found = await in_bucket(pair)
    assert [value for _, value in found.get(b"deleted", [])] in ([], [None])
    await pair.stop()
