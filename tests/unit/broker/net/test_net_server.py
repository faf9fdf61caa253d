"""The server on real sockets: what a scripted transport cannot show about asyncio, the kernel and sendfile."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.net.dispatch import CloseReason, Later, Part
from broker.net.limits import ListenerLimits, NetLimits
from broker.net.server import Bind, Server
from seams.files import descriptors
from seams.files.disk import FileRange
from seams.files.posix_disk import PosixDisk
from seams.net import SocketBuffers, TcpNet
from tests.support.net.scripted_net import ScriptedDispatcher, frame
from tests.support.scenario import by
from tests.support.workers import InlineWorkers

MIB = 1 << 20
READ_S_MAX = 20.0


class House:
    """A server on a free port of 127.0.0.1, and what the loop complained about."""

    def __init__(self, limits: NetLimits | None = None, **options: Any) -> None:
        self.dispatcher = ScriptedDispatcher()
        self.complaints: list[str] = []
        self.address = ("", 0)
        self.server = Server(
            TcpNet(),
            self.dispatcher,
            limits or NetLimits(),
            lambda name, e: self.complaints.append(repr(e)),
            **{"workers": InlineWorkers(), **options},
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(READ_S_MAX):
            while not condition():
                await asyncio.sleep(0.002)


def in_house(scenario: Callable[[House], Awaitable[None]], limits: NetLimits | None = None, **options: Any) -> None:
    """Run a scenario against a real server; the loop must have nothing to complain about."""

    async def whole() -> None:
        house = House(limits, **options)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: house.complaints.append(str(context)))
        await house.server.bind([Bind("PLAINTEXT", "127.0.0.1", 0)])
        await house.server.accept()
        house.address = house.server.addresses["PLAINTEXT"]
        async with asyncio.timeout(READ_S_MAX):
            await scenario(house)
        await house.server.stop()
        assert house.server.counters.connections_open == 0
        assert house.server.budget.used == 0
        assert house.complaints == []

    asyncio.run(whole())


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


@by(in_house)
async def test_frames_of_all_sizes_cut_anywhere_come_back_in_order(house: House, /) -> None:
    """An echo of 60 frames from 1 byte to 3 MiB over several connections at once."""

    async def peer(seed: int) -> None:
        rng = random.Random(seed)
        reader, writer = await house.connect()
        bodies = [rng.randbytes(rng.choice([1, 100, 17_000, 70_000, 300_000, 3 * MIB])) for _ in range(20)]
        stream = b"".join(map(frame, bodies))

        async def send() -> None:
            position = 0
            while position < len(stream):
                count = rng.choice([3, 1000, 100_000, MIB])
                writer.write(stream[position : position + count])
                await writer.drain()
                position += count

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            for body in bodies:
                assert await answer(reader) == body
        writer.close()

    async with asyncio.TaskGroup() as group:
        for seed in range(3):
            group.create_task(peer(seed))
    assert house.server.counters.frames == 60


@pytest.mark.parametrize("sizes", [(100,), (20_000,), (70_000,), (100, 100)])
def test_a_peer_that_left_while_its_request_waits_is_gone(sizes: tuple[int, ...]) -> None:
    """Regression: nothing is read while a large frame waits, or while frames wait behind another one. The end of the
    connection was not seen until then, and a change of a client that was gone was made."""

    async def scenario(house: House) -> None:
        blocking: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        house.dispatcher.rules[b"wait"] = lambda: Later.of(blocking, blocks=True)
        _, writer = await house.connect()
        for size in sizes:
            writer.write(frame(b"wait".ljust(size)))
        await house.wait_for(lambda: bool(house.dispatcher.peers))
        (peer,) = house.dispatcher.peers
        await asyncio.sleep(0.05)
        assert not peer.is_gone
        writer.close()
        await house.wait_for(lambda: peer.is_gone)
        blocking.set_result(None)
        await house.wait_for(lambda: peer.closed)
        assert peer.is_gone

    in_house(scenario)


@by(in_house)
async def test_file_ranges_arrive_whole(house: House, /, tmp_path: Path) -> None:
    """sendfile through a socket that is full most of the time, between ordinary answers."""
    content = random.Random(1).randbytes(9 * MIB)
    (tmp_path / "log").write_bytes(content)
    file = PosixDisk().open(str(tmp_path / "log"))
    head = struct.pack(">i", len(content) - 5)
    house.dispatcher.rules[b"fetch"] = lambda: [head, FileRange(file, 5, len(content) - 5)]
    reader, writer = await house.connect()
    writer.write(frame(b"a") + frame(b"fetch") + frame(b"b") + frame(b"fetch") + frame(b"c"))
    bodies = [await answer(reader) for _ in range(5)]
    assert bodies == [b"a", content[5:], b"b", content[5:], b"c"]
    assert house.server.counters.bytes_out == sum(map(len, bodies)) + 5 * 4
    writer.close()


def test_a_full_socket_is_watched_and_forgotten_whatever_becomes_of_the_connection(tmp_path: Path) -> None:
    """A reader of two answers, and one that hangs up in the middle: no descriptor stays, the loop has no complaint."""
    content = random.Random(2).randbytes(5 * MIB)
    (tmp_path / "log").write_bytes(content)

    async def scenario(house: House) -> None:
        file = PosixDisk().open(str(tmp_path / "log"))
        house.dispatcher.rules[b"fetch"] = lambda: [struct.pack(">i", len(content)), FileRange(file, 0, len(content))]
        gc.collect()  # what an earlier test left open would be closed in the middle
        before = len(os.listdir("/proc/self/fd"))
        for takes in (10 * MIB + 8, 2 * MIB):
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
                peer.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(peer, house.address)
                await loop.sock_sendall(peer, frame(b"fetch") + frame(b"fetch"))
                got = bytearray()
                while len(got) < takes:
                    got += await loop.sock_recv(peer, min(100_000, takes - len(got)))
                expected = (struct.pack(">i", len(content)) + content) * 2
                assert got == expected[:takes]
                assert house.server.counters.connections_open == 1
            await house.wait_for(lambda: house.server.counters.connections_open == 0)
            await house.wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)

    in_house(scenario, NetLimits(wide_send_buffers_max=0))
    in_house(scenario)


@by(in_house, NetLimits(write_stall_ms_max=500), tick_s=0.1)
async def test_who_takes_little_is_not_cut_though_the_socket_stays_full(house: House, /, tmp_path: Path) -> None:
    """Room is told of when a third of the send buffer is free: a reader that needs longer for that than a peer may
    stall takes bytes all the same."""
    (tmp_path / "log").write_bytes(bytes(5 * MIB))
    file = PosixDisk().open(str(tmp_path / "log"))
    house.dispatcher.rules[b"fetch"] = lambda: [struct.pack(">i", 5 * MIB), FileRange(file, 0, 5 * MIB)]
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, house.address)
        await loop.sock_sendall(peer, frame(b"fetch"))
        sent = house.server.counters
        while not sent.bytes_out:
            await asyncio.sleep(0.01)
        filled, until_s, got = sent.bytes_out, loop.time() + 2.5, 0
        while loop.time() < until_s:
            got += len(await loop.sock_recv(peer, 2_000))
            await asyncio.sleep(0.05)
        assert sent.bytes_out == filled, "room was told of: this says nothing"
        assert got and sent.connections_open == 1 and not sent.closes
    await house.wait_for(lambda: sent.connections_open == 0)


@by(in_house)
async def test_a_file_truncated_under_the_response_ends_the_connection(house: House, /, tmp_path: Path) -> None:
    """The peer sees an end of stream within the frame, never bytes of something else."""
    (tmp_path / "log").write_bytes(bytes(MIB))
    file = PosixDisk().open(str(tmp_path / "log"))
    house.dispatcher.rules[b"fetch"] = lambda: [struct.pack(">i", 2 * MIB), FileRange(file, 0, 2 * MIB)]
    reader, writer = await house.connect()
    writer.write(frame(b"fetch") + frame(b"after"))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await answer(reader)
    assert house.server.counters.closes == {CloseReason.SHORT_FILE: 1}
    writer.close()


@by(in_house)
async def test_a_peer_that_vanishes_during_a_response_is_no_failure_of_ours(house: House, /, tmp_path: Path) -> None:
    """A reset in the middle of a sendfile: counted as the peer's, nothing for the loop to report."""
    (tmp_path / "log").write_bytes(bytes(64 * MIB))
    file = PosixDisk().open(str(tmp_path / "log"))
    house.dispatcher.rules[b"fetch"] = lambda: [struct.pack(">i", 64 * MIB), FileRange(file, 0, 64 * MIB)]
    for _ in range(3):
        reader, writer = await house.connect()
        writer.write(frame(b"fetch"))
        await reader.readexactly(100_000)
        writer.transport.abort()
    await house.wait_for(lambda: house.server.counters.connections_open == 0)
    assert house.server.counters.closes == {CloseReason.PEER: 3}


def test_a_peer_that_stops_reading_is_stopped_and_then_served() -> None:
    """Answers of 100 KB pile up in the kernel, not in the process, and all arrive when the peer reads again."""

    async def scenario(house: House) -> None:
        big = b"B" * 100_000
        house.dispatcher.rules[b"big"] = lambda: [frame(big)]
        reader, writer = await house.connect()
        writer.write(frame(b"big") * 400)
        await house.wait_for(lambda: writing_stopped(house))
        dispatched = len(house.dispatcher.seen)
        assert dispatched < 400
        for _ in range(400):
            assert await answer(reader) == big
        writer.close()

    def writing_stopped(house: House) -> bool:
        return any(connection._outbox.send.busy for connection in house.server._connections)

    in_house(scenario)


@by(in_house, NetLimits(frame_ms_max=50, idle_ms_max=150), tick_s=0.01)
async def test_deadlines_of_real_connections(house: House, /) -> None:
    """Drip and idleness, with a tick of 10 ms: both closed, the one that talks is not."""

    async def talk() -> None:
        reader, writer = await house.connect()
        while True:
            writer.write(frame(b"talk"))
            await answer(reader)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        talker = group.create_task(talk())
        idle_reader, _ = await house.connect()
        drip_reader, drip = await house.connect()
        drip.write(frame(b"never finished")[:7])
        assert await drip_reader.read() == b""
        assert await idle_reader.read() == b""
        assert not talker.done()
        assert house.server.counters.closes == {CloseReason.IDLE: 1, CloseReason.FRAME_DEADLINE: 1}
        talker.cancel()


@by(in_house, NetLimits(connections_per_ip_max=2))
async def test_too_many_connections_of_one_address_are_closed(house: House, /) -> None:
    """The third of two; a place that comes free is given again."""
    (first_reader, first), _, (third_reader, _third) = [await house.connect() for _ in range(3)]
    with suppress(ConnectionError):
        assert await third_reader.read() == b""
    first.close()
    await first.wait_closed()
    assert await first_reader.read() == b""
    await house.wait_for(lambda: house.server.counters.connections_open == 1)
    reader, writer = await house.connect()
    writer.write(frame(b"in"))
    assert await answer(reader) == b"in"
    assert house.server.counters.closes[CloseReason.TOO_MANY] == 1


@by(in_house, NetLimits(connections_per_s_max=20))
async def test_connections_above_the_rate_wait_and_none_is_closed(house: House, /) -> None:
    """30 peers at 20 a second with a second's credit: all are served, the last ones later."""

    async def peer(number: int) -> None:
        reader, writer = await house.connect()
        writer.write(frame(b"%d" % number))
        assert await answer(reader) == b"%d" % number
        writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(peer(number))
        await house.wait_for(lambda: house.server.connections_waiting > 0)
    await house.wait_for(lambda: house.server.counters.connections_open == 0)
    assert house.server.counters.closes == {CloseReason.PEER: 30}


@by(in_house)
async def test_stopping_answers_what_is_in_flight(house: House, /) -> None:
    """A long poll that ends during the drain reaches its peer before the connection closes."""
    futures: list[asyncio.Future[list[Part] | None]] = []

    def poll() -> Later:
        futures.append(asyncio.get_running_loop().create_future())
        return Later.of(futures[-1], blocks=True)

    house.dispatcher.rules[b"poll"] = poll
    reader, writer = await house.connect()
    writer.write(frame(b"poll"))
    await house.wait_for(lambda: bool(futures))
    async with asyncio.TaskGroup() as group:
        group.create_task(house.server.stop())
        await asyncio.sleep(0)
        futures[0].set_result([frame(b"polled")])
        assert await answer(reader) == b"polled"
        assert await reader.read() == b""
    with pytest.raises(OSError):
        await house.connect()
    writer.close()


def test_connections_have_the_socket_buffers_that_were_asked_for() -> None:
    """`socket.send.buffer.bytes` reaches every accepted connection; the kernel doubles what it is given."""

    async def scenario() -> None:
        seen: list[int] = []

        class Looker(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                seen.append(transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

        listener = await TcpNet().bind("127.0.0.1", 0, Looker, SocketBuffers(send=50_000))
        await listener.accept()
        reader, writer = await asyncio.open_connection(*listener.address)
        while not seen:
            await asyncio.sleep(0.001)
        writer.close()
        await listener.close()
        assert seen == [100_000] and reader is not None

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_peers_of_several_listeners_know_theirs_and_share_the_bounds() -> None:
    """Each has an address of its own; connections are counted together, and both are closed at the end."""

    async def scenario() -> None:
        house = House(NetLimits(connections_per_ip_max=3))
        dispatcher, server = house.dispatcher, house.server
        await server.bind([Bind("INNER", "127.0.0.1", 0), Bind("OUTER", "127.0.0.1", 0)])
        await server.accept()
        assert list(server.addresses) == ["INNER", "OUTER"]
        writers = []
        for name in ("OUTER", "INNER", "OUTER"):
            reader, writer = await asyncio.open_connection(*server.addresses[name])
            writer.write(frame(b"hello"))
            assert await answer(reader) == b"hello"
            writers.append(writer)
        assert [peer.listener for peer in dispatcher.peers] == ["OUTER", "INNER", "OUTER"]
        assert len({peer.connection_id for peer in dispatcher.peers}) == 3
        reader, one_too_many = await asyncio.open_connection(*server.addresses["INNER"])
        assert await reader.read() == b""
        addresses = dict(server.addresses)
        for writer in (*writers, one_too_many):
            writer.close()
        await server.stop()
        assert dict(server.counters.closes)[CloseReason.TOO_MANY] == 1
        for address in addresses.values():
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)

    asyncio.run(asyncio.wait_for(scenario(), READ_S_MAX))


def test_a_crowd_at_one_listener_keeps_nobody_out_of_one_that_is_apart() -> None:
    """Of three connections in all, clients took three and two of them wait: brokers come in, three of four."""

    async def scenario() -> None:
        server = House(NetLimits(connections_max=3)).server
        await server.bind([Bind("CLIENTS", "127.0.0.1", 0), Bind("OTHERS", "127.0.0.1", 0)])
        await server.bind([Bind("BROKERS", "127.0.0.1", 0, apart=True)])
        await server.accept()
        writers = {name: [await open_at(server, name) for _ in range(4)] for name in ("CLIENTS", "BROKERS")}
        other = await open_at(server, "OTHERS")
        for name in ("CLIENTS", "BROKERS"):
            for reader, _ in writers[name][:3]:
                assert await answer(reader) == b"hello"
        assert server.connections_waiting == 3
        server.limit_connections(NetLimits(connections_max=5))
        for reader, _ in (writers["CLIENTS"][3], writers["BROKERS"][3], other):
            assert await answer(reader) == b"hello"
        assert server.connections_waiting == 0
        for _, writer in (*writers["CLIENTS"], *writers["BROKERS"], other):
            writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), READ_S_MAX))


@pytest.mark.parametrize(("taken", "served"), [(0.87, ["CLIENTS", "BROKERS"]), (0.88, ["BROKERS"]), (0.94, [])])
def test_connections_of_brokers_leave_descriptors_free_too(
    monkeypatch: pytest.MonkeyPatch, taken: float, served: list[str]
) -> None:
    """Regression: whoever reached the brokers' listener, without a login, could take the last descriptors of the
    process, and no file could be opened."""
    monkeypatch.setattr(descriptors, "has_room", lambda _, share: taken < share)

    async def scenario() -> None:
        server = House().server
        await server.bind([Bind("CLIENTS", "127.0.0.1", 0), Bind("BROKERS", "127.0.0.1", 0, apart=True)])
        await server.accept()
        for name in ("CLIENTS", "BROKERS"):
            reader, writer = await open_at(server, name)
            if name in served:
                assert await answer(reader) == b"hello"
            else:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), READ_S_MAX))


def test_a_listener_with_few_connections_of_its_own_keeps_nobody_out_of_another() -> None:
    """Those that wait there come in as soon as it may have more."""

    async def scenario() -> None:
        limits = NetLimits(of_listener={"FEW": ListenerLimits(most=1)})
        server = House(limits).server
        await server.bind([Bind("FEW", "127.0.0.1", 0), Bind("MANY", "127.0.0.1", 0)])
        await server.accept()
        few = [await open_at(server, "FEW") for _ in range(3)]
        many = [await open_at(server, "MANY") for _ in range(3)]
        for reader, _ in (few[0], *many):
            assert await answer(reader) == b"hello"
        assert server.connections_waiting == 2
        server.limit_connections(NetLimits())
        for reader, _ in few[1:]:
            assert await answer(reader) == b"hello"
        for _, writer in (*few, *many):
            writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), READ_S_MAX))


async def open_at(server: Server, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of that listener, which asked something."""
    reader, writer = await asyncio.open_connection(*server.addresses[name])
    writer.write(frame(b"hello"))
    return reader, writer


def test_when_one_address_is_taken_none_is_bound() -> None:
    """A start that is refused leaves the other ports to whoever comes next."""

    async def scenario() -> None:
        server = House().server
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
            free = other.getsockname()
            other.close()
            with pytest.raises(OSError, match=str(taken.getsockname()[1])):
                await server.bind([Bind("A", *free), Bind("B", *taken.getsockname())])
            assert server.addresses == {}
            with socket.create_server(free):
                pass

    asyncio.run(asyncio.wait_for(scenario(), READ_S_MAX))


@by(in_house)
async def test_a_request_that_blocks_no_longer_lets_the_next_one_in_and_answers_first(house: House, /) -> None:
    """Its task ended with a response that comes later: frames behind it are dispatched, and their responses wait."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Future[Any]] = []
    acks: list[Later] = []

    def work() -> Later:
        tasks.append(loop.create_future())
        return Later.of(tasks[-1], blocks=True)

    house.dispatcher.rules[b"work"] = work
    reader, writer = await house.connect()
    count = 20
    body = b"work" + bytes(9_000)  # each is kept while it blocks
    writer.write((frame(body) + frame(b"next")) * count)
    for at in range(count):
        await house.wait_for(lambda at=at: len(tasks) == at + 1)  # type: ignore[misc]
        await asyncio.sleep(0)
        assert len(house.dispatcher.seen) == 2 * at + 1, "dispatched while the request before it blocks"
        acks.append(Later(blocks=False))
        tasks[-1].set_result(acks[-1])
    await house.wait_for(lambda: len(house.dispatcher.seen) == 2 * count)
    assert max(len(ack._listeners) for ack in acks) == 1
    for at, ack in reversed(list(enumerate(acks))):
        ack.answer([frame(b"%d" % at)])
    for at in range(count):
        assert await answer(reader) == b"%d" % at
        assert await answer(reader) == b"next"
    writer.close()
