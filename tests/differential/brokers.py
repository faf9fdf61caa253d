"""Two brokers in one virtual time, and what they are told: one that takes the short way, one that has none.

Owns what stands between a history and `broker_kit`: a network of byte strings, workers that take no time (so that when
something happens is the history's choice alone), syncs that may be held up, a disk with little room a file. Always
true: both hear the same at the same moment; they share nothing but the loop and the clock.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from broker.net.connection import Connection
from broker.partition.leading.leader_replica import LeaderReplica
from logformat.errors import Fenced
from seams.files.disk import File
from seams.loop.workers import Lane
from seams.net import SocketBuffers
from tests.differential.history import Burst, Cut, Happening, Kind, Site, Topic
from tests.support.brokers.broker_kit import Place
from tests.support.disk.crash_disk import CrashDisk, Fault, Inode

_SYNCS: Final = (Lane.FLUSH, Lane.BULK_FLUSH)
_SETTLED_S: Final = 2.0  # after a start: claims and reservations are written by then
_CHANGE_S: Final = 60.0  # of virtual time
_BYTES_MAX: Final = 3_000  # of a burst that comes byte by byte
_REASONS: Final = logging.getLogger("broker.net.lifecycle")


class Wire(asyncio.Transport):
    """A connection: what is given is read as long as the protocol wants to; all it writes arrives."""

    def __init__(self, protocol: Connection, peername: tuple[str, int]) -> None:
        super().__init__()
        self.protocol = protocol
        self.peername = peername
        self.answered = bytearray()
        self.closed = False
        self._reads: deque[memoryview] = deque()
        self._reading = True

    def give(self, reads: Sequence[bytes | memoryview]) -> None:
        """What the peer sends, as the kernel hands it over."""
        self._reads += map(memoryview, reads)
        self.feed()

    def feed(self) -> None:
        reads = self._reads
        while reads and self._reading and not self.closed:
            piece = reads[0]
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
            if count == len(piece):
                reads.popleft()
            else:
                reads[0] = piece[count:]
            self.protocol.buffer_updated(count)

    @property
    def unread(self) -> int:
        return sum(map(len, self._reads))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.answered += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._reads:
            asyncio.get_running_loop().call_soon(self.feed)

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peername if name == "peername" else default

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class Wires:
    """`Net` of such connections."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._factory: Callable[[], asyncio.BaseProtocol]
        self._port = 40_000

    @property
    def address(self) -> tuple[str, int]:
        return "broker", 9092

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> Wires:
        self._factory = factory
        return self

    async def accept(self) -> None: ...
    async def close(self) -> None: ...

    def has_room(self, transport: asyncio.BaseTransport, share: float) -> bool:
        return True

    def has_left(self, transport: asyncio.BaseTransport) -> bool:
        return transport.is_closing()

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        data = file.read_at(position, length)
        transport.write(data)
        return len(data)

    async def resolve(self, host: str, timeout_s: float) -> list[str]:
        raise OSError(f"nobody knows {host}")

    async def connect(self, *_: Any) -> asyncio.Transport:
        raise ConnectionRefusedError("nobody listens")

    def arrive(self) -> Wire:
        self._port += 1
        protocol = self._factory()
        assert isinstance(protocol, Connection)
        wire = Wire(protocol, (self.host, self._port))
        protocol.connection_made(wire)
        return wire


class AtOnceWorkers:
    """A call is done in the next turn of the loop, no time later; while `held` no sync is."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def run(self, function: Callable[..., Any], *args: Any, lane: Lane = Lane.FILES) -> Any:
        await asyncio.sleep(0)
        while lane in _SYNCS and not self.open.is_set():
            await self.open.wait()
        return function(*args)


class RoomyDisk(CrashDisk):
    """With `room` set, each log file may grow by so many bytes more."""

    def __init__(self) -> None:
        super().__init__()
        self.room: int | None = None
        self._sizes: dict[int, int] = {}

    def limit(self, room: int | None) -> None:
        self.room = room
        logs = (inode for path, inode in self._names.items() if path.endswith(".log"))
        self._sizes = {} if room is None else {id(inode): len(inode.data) for inode in logs}

    def room_for(self, inode: Inode, position: int, length: int) -> int:
        if self.room is None:
            return length
        if id(inode) not in self._sizes:
            if not any(found is inode and path.endswith(".log") for path, found in self._names.items()):
                return length
            self._sizes[id(inode)] = len(inode.data)
        return max(0, min(length, self._sizes[id(inode)] + self.room - position))


class _Place(Place):
    """A machine on which nothing takes time but what is told to."""

    def __init__(self, *settings: str) -> None:
        super().__init__(*settings)
        self.at_once = AtOnceWorkers()

    def workers(self) -> Any:
        return self.at_once


class _Pressure:
    def __init__(self) -> None:
        self.local_excess_ratio = 0.0


class _Reasons(logging.Handler):
    """Why connections were closed, by the host of the peer."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.of: dict[str, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for host, reasons in self.of.items():
            if f" {host}:" in text:
                reasons.append(text.replace(host, "peer"))


class Way:
    """One broker, and the connections of a history to it. `short`: it has the short way, and frames come cut."""

    def __init__(self, *, short: bool) -> None:
        self.short = short
        self.host = "10.0.0.1" if short else "10.0.0.2"
        self.runs: Counter[int] = Counter()
        self.wires: dict[int, Wire] = {}
        self.reasons: list[str] = []
        self._faults: list[Fault] = []
        self._reserved: dict[LeaderReplica, int] = {}

    async def start(self, site: Site) -> None:
        place = _Place(*site.settings)
        self.disk = place.disk = RoomyDisk()
        self.net = place.net = Wires(self.host)  # type: ignore[assignment]
        self.workers = place.at_once
        self.life = await place.start()
        for topic in site.topics:
            await self.create(topic)
        self.context = self.life.context
        self.pressure = self.context.throttle._tiers = _Pressure()
        server = self.life.broker.components.server
        assert server is not None
        self.server = server
        self._watch()

    def _watch(self) -> None:
        dispatcher = self.life.dispatcher
        run = dispatcher.dispatch_run

        def counted(peer: Any, view: memoryview, pos: int, end: int) -> Any:
            found = run(peer, view, pos, end)
            self.runs[found[0]] += 1
            return found

        def none(peer: Any, view: memoryview, pos: int, end: int) -> Any:
            return 0, pos, None

        dispatcher.dispatch_run = counted if self.short else none  # type: ignore[method-assign]

    async def create(self, topic: Topic) -> None:
        await self.life.context.controller.create_topic(topic.name, topic.partitions, topic.configs)

    async def delete(self, name: str) -> None:
        await self.context.controller.delete_topic(name)

    # ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────
    def wire(self, connection: int) -> Wire:
        found = self.wires.get(connection)
        if found is None or found.closed:
            found = self.wires[connection] = self.net.arrive()
        return found

    def begin(self) -> None:
        """A new history: new connections, the wall clock as it was."""
        for wire in self.wires.values():
            wire.close()
        self.wires.clear()
        self.life.clock.jump_ms = 0

    def reads(self, burst: Burst) -> list[bytes | memoryview]:
        frames: list[bytes | memoryview] = [frame.data for frame in burst.frames]
        if not self.short or burst.cut is Cut.BY_FRAME:
            return frames
        stream = memoryview(b"".join(frames))
        if burst.cut is Cut.AT_ONCE or len(stream) < 2:
            return [stream]
        if burst.cut is Cut.BYTES and len(stream) <= _BYTES_MAX:
            return [stream[at : at + 1] for at in range(len(stream))]
        rng = Random(burst.seed)
        at = sorted({0, len(stream), *(rng.randrange(len(stream)) for _ in range(rng.choice((1, 2, 5, 20))))})
        return [stream[start:end] for start, end in itertools.pairwise(at)]

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────
    def happen(self, what: Happening) -> None:
        """All that takes no time."""
        kind, value = what.kind, what.value
        if kind is Kind.WALL:
            self.life.clock.jump_ms += value
        elif kind is Kind.HOLD:
            self.workers.open.clear()
        elif kind is Kind.RELEASE:
            self.workers.open.set()
        elif kind is Kind.FULL:
            self.disk.limit(value)
        elif kind is Kind.ROOM:
            self.disk.limit(None)
        elif kind is Kind.WRITE_FAILS:
            self._fail("write", what)
        elif kind is Kind.SYNC_FAILS:
            self._fail("sync", what)
        elif kind is Kind.HEAL:
            self.disk.heal()
        elif kind is Kind.SLEEP:
            self.life.clock.slept_s += value / 1000
        elif kind is Kind.PRESSURE:
            self.pressure.local_excess_ratio = value / 1000
        elif kind is Kind.RELAX:
            self.pressure.local_excess_ratio = 0.0
        elif kind is Kind.HANG_UP:
            if value in self.wires:
                self.wires[value].close()
        elif kind in (Kind.RESERVE, Kind.RESERVED, Kind.RESIGN, Kind.LEAD):
            self._to_partition(what)
        else:
            raise AssertionError(what)

    def _fail(self, operation: str, what: Happening) -> None:
        for path in self.disk._names:
            if f"/{what.topic}-{what.index}/" in path and path.endswith(".log"):
                self.disk.inject(operation, errno.EIO, path, times=-1)

    def _to_partition(self, what: Happening) -> None:
        registry = self.context.registry
        key = what.topic, what.index
        if what.kind is Kind.LEAD:
            partition = registry.resigned.get(key)
            if partition is not None:
                row = partition.leader.in_sync.row
                replicas = self.life.replicas
                lease = replicas._logs.lend(partition.opened, f"leader epoch {row.leader_epoch + 1}")
                lease.reserve(partition.lease.reserved_end)
                partition.tier.partition_state.lease = lease
                partition.lead(lease, partition.tier, replace(row, leader_epoch=row.leader_epoch + 1))
                registry.publish(registry.topics[what.topic], [partition])
            return
        if what.kind is Kind.RESERVED:
            for known, end_offset in self._reserved.items():
                known.log.reserved_end = end_offset
                del known.tier.reserve_soon  # type: ignore[attr-defined]
            self._reserved.clear()
            return
        partition = registry.partitions.get(key)
        if partition is None:
            return
        if what.kind is Kind.RESIGN:
            registry.resign(partition)
            partition.resign(Fenced(f"leader epoch {partition.leader_epoch} is over; refresh metadata"))
        elif partition not in self._reserved:
            self._reserved[partition] = partition.log.reserved_end
            partition.log.reserved_end = partition.log.log_end_offset + what.value
            partition.tier.reserve_soon = _nothing  # type: ignore[method-assign]


def _nothing(end_offset: int = 0) -> None:
    """A bucket that does not answer."""


class Pair:
    """Both brokers of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.ways = Way(short=True), Way(short=False)
        self._reasons = _Reasons()

    async def start(self) -> None:
        for way in self.ways:
            await way.start(self.site)
            self._reasons.of[way.host] = way.reasons
        await asyncio.sleep(_SETTLED_S)
        _REASONS.addHandler(self._reasons)
        _REASONS.setLevel(logging.DEBUG)

    async def close(self) -> None:
        _REASONS.removeHandler(self._reasons)
        async with asyncio.timeout(_CHANGE_S):
            for way in self.ways:
                way.workers.open.set()
                await way.life.crash()

    def begin(self) -> None:
        for way in self.ways:
            way.begin()

    async def perform(self, step: Burst | Happening) -> None:
        """Both, until nothing moves any more by itself but what waits for time to pass."""
        if isinstance(step, Burst):
            await self._give(step)
        elif step.kind is Kind.PASS:
            await asyncio.sleep(step.value / 1000)
        elif step.kind in (Kind.DELETE, Kind.CREATE):
            await self._change(step)
        else:
            for way in self.ways:
                way.happen(step)
        await settled()

    async def _give(self, burst: Burst) -> None:
        for way in self.ways:
            wire = way.wire(burst.connection)
            reads = way.reads(burst)
            if burst.turns:
                for piece in reads:
                    wire.give((piece,))
                    await asyncio.sleep(0)
            else:
                wire.give(reads)

    async def _change(self, step: Happening) -> None:
        topic = next(topic for topic in self.site.topics if topic.name == step.topic)
        exists = topic.name in self.ways[0].context.registry.topics
        if exists is (step.kind is Kind.CREATE):
            return
        made = [way.delete(topic.name) if step.kind is Kind.DELETE else way.create(topic) for way in self.ways]
        async with asyncio.timeout(_CHANGE_S):
            await asyncio.gather(*made)


async def settled() -> None:
    """Until no callback is left but timers."""
    loop: Any = asyncio.get_running_loop()
    quiet = 0
    while quiet < 2:
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1
