"""Tiering of a compacted, replicated topic is switched off and on again: no deleted key comes back, and copies go on
(ADR 32)."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from broker.metadata.records import ConfigsSet
from coldstore.inspection.bucket_inspection import BucketInspector
from logformat.record_batch import walk
from logformat.records import Record, encode_batch, iter_records
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.shared_bucket import TOPIC_ID, Pair, both, until
from tests.support.workers import LoopWorkers
from tests.unit.broker.handlers.test_compacted_topics import sent
from tests.unit.broker.partition.following.test_catching_up import KEEPING, leading

COMPACT = KEEPING | {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.0",
    "delete_retention_ms": "1000",
    "remote_log_delete_on_disable": "true",
}


def switch(pair: Pair, *, on: bool, **more: str) -> None:
    configs = COMPACT | {"remote_storage_enable": "true" if on else "false"} | more
    pair.note(ConfigsSet({name.replace("_", "."): value for name, value in configs.items()}, TOPIC_ID))
    pair.publish()


async def put(pair: Pair, key: bytes, value: bytes | None, by: int = 1) -> int:
    data = encode_batch([Record(0, EPOCH_MS, key, value)])
    answer = await sent(pair.lives[by], data)
    assert answer.error_code == 0
    return answer.base_offset


async def filled(pair: Pair, name: str, by: int = 1) -> None:
    for number in range(40):
        await put(pair, b"%s-%d" % (name.encode(), number % 7), b"x" * 100, by)


async def copied(pair: Pair, by: int = 1) -> None:
    log, tier = leading(pair, by).log, leading(pair, by).tier.partition_state
    await until(lambda: tier.remote_end_offset == log.active_segment.base_offset, "all sealed is copied")


async def in_bucket(pair: Pair) -> dict[bytes, list[tuple[int, bytes | None]]]:
    found: dict[bytes, list[tuple[int, bytes | None]]] = {}
    manifest = await pair.manifest()
    for entry in manifest.tail:
        key = str(entry.key(manifest.topic_id, 0))
        data = pair.places[1].memory.objects[key].data[: entry.log_bytes]
        for position, header in walk(data):
            if not header.is_control:
                for record in iter_records(data[position : position + header.size]):
                    found.setdefault(record.key or b"", []).append((record.offset, record.value))
    return found


@pytest.mark.parametrize("leader", [1, 2])
async def test_a_tombstone_outlives_a_switch_while_the_bucket_holds_what_it_deletes(leader: int) -> None:
    """Regression: the bucket kept the deleted value, and the local passes of the time between dropped the tombstone:
    the key was back once the bucket served its offsets."""
    pair = await both(**COMPACT)
    await put(pair, b"deleted", b"value")
    await filled(pair, "a")
    await copied(pair)
    switch(pair, on=False)
    await asyncio.sleep(30)
    assert leading(pair).log.local_log_start_offset == 0 and (await pair.manifest()).live.segments
    tombstone = await put(pair, b"deleted", None)
    for _ in range(4):
        await filled(pair, "b")
        await asyncio.sleep(120)
    if leader == 2:
        pair.elect(2, (1, 2))
        pair.publish()
        await until(lambda: pair.leads(2), "it leads")
    switch(pair, on=True)
    await filled(pair, "b", leader)
    await copied(pair, leader)
    assert (await in_bucket(pair))[b"deleted"][-1] == (tombstone, None)
    await pair.stop()


async def test_copies_go_on_within_a_filler_when_tiering_is_switched_on_again() -> None:
    """Regression: the local passes of the time between had put a filler over the bucket's end, and a copy begins at a
    batch. Nothing was copied any more, and the log counted as damaged."""
    pair = await both(**COMPACT)
    for _ in range(40):
        await put(pair, b"one", b"x" * 100)
    await copied(pair)
    end = (await pair.manifest()).remote_end_offset
    switch(pair, on=False)
    for _ in range(4):
        for _ in range(40):
            await put(pair, b"one", b"x" * 100)
        await asyncio.sleep(120)
    assert end not in {header.base_offset for _, header in walk(pair.bytes_of(1))}
    switch(pair, on=True)
    await copied(pair)
    copied_end = (await pair.manifest()).remote_end_offset
    assert copied_end > end
    assert (await in_bucket(pair))[b"one"][-1][0] == copied_end - 1
    inspector = BucketInspector(pair.places[1].memory, LoopWorkers())
    findings = await inspector.verify(UUID(TOPIC_ID), 0, deep=True)
    assert [each for each in findings if each.kind.value != "orphan, pending"] == []
    await pair.stop()


async def test_local_passes_go_on_after_a_pass_over_the_bucket() -> None:
    """Regression: nobody verified the objects that a pass made before the grace of those they replaced was over, a day
    later. Until then the logs on the disks were not cleaned."""
    pair = await both(**COMPACT)
    for _ in range(4):
        await filled(pair, "a")
        await copied(pair)
        await asyncio.sleep(60)
    assert (await pair.manifest()).replaced
    for log in (leading(pair).log, pair.followed(2).log):  # type: ignore[union-attr]
        assert log.local_bytes < 40 * 170 * 2
    await pair.stop()
