"""Tiering switched off for a replicated topic: whoever leads next serves what was served, though another one's disk
alone had it, and the log starts where it did (ADR 26). Two whole brokers, the test decides."""

from __future__ import annotations

import asyncio

import pytest

from broker.metadata.records import ConfigsSet
from broker.wire.apis import ApiKey
from broker.wire.messages import ListOffsetsRequest, ListOffsetsRequestPartition, ListOffsetsRequestTopic
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, until
from tests.unit.broker.partition.following.test_catching_up import KEEPING, alone, caught_up, leading

GRACES_S = 30.0  # of a second each
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


def switch_off(pair: Pair) -> None:
    off = KEEPING | {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    pair.note(ConfigsSet({name.replace("_", "."): value for name, value in off.items()}, TOPIC_ID))
    pair.publish()


async def hot_tail_joined() -> Pair:
    """1 has all of `log-0` on its disk; 2 began at the verified end, and is in sync."""
    pair = await alone()
    pair.change(replicas=(1, 2))
    pair.publish()
    followed = await caught_up(pair)
    assert followed.log.local_log_start_offset > 20 > leading(pair).log.local_log_start_offset == 0
    await until(lambda: leading(pair).leader.in_sync.union == {1, 2}, "it is proposed")
    pair.change(in_sync=(1, 2))
    pair.publish()
    return pair


async def elected(pair: Pair, node_id: int, in_sync: tuple[int, ...] = (1, 2)) -> None:
    pair.elect(node_id, in_sync)
    pair.publish()
    await until(lambda: pair.leads(node_id), "it leads")


async def offsets(pair: Pair, node_id: int, start: int = 0) -> list[int]:
    return [offset for offset, _ in await pair.lives[node_id].read_all(NAME, start=start)]


async def listed(pair: Pair, timestamp: int) -> int:
    """What 1, which leads, answers to ListOffsets."""
    wanted = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequestTopic(name=NAME, partitions=[wanted])], timeout_ms=5000
    )
    answer = (await pair.lives[1].call(ApiKey.LIST_OFFSETS, request)).topics[0].partitions[0]
    assert answer.error_code == 0
    found: int = answer.offset
    return found


async def test_a_replica_that_has_the_hot_tail_alone_serves_everything_when_it_leads() -> None:
    """Objects were withdrawn because the leader's own disk had the same: the next leader's did not, and its local start
    became the log start. Acknowledged records were gone that were served a second before."""
    pair = await hot_tail_joined()
    switch_off(pair)
    await asyncio.sleep(GRACES_S)
    await elected(pair, 2)
    await asyncio.sleep(GRACES_S)
    end = leading(pair, 2).log.log_end_offset
    assert leading(pair, 2).log_start_offset == 0
    assert await offsets(pair, 2) == list(range(end))
    assert (await pair.manifest()).log_start_offset == 0
    await pair.stop()


async def test_list_offsets_tells_the_last_tiered_offset_while_the_bucket_has_one() -> None:
    """It went by the config: none, of a topic whose objects stay and are read. Nothing is to be copied any more."""
    pair = await hot_tail_joined()
    switch_off(pair)
    await asyncio.sleep(GRACES_S)
    end = (await pair.manifest()).remote_end_offset
    assert end > 20
    assert await listed(pair, LATEST_TIERED) == end - 1
    assert await listed(pair, EARLIEST_PENDING_UPLOAD) == -1
    pair.change(replicas=(1,), leader_epoch=1, in_sync=(1,))
    pair.publish()
    await until(lambda: pair.leads(1), "alone")
    await asyncio.sleep(GRACES_S)
    assert await listed(pair, LATEST_TIERED) == -1
    await pair.stop()


async def test_the_log_starts_where_the_disk_of_whoever_led_began_once() -> None:
    """As in Kafka (KIP-950). Who leads next moves it no further."""
    pair = await hot_tail_joined()
    assert leading(pair).log.delete_local_before(12)
    start, end = leading(pair).log.local_log_start_offset, leading(pair).log.log_end_offset
    assert 0 < start <= 12
    switch_off(pair)
    await until(lambda: leading(pair).log_start_offset == start, "the log starts at the local start")
    await until(lambda: pair.followed(2).follower.log_start_offset == start, "its replica knows it")  # type: ignore[union-attr]
    for node_id in (2, 1, 2):
        await elected(pair, node_id)
        await asyncio.sleep(GRACES_S)
        assert await offsets(pair, node_id, start) == list(range(start, end))
        assert (await pair.manifest()).log_start_offset == start
    await pair.stop()


async def test_who_is_left_alone_with_a_hot_tail_keeps_what_the_bucket_holds() -> None:
    """Nobody else is assigned the log, and this disk lacks most of it."""
    pair = await hot_tail_joined()
    switch_off(pair)
    await asyncio.sleep(GRACES_S)
    pair.change(replicas=(2,), leader=2, leader_epoch=1, in_sync=(2,))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads")
    await asyncio.sleep(GRACES_S)
    assert await offsets(pair, 2) == list(range(leading(pair, 2).log.log_end_offset))
    await pair.stop()


@pytest.mark.parametrize("stays", [(1, 2), (2,)])
async def test_a_switch_that_its_leader_did_not_live_to_do_moves_no_start(stays: tuple[int, ...]) -> None:
    """It waited for the bucket. Whoever led next did it, at a local start that may be far above: 1's disk had all, 2's
    the hot tail alone. As in Kafka, whose next leader leaves the log as it is."""
    pair = await hot_tail_joined()
    pair.store_away(True)
    switch_off(pair)
    await asyncio.sleep(GRACES_S)
    assert "false" not in (await pair.manifest()).configs.values(), "it is not done"
    pair.change(replicas=stays, leader=2, leader_epoch=1, in_sync=stays)
    pair.publish()
    await until(lambda: pair.leads(2), "by what it was told")
    pair.store_away(False)
    for node_id in (2, *stays):
        if node_id != pair.row.leader:
            await elected(pair, node_id)
        await asyncio.sleep(GRACES_S)
        assert await offsets(pair, node_id) == list(range(leading(pair, node_id).log.log_end_offset))
    manifest = await pair.manifest()
    assert manifest.log_start_offset == 0 and manifest.configs["remote.storage.enable"] == "false", "it is done"
    await pair.stop()


async def test_objects_of_a_replicated_log_go_as_retention_moves_its_start() -> None:
    """And, where its replicas are gone, at once: the disk of who is left has all of it."""
    pair = await hot_tail_joined()
    before = (await pair.manifest()).live
    switch_off(pair)
    await asyncio.sleep(GRACES_S)
    assert (await pair.manifest()).live == before
    off = pair.image.topics[TOPIC_ID].configs | {"retention.bytes": "5000"}
    pair.note(ConfigsSet(off, TOPIC_ID))
    pair.publish()
    await until(lambda: leading(pair).log_start_offset > 0, "retention counts what the bucket holds")
    await asyncio.sleep(GRACES_S)
    manifest = await pair.manifest()
    assert 0 < manifest.deletion_cursor <= manifest.log_start_offset == leading(pair).log_start_offset
    assert 0 < manifest.live.segments < before.segments
    pair.change(replicas=(1,), leader_epoch=1, in_sync=(1,))
    pair.publish()
    await until(lambda: pair.leads(1), "alone")
    await asyncio.sleep(GRACES_S)
    assert (await pair.manifest()).live.segments == 0
    assert not [key for key in pair.places[1].memory.objects if "/segments/" in key]
    await pair.stop()


async def test_who_was_cut_off_while_another_was_alone_is_copied_anew() -> None:
    """The objects that held what its disk lacks were given up meanwhile: it joined with a hole, led, and all below its
    first file was gone everywhere."""
    pair = await hot_tail_joined()
    switch_off(pair)
    await asyncio.sleep(GRACES_S)
    pair.change(replicas=(1,), leader_epoch=1, in_sync=(1,))
    pair.publish(1)
    await until(lambda: pair.leads(1), "alone")
    await asyncio.sleep(GRACES_S)
    assert (await pair.manifest()).live.segments == 0
    pair.change(target=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None and pair.followed(2).leader_epoch == 1, "it follows again")  # type: ignore[union-attr]
    assert (await caught_up(pair)).log.local_log_start_offset == 0
    await until(lambda: leading(pair).leader.in_sync.union == {1, 2}, "it is proposed")
    pair.change(replicas=(1, 2), target=(), in_sync=(1, 2))
    pair.publish()
    await elected(pair, 2)
    assert await offsets(pair, 2) == list(range(leading(pair, 2).log.log_end_offset))
    await pair.stop()
