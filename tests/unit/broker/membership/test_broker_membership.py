"""Joining a bucket, keeping the lease, being superseded: whole brokers on one bucket (C19, C23, C31)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from broker import app
from broker.app import ServeExit
from broker.membership.lease_watch import Lease
from broker.membership.session import Refused
from broker.net.dispatch import CloseConnection
from coldstore.inspection.probe import StoreRefused
from coldstore.keys import cluster_key, lease_key
from coldstore.object_store import Got, PreconditionFailed
from coldstore.roots.root import RootStore
from coldstore.stores.operations import Operation
from seams.rng import SeededRng
from tests.sim.world.clock import SimClock
from tests.support.brokers.broker_kit import LEASE_S, Life, Place, batch_of, produce_request
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.store.faulty_store import Fault, FaultPlan, even_rates
from tests.support.store.memory_store import MemoryStore, StoredObject


async def lease_of(place: Place) -> Lease:
    clock = SimClock(place.loop, lambda: "boot")
    root = await RootStore(place.memory, lease_key(), Lease, SeededRng(1), clock).load()
    assert root is not None
    return root.content


@contextlib.asynccontextmanager
async def running(place: Place, *settings: str, directory: str = "a") -> AsyncIterator[tuple[Life, asyncio.Task[int]]]:
    """A broker by `app.run`'s rules: it ends by itself when superseded; its exit code is the task's result."""
    life = await place.start(*settings, directory=directory)

    async def serve() -> int:
        await life.broker.serve(life.stop_event)
        await life.broker.close()
        return life.broker.exit_code

    task = asyncio.ensure_future(serve())
    try:
        yield life, task
    finally:
        life.stop_event.set()
        await task


async def test_the_lease_beats_and_is_released_last() -> None:
    """Its counter moves every interval; a clean stop releases it, so the next broker need not wait."""
    place = Place()
    async with running(place) as (life, _):
        await asyncio.sleep(1)
        first = await lease_of(place)
        await asyncio.sleep(10.5)
        second = await lease_of(place)
        assert second.counter - first.counter == 2
        assert not second.released
        assert second.lease_ms == LEASE_S * 1000
        assert second.controller_epoch == life.context.controller.epoch
    assert (await lease_of(place)).released
    began = place.loop.time()
    life = await place.start(directory="b")
    assert place.loop.time() - began < 2
    await life.stop()


async def test_a_crashed_broker_is_replaced_one_lease_later() -> None:
    """An empty directory waits until the lease stood still, no longer than that and a poll."""
    place = Place()
    life = await place.start()
    await asyncio.sleep(2)
    await life.crash()
    began = place.loop.time()
    life = await place.start(directory="b")
    assert LEASE_S <= place.loop.time() - began < LEASE_S + 10
    await life.stop()


def test_waiting_for_anothers_lease_is_no_pause_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """The gate's clock begins with our own lease: a replacement serves at once, and counts no jump of the clock."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await asyncio.sleep(2)
        await life.crash()
        life = await place.start(directory="b")
        assert life.context.gate.is_open()
        await asyncio.sleep(2)
        assert life.context.gate.paused_count == 0
        await life.stop()

    run_fast(scenario(), timeout_s=HOUR_S)
    assert "clock jumped" not in caplog.text


async def test_its_own_directory_need_not_wait() -> None:
    """The same broker after a crash serves again within seconds, in a new epoch."""
    place = Place()
    life = await place.start()
    epoch = life.context.controller.epoch
    await life.crash()
    began = place.loop.time()
    life = await place.start()
    assert place.loop.time() - began < 5
    assert life.context.controller.epoch == epoch + 1
    await life.stop()


async def test_design_c31_a_second_broker_beside_a_live_one_is_refused() -> None:
    """After two leases of a moving counter; the first one served all the while and goes on."""
    place = Place()
    async with running(place) as (life, task):
        began = place.loop.time()
        with pytest.raises(Refused, match="it still renews its lease"):
            await place.start(directory="b")
        assert 2 * LEASE_S <= place.loop.time() - began < 2 * LEASE_S + 10
        assert not task.done()
        await life.create("log")
        assert (await life.produce("log", b"a")).error_code == 0


async def test_design_c31_the_replaced_broker_answers_nothing_and_exits_3() -> None:
    """--take-over beside a live broker: the old one notices by its next poll, and its directory is refused for ever."""
    place = Place()
    async with running(place) as (old, task):
        await old.create("log")
        await old.produce("log", b"a")
        new = await place.start(directory="b", take_over=True)
        async with asyncio.timeout(10):
            assert await task == ServeExit.REFUSED
        with pytest.raises(CloseConnection):
            old.dispatcher._responder._framed(None, [])  # type: ignore[arg-type]
        await new.stop()
    with pytest.raises(Refused, match="replaced this data directory"):
        await place.start(directory="a")
    with pytest.raises(Refused, match="needs an empty data directory"):
        await place.start(directory="a", take_over=True)


async def test_design_c31_two_brokers_give_no_offset_twice() -> None:
    """The replacement starts while the old one only hangs: what the old one gave is never given again."""
    place = Place()
    async with running(place) as (old, task):
        await old.create("log")
        for at in range(5):
            assert (await old.produce("log", b"old-%d" % at)).base_offset == at
        place_start = asyncio.ensure_future(place.start(directory="b", take_over=True))
        # Until it learns of it, the old one may go on; whatever it gives stays below the reserved end.
        given = [await old.produce("log", b"late") for _ in range(3)]
        new = await place_start
        first = (await new.produce("log", b"new")).base_offset
        assert first > max(answer.base_offset for answer in given)
        assert await task == ServeExit.REFUSED
        assert (first, b"new") in await new.read_all("log")
        await new.stop()


async def test_design_c19_after_an_outage_nobody_takes_over_a_healthy_broker() -> None:
    """The store was away for half an hour: the watcher saw no beat, and the holder is fine. It must not be ousted."""
    place = Place()
    async with running(place) as (life, task):
        watcher = asyncio.ensure_future(place.start(directory="b"))
        await asyncio.sleep(7)
        place.store.down = True
        await asyncio.sleep(1800)
        assert life.context.gate.is_open()
        place.store.down = False
        with pytest.raises(Refused, match="it still renews its lease"):
            await watcher
        assert not task.done()
        assert life.context.gate.is_open()


async def test_design_c19_an_older_controllers_lease_says_nothing() -> None:
    """A lease below cluster.json's epoch is ignored: its release does not invite anybody into the new one's bucket."""
    place = Place()
    life = await place.start()
    await life.stop()  # releases the lease of epoch 1
    stored = place.memory.objects[lease_key()]
    life = await place.start()
    await life.crash()
    place.memory.objects[lease_key()] = StoredObject(stored.data, stored.etag, stored.crc32c)
    began = place.loop.time()
    life = await place.start(directory="b")
    assert place.loop.time() - began >= LEASE_S
    await life.stop()


async def test_design_c19_a_zombie_never_writes_the_lease_back() -> None:
    """It finds a higher epoch in lease.json: it writes nothing, asks cluster.json, and shuts."""
    place = Place()
    async with running(place) as (old, task):
        await asyncio.sleep(1)
        new = await place.start(directory="b", take_over=True)
        assert await task == ServeExit.REFUSED
        assert (await lease_of(place)).controller_epoch == new.context.controller.epoch
        assert (await lease_of(place)).incarnation != old.session.incarnation  # type: ignore[union-attr]
        await new.stop()


async def test_of_two_replacements_one_serves() -> None:
    """Both waited for the same dead broker: cluster.json's CAS decides, the other one is refused by the new lease."""
    place = Place()
    life = await place.start()
    await life.crash()
    rivals = [asyncio.ensure_future(place.start(directory=name)) for name in "bc"]
    done, pending = await asyncio.wait(rivals, return_when=asyncio.FIRST_COMPLETED)
    winner = done.pop().result()
    keeping = asyncio.ensure_future(winner.broker.serve(winner.stop_event))
    with pytest.raises(Refused):
        await pending.pop()
    assert not keeping.done()
    winner.stop_event.set()
    await keeping
    await winner.broker.close()


async def test_a_store_that_is_away_at_start_is_waited_for_saying_why() -> None:
    """Not ready, nothing served, no exit; ready soon after it answers."""
    place = Place()
    place.store.down = True
    life = place.make()
    starting = asyncio.ensure_future(life.start())
    await asyncio.sleep(300)
    assert not starting.done()
    assert not life.broker.health.is_ready
    assert "does not answer" in life.broker.views.not_ready()
    place.store.down = False
    async with asyncio.timeout(30):
        await starting
    assert life.broker.health.is_ready
    await life.stop()


async def test_a_stop_while_waiting_ends_the_start() -> None:
    """SIGTERM must not have to wait for the store."""
    place = Place()
    place.store.down = True
    life = place.make()
    starting = asyncio.ensure_future(life.start())
    await asyncio.sleep(30)
    life.stop_event.set()
    async with asyncio.timeout(1):
        await starting
    assert not life.broker.health.is_ready
    await life.broker.close()


@pytest.mark.parametrize("seed", range(4))
async def test_keeping_the_lease_over_any_faults(seed: int) -> None:
    """Lost answers, conflicts, late writes at 10 %: it stays, and nobody calls it superseded."""
    place = Place(seed=seed)
    async with running(place) as (life, task):
        place.store.plan = FaultPlan(even_rates(0.1), late_s=(0.1, 10.0), flips=lambda _: False)
        await asyncio.sleep(600)
        assert not task.done()
        assert life.context.gate.superseded_by is None
        place.store.calm()
        await asyncio.sleep(10)
        assert life.context.gate.is_open()
        assert life.session is not None
        assert not life.session.outage.failure


async def test_an_outage_is_named_and_forgotten() -> None:
    """`outage` says why the last poll failed, and goes when one succeeds; produce and hot reads go on."""
    place = Place()
    async with running(place) as (life, _):
        await life.create("log")
        place.store.down = True
        await asyncio.sleep(20)
        session = life.session
        assert session.outage.failure
        assert (await life.produce("log", b"a")).error_code == 0
        assert await life.read_all("log") == [(0, b"a")]
        place.store.down = False
        await asyncio.sleep(20)
        assert not session.outage.failure


async def test_a_sleep_is_counted_and_over_after_one_poll() -> None:
    """The clock that runs through sleep jumped: paused, polled, open again."""
    place = Place()
    async with running(place) as (life, _):
        life.clock.slept_s += 100
        assert not life.context.gate.is_open()
        async with asyncio.timeout(5):
            await life.context.gate.opened()
        assert life.context.gate.paused_count == 1


async def test_design_c31_a_pause_counts_with_the_age_of_the_last_beat() -> None:
    """The lease stands still from the last beat on, not from when the process was stopped: stopped for 12 s just before
    a beat was due, it wakes after others could see a whole lease (15 s) pass, and must ask before it answers."""
    place = Place()
    async with running(place) as (life, _):
        await asyncio.sleep(4)
        life.clock.slept_s += LEASE_S - 3
        assert not life.context.gate.is_open()
        async with asyncio.timeout(5):
            await life.context.gate.opened()
        life.clock.slept_s += 2  # a hiccup is none
        assert life.context.gate.is_open()


async def test_a_poll_that_began_before_a_second_sleep_opens_nothing() -> None:
    """Asleep twice: the answer to the poll sent between the two sleeps says nothing of the time after the second."""
    place = Place()
    async with running(place) as (life, _):
        gate = life.context.gate
        ask, answer_leaves, asked = place.memory.get_if_changed, asyncio.Event(), asyncio.Event()

        async def slow(key: str, etag: str | None) -> Got | None:
            answer = await ask(key, etag)
            asked.set()
            await answer_leaves.wait()
            return answer

        place.memory.get_if_changed = slow  # type: ignore[method-assign]
        life.clock.slept_s += 100
        assert not gate.is_open()
        await asked.wait()
        life.clock.slept_s += 100
        assert not gate.is_open()  # a request looked: the second sleep is seen
        place.store.down = True  # no poll after this one succeeds
        answer_leaves.set()
        await asyncio.sleep(3)
        assert not gate.is_open()
        place.store.down = False
        async with asyncio.timeout(30):
            await gate.opened()


async def test_a_bucket_that_vanished_is_an_outage() -> None:
    """cluster.json is gone (an unmounted directory, a deleted bucket): nothing durable is decided, serving goes on."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        await asyncio.sleep(6)
        taken = place.memory.objects.pop(cluster_key())
        await asyncio.sleep(60)
        session = life.session
        assert "is gone" in session.outage.failure
        assert (await life.produce("log", b"a")).error_code == 0
        assert not task.done()
        assert life.broker.metrics.unexpected_errors == 0
        place.memory.objects[cluster_key()] = taken
        await asyncio.sleep(10)
        assert not session.outage.failure


async def test_a_cluster_json_that_rotted_is_an_outage_too() -> None:
    """Nobody took our place in it. The polls died of it and with them the watch of the clock: with no requests for a
    few seconds the broker took that for a pause of its own, and answered nothing until the object was mended."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        await asyncio.sleep(6)
        whole = place.memory.objects[cluster_key()]
        place.memory.objects[cluster_key()] = replace(whole, data=b"#" + whole.data[1:], etag="rotten")
        await asyncio.sleep(200)
        session = life.session
        assert cluster_key() in session.outage.failure
        assert not session.gate.paused
        assert (await asyncio.wait_for(life.produce("log", b"a"), 10)).error_code == 0
        assert not task.done()
        place.memory.objects[cluster_key()] = whole
        await asyncio.sleep(10)
        assert not session.outage.failure


# --- C23 ------------------------------------------------------------------------------------------------------------


class RacyStore(MemoryStore):
    """Passes every sequential test; of writers at the same moment all win: it checks, then writes."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        found = self.objects.get(key)
        if (found.etag if found is not None else None) != if_match:
            raise PreconditionFailed("412")
        await asyncio.sleep(0)
        self.objects[key] = StoredObject(bytes(data), f'"{crc32c(data)}"', crc32c(data))
        return self.objects[key].etag


class DeafStore(MemoryStore):
    """Ignores the condition altogether, as stores did before they had one."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        now = self.objects.get(key)
        return await super().put_root(key, data, now.etag if now is not None else None)


@pytest.mark.parametrize("kind", [RacyStore, DeafStore])
async def test_design_c23_a_store_that_gets_conditional_writes_wrong_is_refused_at_start(
    kind: type[MemoryStore],
) -> None:
    """Before anything is formatted: exit 3, no cluster.json, and the probe's own objects are gone."""
    place = Place()
    place.memory = kind()
    place.store._inner = place.memory
    with pytest.raises(StoreRefused):
        await place.start()
    assert cluster_key() not in place.memory.objects
    assert not place.memory.objects


async def test_design_c23_the_race_is_run_when_a_bucket_is_formatted_and_then_trusted() -> None:
    """80 racing writes once; the next start probes only."""
    place = Place()
    writes = 0
    inner = place.memory.put_root

    async def put_root(key: str, data: bytes, if_match: str | None) -> str:
        nonlocal writes
        writes += key.startswith(".probe/")
        return await inner(key, data, if_match)

    place.memory.put_root = put_root  # type: ignore[method-assign]
    life = await place.start()
    await life.stop()
    formatted, writes = writes, 0
    life = await place.start()
    await life.stop()
    assert formatted >= 80
    assert writes < 20


async def test_a_refusal_is_exit_code_3() -> None:
    """`app.run` maps who may not serve to the exit code scripts rely on."""
    place = Place()
    async with running(place):
        second = place.make(directory="b")
        config, world = second.broker._config, second.broker._world
        code = await app.run(config, world, asyncio.Event(), lambda _: None, open_bucket=lambda _, __: place.store)
        assert code == ServeExit.REFUSED


async def test_produce_waits_for_nobody_while_the_lease_cannot_be_written() -> None:
    """Serving does not depend on the lease: a store that refuses only lease.json costs the broker nothing."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        place.store.script(Operation.PUT_ROOT, Fault.BEFORE, match=lease_key(), times=1000)
        await asyncio.sleep(120)
        answer = await life.call(0, produce_request("log", batch_of(b"a")))
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert not task.done()
