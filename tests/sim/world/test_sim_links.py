"""Links of the simulation: a partition is silence, not a reset; what crosses it later comes in order; power is another
silence; the store is at the end of a link too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from coldstore.object_store import ObjectMissing
from seams.net import SocketBuffers
from seams.rng import SeededRng
from tests.sim.world.bucket import RemoteBucket, WayToStore
from tests.sim.world.links import CLIENTS, STORE, both_ways
from tests.sim.world.loop import Process, SimLoop
from tests.sim.world.net import SimNet
from tests.support.net.net_end import End
from tests.support.scenario import by
from tests.support.store.memory_store import MemoryStore

ADDRESS = ("127.0.0.1", 9092)


class World:
    """Two processes, "here" and "there", the latter with a listener that echoes."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.net = SimNet(loop, SeededRng("links"))
        self.links = self.net.links
        self.net.places[ADDRESS] = "there"
        self.here = Process("here")
        self.served: list[End] = []
        self.end = End()

    def of(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return process.context.run(self.loop.create_task, work)

    async def listen(self) -> Process:
        """A new process "there"."""
        there = Process("there")

        def serve() -> End:
            self.served.append(End(echo=True))
            return self.served[-1]

        async def listening() -> None:
            listener = await self.net.bind(*ADDRESS, serve, SocketBuffers())
            await listener.accept()

        await self.of(there, listening())
        return there

    async def connect(self, timeout_s: float = 5.0) -> asyncio.Transport:
        transport: asyncio.Transport = await self.of(self.here, self.net.connect(*ADDRESS, self.end, timeout_s))
        return transport


def play(scene: Callable[[World], Awaitable[None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(scene(World(loop)))  # type: ignore[arg-type]
    finally:
        loop.close()


@by(play)
async def test_a_cut_link_stalls_a_connection_and_loses_nothing(world: World, /) -> None:
    """Both ways cut: nothing arrives, nobody hears of a loss; healed: all of it, in order. Clients were not touched."""
    await world.listen()
    transport = await world.connect()
    world.links.cut(both_ways([("here", "there")]))
    for i in range(100):
        transport.write(b"%04d" % i)
        await asyncio.sleep(0.01)
    client = End()
    (await world.net.connect(*ADDRESS, client, 5.0)).write(b"client")
    await client.until(lambda: client.got == b"client")
    await asyncio.sleep(30.0)
    assert (bytes(world.served[0].got), bytes(world.end.got), world.end.lost) == (b"", b"", 0)
    world.links.heal()
    transport.write(b"0100")
    wanted = b"".join(b"%04d" % i for i in range(101))
    await world.end.until(lambda: len(world.end.got) == len(wanted))
    assert bytes(world.end.got) == wanted == bytes(world.served[0].got)
    assert world.net.hits["held"] >= 100


@by(play)
async def test_a_link_may_be_cut_one_way(world: World, /) -> None:
    """Requests arrive, answers do not; and what was sent last, before a close, arrives before the close."""
    await world.listen()
    transport = await world.connect()
    world.links.cut([("there", "here")])
    transport.write(b"asked")
    await world.served[0].until(lambda: world.served[0].got == b"asked")
    await asyncio.sleep(10.0)
    assert world.end.got == b""
    world.served[0].transport.close()
    await asyncio.sleep(10.0)
    assert world.end.lost == 0
    world.links.heal([("there", "here")])
    await world.end.until(lambda: world.end.lost == 1)
    assert world.end.got == b"asked"


@by(play)
async def test_connecting_over_a_cut_link_takes_its_time_out_and_no_longer(world: World, /) -> None:
    """TimeoutError, whichever way is cut; healed in time, it is made."""
    await world.listen()
    for link in (("here", "there"), ("there", "here")):
        world.links.cut([link])
        began_s = world.loop.time()
        with pytest.raises(TimeoutError):
            await world.connect(3.0)
        assert world.loop.time() - began_s == pytest.approx(3.0)
        world.links.heal()
    assert world.end.made == 0
    world.links.cut([("here", "there")])
    world.loop.call_later(2.0, world.links.heal)
    await world.connect(3.0)
    assert world.end.made == 1


@by(play)
async def test_a_slow_link_is_late_by_what_was_said(world: World, /) -> None:
    """One way by half a second: an echo takes that, and little more; a connect waits for its answer too."""
    await world.listen()
    world.links.slow([("here", "there")], 0.5)
    began_s = world.loop.time()
    transport = await world.connect()
    assert 0.5 <= world.loop.time() - began_s < 0.6
    began_s = world.loop.time()
    transport.write(b"late")
    await world.end.until(lambda: world.end.got == b"late")
    assert 0.5 <= world.loop.time() - began_s < 0.6
    world.links.heal()
    began_s = world.loop.time()
    transport.write(b"soon")
    await world.end.until(lambda: world.end.got == b"latesoon")
    assert world.loop.time() - began_s < 0.1


@by(play)
async def test_who_died_behind_a_cut_link_is_heard_of_when_it_is_healed(world: World, /) -> None:
    """A kill is told by the kernel; the telling waits with everything else."""
    there = await world.listen()
    transport = await world.connect()
    world.links.cut(both_ways([("here", "there")]))
    there.dead = True
    world.net.drop_process(there)
    transport.write(b"anybody")
    await asyncio.sleep(60.0)
    assert world.end.lost == 0
    world.links.heal()
    await world.end.until(lambda: world.end.lost == 1)


@by(play)
async def test_who_lost_power_says_nothing_until_it_is_asked_again(world: World, /) -> None:
    """No reset from a machine that is off, and connecting to it is not answered; on again, it knows nothing of old
    connections: who sent or sends something hears so, who only listens waits on."""
    there = await world.listen()
    talking = await world.connect()
    talker, world.end = world.end, End()
    quiet_transport = await world.connect()
    quiet = world.end
    there.dead = True
    world.net.dark.add("there")
    world.net.drop_process(there)
    talking.write(b"anybody")
    await asyncio.sleep(60.0)
    assert (talker.lost, quiet.lost) == (0, 0)
    with pytest.raises(TimeoutError):
        await world.connect(1.0)
    world.net.power_on("there")
    await talker.until(lambda: talker.lost == 1)
    with pytest.raises(ConnectionRefusedError):
        await world.connect(1.0)
    await world.listen()
    await asyncio.sleep(60.0)
    assert quiet.lost == 0
    quiet_transport.write(b"anybody")
    await quiet.until(lambda: quiet.lost == 1)


@by(play)
async def test_the_store_is_at_the_end_of_a_link_too(world: World, /) -> None:
    """Cut on the way there: no effect until it is healed; cut on the way back: the effect, and no answer. Who gave up
    meanwhile may have its effect minutes later. Others are not touched; a store that is down for one refuses it."""
    store = MemoryStore()

    def bucket(place: str) -> RemoteBucket:
        way = WayToStore(world.links, place, SeededRng("way"))
        return RemoteBucket(world.loop, store, copy_context(), way)

    here, elsewhere = bucket("here"), bucket("elsewhere")
    world.links.cut([("here", STORE)])
    asked = asyncio.ensure_future(here.put_root("a", b"1", None))
    await asyncio.sleep(20.0)
    with pytest.raises(ObjectMissing):
        await elsewhere.get("a")
    world.links.heal()
    await asked
    assert (await elsewhere.get("a")).data == b"1"

    world.links.cut([(STORE, "here")])
    asked = asyncio.ensure_future(here.put_root("b", b"1", None))
    await asyncio.sleep(20.0)
    assert not asked.done() and (await elsewhere.get("b")).data == b"1"
    world.links.heal()
    await asked

    world.links.cut([("here", STORE)])
    for i in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await here.put_root(f"late/{i}", b"1", None)
    assert [info.key async for info in elsewhere.list("late/")] == []
    world.links.heal()
    await asyncio.sleep(1.0)
    landed = [info.key async for info in elsewhere.list("late/")]
    assert 0 < len(landed) < 20

    here.down = True
    with pytest.raises(Exception, match="no way to the store"):
        await here.get("a")
    assert here.refused == 1 and (await elsewhere.get("a")).data == b"1"


@by(play)
async def test_clients_are_a_place(world: World, /) -> None:
    """Who is no process is at "clients"."""
    await world.listen()
    world.links.cut([(CLIENTS, "there")])
    with pytest.raises(TimeoutError):
        await world.net.connect(*ADDRESS, End(), 1.0)
    await world.connect()
