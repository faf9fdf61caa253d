"""Connecting out, over real sockets and in the simulation: one protocol, the same promises."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from seams.files import descriptors
from seams.net import Net, SocketBuffers, TcpNet
from seams.rng import SeededRng
from tests.sim.world.loop import SimLoop
from tests.sim.world.net import SimNet
from tests.support.net.net_end import End
from tests.support.scenario import by

Scene = Callable[[Net], Awaitable[None]]


def over_tcp(scene: Scene) -> None:
    asyncio.run(_played(scene, TcpNet()))


def in_the_simulation(scene: Scene) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(_played(scene, SimNet(loop, SeededRng(1))))
    finally:
        loop.close()


async def _played(scene: Scene, net: Net) -> None:
    await scene(net)


@pytest.fixture(params=[over_tcp, in_the_simulation])
def play(request: pytest.FixtureRequest) -> Callable[[Scene], None]:
    """Play a scene over each network there is."""
    found: Callable[[Scene], None] = request.param
    return found


@by("play")
async def test_what_is_connected_talks_both_ways_and_ends_hear_of_the_loss(net: Net, /) -> None:
    """The transport is the one the protocol was given; each end is made once and lost once."""
    served: list[End] = []

    def serve() -> End:
        served.append(End(echo=True))
        return served[-1]

    listener = await net.bind("127.0.0.1", 0, serve, SocketBuffers())
    await listener.accept()
    end = End()
    transport = await net.connect(*listener.address, end, 5.0)
    assert end.made == 1
    transport.write(b"ping")
    await end.until(lambda: end.got == b"ping")
    transport.close()
    await end.until(lambda: end.lost == 1)
    await served[0].until(lambda: served[0].lost == 1)
    assert (len(served), served[0].made, served[0].got) == (1, 1, b"ping")
    await listener.close()


@by("play")
async def test_where_nobody_listens_connecting_is_refused(net: Net, /) -> None:
    """An address that is bound and does not accept yet, and one that is closed again: the protocol hears of nothing."""
    listener = await net.bind("127.0.0.1", 0, End, SocketBuffers())
    end = End()
    with pytest.raises(ConnectionRefusedError):
        await net.connect(*listener.address, end, 5.0)
    await listener.accept()
    await listener.close()
    with pytest.raises(ConnectionRefusedError):
        await net.connect(*listener.address, end, 5.0)
    assert (end.made, end.lost) == (0, 0)


@by(over_tcp)
async def test_a_peer_that_does_not_answer_is_waited_for_as_long_as_was_said(net: Net, /) -> None:
    """A listener whose queue is full drops what asks to connect: TimeoutError, and nothing is left open."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        with socket.create_connection(deaf.getsockname(), 5):  # the one place in the queue
            end = End()
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await net.connect(*deaf.getsockname(), end, 0.3)  # type: ignore[call-arg]
            assert 0.3 <= asyncio.get_running_loop().time() - began_s < 5
            assert (end.made, end.lost) == (0, 0)


@by(in_the_simulation)
async def test_a_simulated_connection_that_takes_too_long_times_out(net: Net, /) -> None:
    """Below the least latency of the simulated network no connection comes about."""
    listener = await net.bind("127.0.0.1", 0, End, SocketBuffers())
    await listener.accept()
    end = End()
    with pytest.raises(TimeoutError):
        await net.connect(*listener.address, end, 0.00005)
    assert (end.made, end.lost) == (0, 0)


@by(over_tcp)
async def test_a_name_that_does_not_exist_is_an_os_error(net: Net, /) -> None:
    """As for any other way that leads nowhere."""
    with pytest.raises(OSError):
        await net.connect("no-such-host.invalid", 9092, End(), 20.0)


def test_slow_readers_leave_descriptors_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 300 clients that did not read took all 400 descriptors, one more each for its watch. No broker could
    connect any more, and neither checkpoints nor the bucket could be written."""

    async def scene() -> None:
        net, end = TcpNet(), End()
        listener = await net.bind("127.0.0.1", 0, End, SocketBuffers())
        await listener.accept()
        transport = await net.connect(*listener.address, end, 5.0)
        stop = net.when_roomy(transport, lambda: None)
        assert stop is not None
        stop()
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (4, 4))
        before = len(os.listdir("/proc/self/fd"))
        assert net.when_roomy(transport, lambda: None) is None
        assert len(os.listdir("/proc/self/fd")) == before
        transport.close()
        await listener.close()

    asyncio.run(scene())


def _named(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name stands for these."""

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_whose_addresses_all_refuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asyncio says OSError, "Multiple exceptions": a dead broker's session ended after 2 s, not at once."""

    async def scene() -> None:
        listener = await TcpNet().bind("127.0.0.1", 0, End, SocketBuffers())
        port = listener.address[1]  # taken, and nobody accepts
        _named(monkeypatch, "127.0.0.1", "127.0.0.2")
        with pytest.raises(ConnectionRefusedError):
            await TcpNet().connect("two.test", port, End(), 5.0)
        await listener.close()

    asyncio.run(scene())


def test_a_name_one_of_whose_addresses_cannot_be_reached_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens may be there."""

    async def scene() -> None:
        listener = await TcpNet().bind("127.0.0.1", 0, End, SocketBuffers())
        port = listener.address[1]
        _named(monkeypatch, "127.0.0.1", "255.255.255.255")
        with pytest.raises(OSError) as failed:
            await TcpNet().connect("two.test", port, End(), 5.0)
        assert not isinstance(failed.value, ConnectionRefusedError)
        await listener.accept()
        _named(monkeypatch, "127.0.0.2", "127.0.0.1")
        end = End()
        (await TcpNet().connect("two.test", port, end, 5.0)).close()
        assert end.made == 1
        await listener.close()

    asyncio.run(scene())
