"""Nothing is let go by a leader that does not know whether it still leads (R23): two brokers, the test decides."""

from __future__ import annotations

import asyncio

from broker.error_codes import ErrorCode
from coldstore.keys import SegmentKey, parse_key
from coldstore.stores.operations import Operation
from tests.support.brokers.broker_kit import SMALL_SEGMENTS
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until
from tests.support.store.faulty_store import Fault

MANIFEST = "manifest.json"


async def filled(pair: Pair, count: int) -> None:
    for number in range(count):
        assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0


def cut_off(pair: Pair, node_id: int, times: int) -> None:
    """So many polls of the cluster's root fail; partitions' roots are reached as ever."""
    pair.places[node_id].store.script(Operation.GET_IF_CHANGED, Fault.BEFORE, match="cluster.json", times=times)


async def log_start(pair: Pair) -> int:
    return (await pair.manifest()).log_start_offset


async def test_who_hears_of_no_newer_image_moves_no_log_start() -> None:
    """Another may lead, idle, without a claim that would fence this one."""
    pair = await both(replicas=(1,), remote_storage_enable="true")
    await filled(pair, 10)
    await until(lambda: pair.lives[1].partition(NAME).tier.partition_state.claimed, "its claim")
    cut_off(pair, 1, 4)
    await asyncio.sleep(16)
    assert (await pair.delete_records(1, 4)).error_code != ErrorCode.NONE
    assert await log_start(pair) == 0
    await asyncio.sleep(30)
    assert (await pair.delete_records(1, 4)).error_code == ErrorCode.NONE
    assert await log_start(pair) == 4
    await pair.stop()


async def test_cluster_d76_what_was_begun_before_a_suspension_is_not_sent_again_after_it() -> None:
    """The first send failed; ten minutes later by the boot clock the same bytes are due again."""
    pair = await both(replicas=(1,), remote_storage_enable="true")
    await filled(pair, 10)
    await until(lambda: pair.lives[1].partition(NAME).tier.partition_state.claimed, "its claim")
    store, clock = pair.places[1].store, pair.lives[1].clock
    store.script(Operation.PUT_ROOT, Fault.BEFORE, match=MANIFEST)
    before = store.hits[Fault.BEFORE]
    moving = asyncio.ensure_future(pair.lives[1].partition(NAME).tier.delete_records(4))
    while store.hits[Fault.BEFORE] == before:
        await asyncio.sleep(0.001)
    clock.slept_s += 600
    failure = (await asyncio.wait([moving]))[0].pop().exception()
    assert "nothing is released" in str(failure)
    assert await log_start(pair) == 0
    await asyncio.sleep(30)
    assert (await pair.delete_records(1, 4)).error_code == ErrorCode.NONE
    await pair.stop()


async def test_a_leader_that_the_image_deposed_lets_nothing_go() -> None:
    """Its deletion was waiting for its turn; the new leader has not claimed."""
    pair = await both(remote_storage_enable="true")
    await filled(pair, 10)
    tier = pair.lives[1].partition(NAME).tier
    await until(lambda: tier.partition_state.claimed, "its claim")
    store = pair.places[1].store
    store.script(Operation.PUT_ROOT, Fault.BEFORE, match=MANIFEST)
    before = store.hits[Fault.BEFORE]
    moving = asyncio.ensure_future(tier.delete_records(4))
    while store.hits[Fault.BEFORE] == before:
        await asyncio.sleep(0.001)
    pair.places[2].store.down = True
    pair.elect(2, (2,))
    pair.publish()
    failure = (await asyncio.wait([moving]))[0].pop().exception()
    assert "leader epoch 0 is over" in str(failure)
    assert await log_start(pair) == 0
    pair.places[2].store.down = False
    await pair.stop()


async def test_what_a_deposed_leader_uploaded_is_collected_by_the_next() -> None:
    """It went on, for it had not heard: its object stands in the bucket, and no root names it."""
    pair = await both(**SMALL_SEGMENTS)
    store = pair.places[1].store
    first = pair.lives[1].partition(NAME).tier.partition_state
    await until(lambda: first.claimed, "its claim")
    store.script(Operation.PUT_ROOT, Fault.BEFORE, match=MANIFEST, times=10_000)
    await filled(pair, 30)
    objects = pair.places[1].memory.objects

    def segments(epoch: int) -> set[str]:
        keys = [parse_key(key) for key in objects if TOPIC_ID in key]
        return {str(key) for key in keys if isinstance(key, SegmentKey) and key.epoch == epoch}

    await until(lambda: bool(segments(0)), "an upload that no root names")
    orphans = segments(0)
    pair.elect(2, (2,))
    pair.publish(2)
    await until(lambda: pair.leads(2), "the other leads")
    store.calm()
    await until(lambda: bool(segments(1)), "it copies the same records")
    manifest = await pair.manifest()
    assert orphans.isdisjoint(str(segment.key(manifest.topic_id, 0)) for segment in manifest.tail)
    await until(lambda: not segments(0), "the grace, and then the collection")
    assert first.fenced
    await pair.stop()
