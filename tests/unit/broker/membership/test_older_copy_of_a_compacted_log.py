"""An older copy of a directory brings no deleted record of a compacted log back (ADR 32)."""

from __future__ import annotations

import asyncio

import pytest

from logformat.record_batch import walk
from logformat.records import Record, encode_batch, iter_records
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, Three, served
from tests.unit.broker.handlers.test_compacted_topics import sent
from tests.unit.broker.partition.test_tombstones_of_replicas import NOT_TIERED, OFTEN


async def put(three: Three, leader: int, key: bytes, value: bytes | None) -> None:
    answer = await sent(three.lives[leader], encode_batch([Record(0, EPOCH_MS, key, value)]))
    assert answer.error_code == 0


async def filled(three: Three, leader: int, name: str) -> None:
    for number in range(40):
        await put(three, leader, b"%s-%d" % (name.encode(), number % 7), b"x" * 100)


def values_of(three: Three, node_id: int) -> list[bytes | None]:
    """The values of the key `deleted` in the node's local log. None: the tombstone."""
    registry = three.lives[node_id].context.registry
    log = (registry.partitions.get(("log", 0)) or registry.followed["log", 0]).log
    ranges = log.batch_ranges(log.local_log_start_offset, log.log_end_offset)
    data = b"".join(one.file.read_at(one.position, one.length) for one in ranges)
    return [
        record.value
        for position, header in walk(data)
        if not header.is_control
        for record in iter_records(data[position : position + header.size])
        if record.key == b"deleted"
    ]


@pytest.mark.parametrize("is_killed", [False, True], ids=["once", "killed as it starts"])
async def test_an_older_copy_brings_no_deleted_record_back(*, is_killed: bool) -> None:
    """Regression: the copy had the record. It went on with its log and got no tombstone any more, because all replicas
    had been clean past it. It was in sync again, and would have shown the deleted record as a leader."""
    three = Three(OFTEN)
    for node_id in NODES:
        await three.start(node_id)
    configs = {name.replace("_", "."): value for name, value in NOT_TIERED.items()}
    controller = three.lives[NODES[0]].context.controller
    await controller.create_topic("log", 1, {"min.insync.replicas": "2", **configs}, replication_factor=3)
    leader = await served(three, *NODES)
    copied = next(node_id for node_id in reversed(NODES) if node_id != leader)
    await put(three, leader, b"deleted", b"value")
    await filled(three, leader, "a")
    await until(lambda: values_of(three, copied) == [b"value"], "it has the record")
    place = three.places[copied]
    await three.lives[copied].crash()
    place.kill()
    yesterday = place.disk.kill()
    await three.start(copied)
    leader = await served(three, *(node_id for node_id in NODES if node_id != copied))
    await until(lambda: len(three.row(leader).in_sync) == len(NODES), "all are in sync")
    await put(three, leader, b"deleted", None)
    for _ in range(8):
        await filled(three, leader, "c")
        await asyncio.sleep(3)
    assert [values_of(three, node_id) for node_id in NODES] == [[], [], []], "record and tombstone are gone"

    await three.lives[copied].crash()
    place.disk = yesterday
    await three.start(copied)
    if is_killed:
        await three.lives[copied].crash()
        place.kill()
        await three.start(copied)
    leader = await served(three, *(node_id for node_id in NODES if node_id != copied))
    for _ in range(6):
        await filled(three, leader, "d")
        await asyncio.sleep(3)
    await until(lambda: len(three.row(leader).in_sync) == len(NODES), "all are in sync")
    assert values_of(three, copied) == []
    for life in three.lives.values():
        await life.crash()
