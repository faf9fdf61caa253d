"""What went wrong with other people's leases and metadata (T24, T29), on whole brokers."""

from __future__ import annotations

import asyncio

import pytest

from broker.membership.lease_watch import Lease, LeaseSight, LeaseWatch
from broker.membership.session import Refused
from coldstore.keys import SegmentKey, lease_key, parse_key
from coldstore.roots.root import RootStore
from coldstore.stores.operations import Operation
from seams.rng import SeededRng
from tests.sim.world.clock import SimClock
from tests.support.brokers.broker_kit import LEASE_S, SMALL_SEGMENTS, Life, Place
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.store.faulty_store import Fault


async def lease_of(place: Place) -> Lease | None:
    clock = SimClock(place.loop, lambda: "boot")
    root = await RootStore(place.memory, lease_key(), Lease, SeededRng(1), clock).load()
    return None if root is None else root.content


async def serving(life: Life) -> asyncio.Task[None]:
    return asyncio.ensure_future(life.broker.serve(life.stop_event))


async def test_peer_t29_a_release_keeps_the_generation() -> None:
    """litestream's leaser: release deleted the lock, and the next acquire began at generation 1 again, below a zombie.
    Here a release is a write to the lease, and the epoch is counted in `cluster.json`: it rises over releases, over a
    lease that somebody deleted, and over a crash."""
    place = Place()
    epochs = []
    for ending in ("released", "deleted", "crashed", "deleted while it ran", "released"):
        life = await place.start()
        task = await serving(life)
        epochs.append(life.context.controller.epoch)
        await asyncio.sleep(2 * LEASE_S)
        if ending == "deleted while it ran":
            del place.memory.objects[lease_key()]
            await asyncio.sleep(2 * LEASE_S)
            assert not task.done(), "a lease that vanished is an outage of the lease, nobody took our place"
        if ending == "crashed":
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await life.crash()
            continue
        life.stop_event.set()
        await task
        await life.broker.close()
        lease = await lease_of(place)
        if ending == "released":
            assert lease is not None and lease.released, "released, not deleted"
        place.memory.objects.pop(lease_key(), None) if ending == "deleted" else None
    assert epochs == sorted(set(epochs)), epochs


def test_peer_t29_no_clock_on_the_wall_ends_a_lease() -> None:
    """litestream's leaser: expiry compared a time in the lock with the local clock, so that a clock that ran ahead took
    a living holder's lock. A watcher whose wall clock jumps by years while it watches sees the counter move, and is
    refused; one that slept concludes nothing from before."""

    async def scenario() -> None:
        for years in (-1, 1):
            place = Place()
            life = await place.start()
            task = await serving(life)
            rival = place.make(directory="b")
            starting = asyncio.ensure_future(rival.start())
            for _ in range(4):
                await asyncio.sleep(LEASE_S / 3)
                rival.clock.jump_ms += years * 365 * 86_400_000
            with pytest.raises(Refused, match="it still renews its lease"):
                await starting
            assert not task.done()
            life.stop_event.set()
            await task
            await life.broker.close()

    run_fast(scenario(), timeout_s=HOUR_S)
    watch = LeaseWatch(10.0)
    lease = Lease(1, "a", 5, lease_ms=10_000)
    assert watch.polled(lease, 0.0) is LeaseSight.WATCHING
    assert watch.polled(lease, 9.9) is LeaseSight.WATCHING
    assert watch.polled(lease, 1_000_000.0) is LeaseSight.WATCHING or watch.sight is LeaseSight.MOVING
    assert watch.polled(lease, 1_000_005.0) is not LeaseSight.STILL
    assert watch.polled(lease, 1_000_010.0) is LeaseSight.STILL


@pytest.mark.parametrize("fault", [Fault.OWN_412, Fault.LOST, Fault.EMPTY_200, Fault.REFUSED, Fault.LATE])
async def test_peer_t29_an_ambiguous_beat_neither_keeps_nor_loses_a_lease(fault: Fault) -> None:
    """litestream's leaser: a 412 after its own lost PUT said "held by me" until the TTL. Every second beat is answered
    so: read back, the holder goes on for ten leases, its counter moves, and a rival is refused all the while."""
    place = Place()
    life = await place.start()
    task = await serving(life)
    first = await lease_of(place)
    assert first is not None
    rival = asyncio.ensure_future(place.start(directory="b"))
    for _ in range(20):
        place.store.script(Operation.PUT_ROOT, fault, match="lease")
        await asyncio.sleep(LEASE_S / 2)
    assert not task.done(), "its own lost answer is no rival"
    with pytest.raises(Refused):
        await rival
    last = await lease_of(place)
    assert last is not None and last.incarnation == first.incarnation and last.counter > first.counter + 5
    place.store.calm()
    life.stop_event.set()
    await task
    await life.broker.close()


async def test_peer_t24_nothing_of_a_segment_is_asked_for_before_it_is_named() -> None:
    """KAFKA-15632, KAFKA-15802: invalid metadata events were dropped late, and indexes were fetched of segments in the
    wrong state. An object that lies in the bucket but whose commit hangs is never opened by a reader, nor by a time
    look-up, nor by the start of the next broker; once named, it is."""
    place = Place()
    life = await place.start()
    await life.create("log", **SMALL_SEGMENTS)
    place.store.script(Operation.PUT_ROOT, Fault.BEFORE, match="topics/", times=10**6)
    for number in range(30):
        await life.produce("log", b"%d" % number * 20)
    await asyncio.sleep(20)
    unnamed = [key for key in place.memory.objects if isinstance(parse_key(key), SegmentKey)]
    assert unnamed
    asked: list[str] = []
    get = place.memory.get

    async def noted(key: str, *more: int) -> object:
        asked.append(key)
        return await get(key, *more)

    place.memory.get = noted  # type: ignore[method-assign, assignment]
    assert len(await life.read_all("log")) == 30
    await life.crash()
    place.store.script(Operation.PUT_ROOT, Fault.BEFORE, match="topics/", times=10**6)
    life = await place.start()
    assert len(await life.read_all("log")) == 30
    assert not set(asked) & set(unnamed)
    place.store.calm()
    await asyncio.sleep(60)
    assert len(await life.read_all("log")) == 30
    assert [key for key in asked if isinstance(parse_key(key), SegmentKey)], "now they are read from the bucket"
    await life.stop()


@pytest.mark.parametrize("away", [True, False])
async def test_peer_t24_closing_waits_for_no_lock(away: bool) -> None:
    """KAFKA-17766, KAFKA-16105: closing dead-locked with the metadata manager's own thread, and a rewind was not
    honoured. A stop in the middle of copies, reservations, reads and expiry ends, with the bucket there or away, and
    the next start reads what the bucket says, not what the last one remembered."""
    place = Place()
    life = await place.start()
    await life.create("log", **SMALL_SEGMENTS)
    for number in range(60):
        await life.produce("log", b"%d" % number * 20)
    place.store.down = away
    reading = asyncio.ensure_future(life.read_all("log"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(120):
        await life.stop()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    place.store.down = False
    life = await place.start()
    await asyncio.sleep(10)  # until the partition knows again what the bucket holds
    assert [offset for offset, _ in await life.read_all("log")] == list(range(60))
    await life.stop()
