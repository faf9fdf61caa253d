"""The time of a tombstone begins only when every replica is clean past it (ADR 32).

So a replica that copies the log to the bucket, or is read, has no record whose tombstone another replica removed.
`delete.retention.ms` is 1 s here, except where a test says so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hotstore.cleaning.clean_pass import PassOver
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from logformat.record_batch import walk
from logformat.records import iter_records
from tests.support.brokers.shared_bucket import Pair, both, until
from tests.unit.broker.partition.following.test_catching_up import leading
from tests.unit.broker.partition.test_compacted_and_tiered_again import COMPACT, copied, filled, in_bucket, put, switch

NOT_TIERED = COMPACT | {"remote_storage_enable": "false"}
OFTEN = "log.cleaner.backoff.ms=1000"


def values_of(pair: Pair, node_id: int) -> list[bytes | None]:
    """The values of the key `deleted` in the node's local log. None: the tombstone."""
    data = pair.bytes_of(node_id)
    return [
        record.value
        for position, header in walk(data)
        if not header.is_control
        for record in iter_records(data[position : position + header.size])
        if record.key == b"deleted"
    ]


def opened(pair: Pair, node_id: int) -> OpenLog:
    followed = pair.followed(node_id)
    return leading(pair, node_id).opened if followed is None else followed.opened


def hold_cleaner(pair: Pair, node_id: int, *, held: bool) -> None:
    """Let the node's cleaner pass over the log while it is `held`, as if a slot cleaned it for hours."""
    cleaner = pair.lives[node_id].broker.components.cleaner
    assert cleaner is not None
    if held:
        cleaner._cleaning.add(opened(pair, node_id))
    else:
        cleaner._cleaning.discard(opened(pair, node_id))


async def one_lags(lagging: int = 1) -> Pair:
    """1 leads. The cleaner of `lagging` is late, so its log has the record and its tombstone. The other's has the
    tombstone only. The topic is not tiered."""
    pair = await both(OFTEN, **NOT_TIERED)
    hold_cleaner(pair, lagging, held=True)
    await put(pair, b"deleted", b"value")
    for _ in range(3):
        await filled(pair, "a")
    await put(pair, b"deleted", None)
    for _ in range(4):
        await filled(pair, "b")
        await asyncio.sleep(3)  # longer than delete.retention.ms
    assert values_of(pair, lagging) == [b"value", None] and values_of(pair, 3 - lagging) == [None]
    return pair


async def test_a_deleted_key_stays_away_if_a_late_replica_dies_as_it_begins_to_copy() -> None:
    """Regression: 1 copied the record and died, 2 copied the rest, without the tombstone. The bucket showed the deleted
    record for ever."""
    pair = await one_lags()
    switch(pair, on=True)
    state = leading(pair).tier.partition_state
    await until(lambda: state.remote_end_offset > 0, "it copies at once")
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "2 leads")
    await copied(pair, by=2)
    found = await in_bucket(pair)
    assert [value for _, value in found[b"deleted"]] == [b"value", None] and b"b-0" in found
    await pair.stop()


async def test_a_deleted_key_stays_away_if_a_replica_was_away_as_the_copy_began() -> None:
    """Regression: 2 led alone, late, and copied the record while 1, which had removed its tombstone, was away. 1 came
    back, led, and copied the rest."""
    pair = await one_lags(lagging=2)
    pair.end(1)
    pair.elect(2, (2,))
    pair.publish(2)
    await until(lambda: pair.leads(2), "2 leads")
    one = pair.lives.pop(1)  # it hears nothing of the switch
    switch(pair, on=True)
    pair.lives[1] = one
    state = leading(pair, 2).tier.partition_state
    await until(lambda: state.remote_end_offset > 0, "it copies at once")
    pair.places[2].store.down = True  # one range at most
    pair.renew(1)
    pair.publish()
    await until(lambda: pair.followed(1) is not None, "1 follows")
    pair.elect(1, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(1), "1 leads")
    await copied(pair, by=1)
    found = await in_bucket(pair)
    assert [value for _, value in found[b"deleted"]][-1] is None and b"b-0" in found


async def test_a_tombstone_stays_if_passes_were_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an interrupted pass of 2 set the horizon of the tombstone, and the next one removed it and was
    interrupted too. 2 had reported no clean end."""

    async def interrupted(*_: Any) -> None:
        raise PassOver("before its end was written")

    monkeypatch.setattr(LogHost, "checkpoint_cleaned", interrupted)
    pair = await one_lags()
    hold_cleaner(pair, 1, held=False)
    for _ in range(4):
        await filled(pair, "c")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == values_of(pair, 2) == [None]
    await pair.stop()


async def test_a_replica_of_an_idle_topic_tells_how_far_its_log_is_clean() -> None:
    """Regression: it told so only with its next record."""
    pair = await both(OFTEN, **NOT_TIERED | {"max_compaction_lag_ms": "5000"})
    for _ in range(3):
        await filled(pair, "a")
    await asyncio.sleep(30)  # each replica seals its active segment and cleans it
    assert leading(pair).clean_end() == leading(pair).log.log_end_offset
    await pair.stop()


async def test_a_tombstone_leaves_every_log_once_all_are_clean() -> None:
    pair = await one_lags()
    hold_cleaner(pair, 1, held=False)
    for _ in range(4):
        await filled(pair, "c")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == values_of(pair, 2) == []
    await pair.stop()


async def test_the_only_replica_removes_a_tombstone_in_the_second_pass() -> None:
    """As in Kafka."""
    pair = await both(OFTEN, replicas=(1,), **NOT_TIERED)
    await put(pair, b"deleted", b"value")
    await put(pair, b"deleted", None)
    await filled(pair, "a")
    await asyncio.sleep(3)
    assert values_of(pair, 1) == [None]
    await filled(pair, "b")
    await asyncio.sleep(3)
    assert values_of(pair, 1) == []
    await pair.stop()


async def test_a_tombstone_stays_while_a_replica_is_down() -> None:
    """The replica that is away may have the record. It cleans its log when it is back, and the tombstone goes."""
    pair = await one_lags(lagging=2)
    pair.end(2)
    pair.elect(1, (1,))
    pair.publish(1)
    two = pair.lives.pop(2)
    await until(lambda: pair.leads(1), "1 leads")
    for _ in range(4):
        await filled(pair, "c")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == [None]
    pair.lives[2] = two
    hold_cleaner(pair, 2, held=False)
    pair.renew(2)
    pair.publish()
    for _ in range(4):
        await filled(pair, "d")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == values_of(pair, 2) == []
    await pair.stop()


@pytest.mark.parametrize("tiered", [False, True])
async def test_the_time_of_a_tombstone_begins_when_the_last_replica_is_clean(*, tiered: bool) -> None:
    """Regression: the time ran out while 2 was away. 2 came back and was read, with the deleted record. The tombstone
    went as soon as 2 was clean, from the bucket in the very pass that removed the record. So a consumer that had read
    the record missed its deletion."""
    a_minute = {"delete_retention_ms": "60000"}
    pair = await both(OFTEN, **NOT_TIERED | a_minute)
    hold_cleaner(pair, 2, held=True)
    await put(pair, b"deleted", b"value")
    await filled(pair, "a")
    await asyncio.sleep(3)
    two = pair.lives.pop(2)
    pair.end(2)
    pair.elect(1, (1,))
    pair.publish(1)
    await until(lambda: pair.leads(1), "1 leads")
    await put(pair, b"deleted", None)
    for _ in range(4):
        await filled(pair, "b")
        await asyncio.sleep(60)
    pair.lives[2] = two
    pair.renew(2)
    pair.publish()
    await asyncio.sleep(3)
    assert opened(pair, 2).log.log_end_offset == leading(pair).log.log_end_offset
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "2 leads")
    if tiered:
        switch(pair, on=True, **a_minute)
    await filled(pair, "c", by=2)
    if tiered:
        await copied(pair, by=2)
    assert values_of(pair, 2) == [b"value", None]
    hold_cleaner(pair, 2, held=False)
    for _ in range(4):
        await filled(pair, "d", by=2)
        await asyncio.sleep(3)
        assert values_of(pair, 1) == [None]
    assert values_of(pair, 2) == [None]
    if tiered:
        assert [value for _, value in (await in_bucket(pair))[b"deleted"]] == [None]
    for _ in range(4):
        await filled(pair, "d", by=2)
        await asyncio.sleep(60)
    assert values_of(pair, 1) == values_of(pair, 2) == ([None] if tiered else [])
    assert not tiered or b"deleted" not in await in_bucket(pair)
    await pair.stop()


async def test_a_tombstone_stays_in_every_log_once_the_topic_is_tiered() -> None:
    """The leader copied the record before its log was clean. From then on its clean end tells nothing of the bucket."""
    pair = await one_lags()
    switch(pair, on=True)
    state = leading(pair).tier.partition_state
    await until(lambda: state.remote_end_offset > 0, "it copies at once")
    late = pair.followed(2)
    assert late is not None
    hold_cleaner(pair, 1, held=False)
    for _ in range(4):
        await filled(pair, "c")
        await asyncio.sleep(3)
        assert late.tombstones_end() == 0
    assert values_of(pair, 2) == [None]
    await pair.stop()
