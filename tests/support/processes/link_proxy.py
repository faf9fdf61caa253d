"""The network between broker processes: a door in front of each, and a way from each to each that can be cut.

    with Links() as links:
        told = links.door("2", target_port)     # what broker 2 tells the others instead of its own port
        links.owners["1"] = pid                 # whose connections are broker 1's
        links.cut("1", "2")                     # nothing of 1 reaches 2; what 2 says still reaches 1
        links.heal()                            # what was held back goes on

A thread of this process with a loop of its own carries the bytes. Always true: a way that is cut is silence: bytes,
ends and resets of connections are held, never dropped, and a new connection waits unanswered; a door that is shut
refuses, as the port of a process that died does. Who connects is read from /proc: the process that holds the other end
of the socket. Must not know what is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable

PIECE = 256 << 10


class Way:
    """From one broker to another: open, or silent."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.carried = 0


class Links:
    """Doors by the broker's name behind them; ways by (from, to). Every public method may be called from any thread."""

    def __init__(self) -> None:
        self.owners: dict[str, int] = {}
        self._ways: defaultdict[tuple[str, str], Way] = defaultdict(Way)
        self._doors: dict[str, tuple[int, int]] = {}  # name → port here, port behind
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._lines: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def __enter__(self) -> Links:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def door(self, name: str, behind: int) -> int:
        """The port of a new door to 127.0.0.1:`behind`, whose broker is `name`."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self._doors[name] = (port, behind)
        self.set_open(name, True)
        return port

    def set_open(self, name: str, is_open: bool) -> None:
        """Whether anybody listens at the door of `name`."""
        asyncio.run_coroutine_threadsafe(self._set_open(name, is_open), self._loop).result(10)

    def cut(self, source: str, sink: str) -> None:
        """Nothing of `source` reaches `sink` from now on."""
        self._in_loop(lambda: self._ways[source, sink].open.clear())

    def cut_both(self, one: str, others: Iterable[str]) -> None:
        for other in others:
            self.cut(one, other)
            self.cut(other, one)

    def heal(self) -> None:
        """All ways carry again, first what they held back."""
        self._in_loop(lambda: [way.open.set() for way in self._ways.values()])

    def carried(self) -> dict[tuple[str, str], int]:
        """Bytes so far, by (from, to)."""
        return {ends: way.carried for ends, way in self._ways.items()}

    def _in_loop(self, act: object) -> None:
        async def run() -> None:
            act()  # type: ignore[operator]

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    # ── in the loop ──────────────────────────────────────────────────────────────────────────────────────────────
    async def _set_open(self, name: str, is_open: bool) -> None:
        listening = self._listening.pop(name, None)
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])
        if not is_open:
            return
        door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", self._doors[name][0]))
        door.listen()
        door.setblocking(False)
        self._listening[name] = asyncio.create_task(self._listen(name, door))

    async def _end(self) -> None:
        tasks = [*self._listening.values(), *self._lines]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [end for end in ended if isinstance(end, Exception)]
        if failed:
            raise ExceptionGroup("doors or lines that failed", failed)

    async def _listen(self, name: str, door: socket.socket) -> None:
        with door:
            while True:
                client, (_, port) = await self._loop.sock_accept(door)
                who = owner_of(port, dict(self.owners))  # a broker that starts or ends changes it from another thread
                if who is None:
                    client.close()  # it died meanwhile, or is no broker
                    continue
                line = asyncio.create_task(self._line(who, name, client))
                self._lines.add(line)
                line.add_done_callback(self._lines.discard)

    async def _line(self, who: str, name: str, client: socket.socket) -> None:
        """One connection, from its opening to its end."""
        there, back = self._ways[who, name], self._ways[name, who]
        server = socket.socket()
        with client, server:
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await there.open.wait()
            await back.open.wait()
            try:
                await self._loop.sock_connect(server, ("127.0.0.1", self._doors[name][1]))
            except OSError:
                return  # nobody listens behind the door
            pumps = [
                asyncio.create_task(self._pump(client, server, there, back)),
                asyncio.create_task(self._pump(server, client, back, there)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.wait(pumps)

    async def _pump(self, source: socket.socket, sink: socket.socket, way: Way, back: Way) -> None:
        """Returns when an end of the connection may be told: across the way that it is heard on."""
        while True:
            data = b""
            with contextlib.suppress(OSError):
                data = await self._loop.sock_recv(source, PIECE)
            await way.open.wait()
            if not data:
                return
            try:
                await self._loop.sock_sendall(sink, data)
            except OSError:
                await back.open.wait()
                return
            way.carried += len(data)


def owner_of(port: int, owners: dict[str, int]) -> str | None:
    """Which of `owners` (name → process id) holds a connection whose own end is 127.0.0.1:`port`."""
    wanted = f"0100007F:{port:04X}"
    with open("/proc/net/tcp") as table:
        found = [line.split() for line in table if wanted in line]
    inodes = {f"socket:[{fields[9]}]" for fields in found if fields[1] == wanted}
    return next((name for name, pid in owners.items() if inodes & _sockets(pid)), None)


def _sockets(pid: int) -> set[str]:
    folder, found = f"/proc/{pid}/fd", set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(f"{folder}/{name}"))
    return found
