"""A partition has one role at a time: the next begins when all earlier ones let go of its log, however late an answer
of the bucket or the disk comes."""

from __future__ import annotations

import asyncio

import pytest

from broker.replication.follower import Phase
from coldstore.stores.operations import Operation
from tests.support.brokers.shared_bucket import NAME, Pair, both, until
from tests.support.store.faulty_store import Fault, FaultPlan
from tests.unit.broker.partition.following.test_following import led_in_both_tiers


def copied(pair: Pair) -> int:
    """Where the copy of broker 2 ends, as it reports it."""
    found = pair.followed(2)
    return -1 if found is None else found.follower.end


async def test_a_replica_that_was_to_begin_elsewhere_two_epochs_ago_keeps_what_it_reported_since() -> None:
    """The bucket answered one GET late. The ending of the role that waited for it was forgotten by the ending of the
    next, which had done nothing: the answer dropped the log of the third, in sync by then, and it was elected."""
    pair = await led_in_both_tiers()
    store = pair.places[2].store
    store.plan = FaultPlan(latency_s=(10.0, 10.0))
    pair.change(replicas=(1, 2))
    pair.publish()

    def asks_the_bucket() -> bool:
        copy = pair.followed(2)
        return copy is not None and copy.next_fetch() is None

    await until(asks_the_bucket, "it is to begin elsewhere")
    await asyncio.sleep(0.5)
    store.plan = FaultPlan()
    for _ in range(2):  # its leader's process begins again, twice
        pair.elect(1, (1,))
        pair.publish()
        await asyncio.sleep(0.05)
    await until(lambda: copied(pair) == 40, "it copies in the newest epoch")
    await until(lambda: pair.lives[1].partition(NAME).leader.in_sync.union == {1, 2}, "it is proposed")
    pair.change(in_sync=(1, 2))
    pair.publish()
    assert [(await pair.lives[1].produce(NAME, b"acked")).error_code for _ in range(5)] == [0] * 5
    await asyncio.sleep(25.0)
    pair.elect(2, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads")
    assert [offset for offset, _ in await pair.lives[2].read_all(NAME)] == list(range(45))
    await pair.stop()


async def test_a_cut_of_an_earlier_role_is_over_before_its_log_leads() -> None:
    """A sync before the cut took a while: two epochs later the cut took an acknowledged record from the leader's log,
    and the next one got its offset."""
    pair = await both("thermocline.flush=os")
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        assert (await first.produce(NAME, b"%d" % number)).error_code == 0
    pair.elect(2, (2, 1))
    pair.publish(2)  # the old leader does not know yet
    await until(lambda: pair.leads(2), "the copy leads")
    assert (await first.produce(NAME, b"tail", acks=1)).error_code == 0
    assert (await second.produce(NAME, b"five", acks=1)).error_code == 0
    flusher, go_on = first.partition(NAME).opened.flusher, asyncio.Event()
    flush = flusher.flush

    async def slow_flush() -> None:
        await go_on.wait()
        await flush()

    flusher.flush = slow_flush  # type: ignore[method-assign]
    pair.publish(1)

    def is_cutting() -> bool:
        copy = pair.followed(1)
        return copy is not None and copy.follower.phase is Phase.CUTTING

    await until(is_cutting, "its tail is to be cut")
    pair.elect(2, (2, 1))
    pair.publish()
    await asyncio.sleep(0.05)
    pair.elect(1, (2, 1))
    pair.publish()
    await asyncio.sleep(5.0)
    assert not pair.leads(1), "the cut of two epochs ago is under way"
    go_on.set()
    await until(lambda: pair.leads(1), "it leads again")
    answer = await first.produce(NAME, b"acked")
    assert answer.error_code == 0
    await asyncio.sleep(5.0)
    assert (await first.read_all(NAME))[-1] == (answer.base_offset, b"acked")
    await pair.stop()


@pytest.mark.parametrize("asked_again_s", [6.0, 8.0, 9.0, 10.0, 11.0])
async def test_an_opening_that_is_tried_again_is_over_before_the_next_role(asked_again_s: float) -> None:
    """What the bucket gave was damaged on its way, and is asked for again: that attempt went on when another broker
    led. It took the log from the copy, which asked for one offset for ever: acks=all timed out."""
    pair = await both(remote_storage_enable="true")
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        assert (await first.produce(NAME, b"%d" % number)).error_code == 0
    store = pair.places[2].store
    store.script(Operation.GET, Fault.FLIPPED, match="manifest.json", times=1000)
    pair.renew(2)  # another session: it claims before it leads
    pair.elect(2, (2, 1))
    pair.publish()
    replicas = second.replicas
    await until(lambda: bool(replicas.damaged), "what the bucket gave is damaged")
    store.calm()
    store.plan = pair.places[1].store.plan = FaultPlan(latency_s=(2.0, 2.0))
    await asyncio.sleep(asked_again_s)
    pair.elect(1, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(1) and pair.followed(2) is not None, "the first leads, the second copies")
    assert (await first.produce(NAME, b"acked")).error_code == 0
    await asyncio.sleep(10.0)
    store.plan = pair.places[1].store.plan = FaultPlan()
    assert {(await first.produce(NAME, b"x")).error_code for _ in range(5)} == {0}
    await until(lambda: copied(pair) == first.partition(NAME).log.log_end_offset == 11, "it copies on")
    copy = pair.followed(2)
    assert copy is not None and copy.log.owner is copy
    await pair.stop()
