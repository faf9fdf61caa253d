"""Times in this process, on one core, what the whole way of a produce request costs: the table of µs a request.

    bench/produce_path.py                    a whole broker, bytes given to its connection as a transport would
    bench/produce_path.py --sockets          the same through a socket pair; a child process is the producer
    bench/produce_path.py --beside CHECKOUT  another version in turns with this one, each in processes of its own

Figures are the CPU time of the loop's thread over runs of 30 ms: medians, and the quarters around them in brackets.
What is written goes round and round in 64 MiB of memory, so that neither a disk nor the first touch of fresh pages is
measured. Nothing here knows more of the broker than how it starts, and that connections are asyncio protocols: so any
version of it can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import platform
import socket
import statistics
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import crc32c

from broker.app import Broker, open_configured_bucket
from broker.config.resolve import resolve
from broker.net.server import Bind
from broker.wire import codec
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from broker.wire.framing import parse_response_header, request_frame
from logformat.records import Record, encode_batch
from seams.clock import SystemClock
from seams.net import TcpNet
from seams.rng import SystemRng
from seams.world import World

try:
    from seams.files.disk import Buffer, File
    from seams.files.posix_disk import PosixDisk, PosixFile
    from seams.files.syncs import KernelSyncs
    from seams.loop.workers import ThreadWorkers
except ImportError:  # an older version, beside this one
    from seams.disk import Buffer, File  # type: ignore[import-not-found,no-redef]
    from seams.posix_disk import PosixDisk, PosixFile  # type: ignore[import-not-found,no-redef]
    from seams.syncs import KernelSyncs  # type: ignore[import-not-found,no-redef]
    from seams.workers import ThreadWorkers  # type: ignore[import-not-found,no-redef]

SIZES: Final = {"100 B": 100, "1 KB": 1 << 10, "16 KB": 16 << 10, "128 KB": 128 << 10, "1 MB": 1 << 20}
RUNS: Final = (1, 5)  # requests that arrive in one read
ROUND_BYTES: Final = 64 << 20
CHUNK_S: Final = 0.03
CHUNK_BYTES: Final = 32 << 20  # of requests made in advance
ROUNDS: Final = 5  # of each version
MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_IDENTITY: Final = struct.Struct(">qhi")  # producer id, epoch, base sequence
_IDENTITY_AT, _CRC_AT, _CRC_FROM = 43, 17, 21


class Requests:
    """Produce requests of one shape, `run` of them in a delivery; with `idempotent` the sequence goes on and on."""

    def __init__(self, topic: str, size: int, run: int, options: argparse.Namespace) -> None:
        self.run = run
        self._topic = topic
        self._options = options
        self._sequence = 0
        record = min(1000, size - 61 - 9) if size < 1024 else 1000
        count = max(1, (size - 61) // (record + 12))
        now_ms = int(time.time() * 1000)
        self._records = count
        self._batch = bytearray(encode_batch([Record(at, now_ms, None, bytes(record)) for at in range(count)]))
        self.records = 0  # of each partition, in all that was made
        self.frame_bytes = len(self._frame())

    def deliveries(self, count: int, run: int = 0) -> list[bytes]:
        """So many, each to arrive at once."""
        run = run or self.run
        self.records += count * run * self._records
        if not self._options.idempotent:
            return [self._frame() * run] * count
        return [b"".join(self._next() for _ in range(run)) for _ in range(count)]

    def _next(self) -> bytes:
        _IDENTITY.pack_into(self._batch, _IDENTITY_AT, 4711, 0, self._sequence)
        crc = crc32c.crc32c(memoryview(self._batch)[_CRC_FROM:])
        self._batch[_CRC_AT:_CRC_FROM] = crc.to_bytes(4, "big")
        self._sequence += self._records
        return self._frame()

    def _frame(self) -> bytes:
        options, batch = self._options, memoryview(self._batch)
        data = [m.ProduceRequestPartition(index=at, records=batch) for at in range(options.partitions)]
        topics = [m.ProduceRequestTopic(name=self._topic, partition_data=data)]
        request = m.ProduceRequest(acks=-1 if options.acks == "all" else 1, timeout_ms=30_000, topic_data=topics)
        body = codec.encode_request(ApiKey.PRODUCE, options.version, request)
        return b"".join(request_frame(ApiKey.PRODUCE, options.version, 7, "load", body))  # type: ignore[arg-type]


class RoundFile(PosixFile):
    """Stays empty: what is written goes round and round through the same memory, or (`--no-write`) nowhere."""

    ring = -1  # a file of ROUND_BYTES in memory, touched; without one nothing is written

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        if self.ring < 0:
            return sum(map(len, buffers))
        return os.pwritev(self.ring, buffers, position % ROUND_BYTES)

    def allocate_ahead(self, position: int, end: int) -> None:
        """There is no disk."""


def touched_ring() -> int:
    """A descriptor; a batch may reach beyond the end."""
    ring = os.memfd_create("ring")
    for position in range(0, ROUND_BYTES + (16 << 20), 1 << 20):
        os.pwrite(ring, bytes(1 << 20), position)
    return ring


class RoundDisk(PosixDisk):
    """Logs are `RoundFile`s."""

    def open(self, path: str, **how: Any) -> File:
        file = super().open(path, **how)
        descriptor = file.descriptor()
        if "/bench-" not in path or not path.endswith(".log") or descriptor is None:
            return file
        return RoundFile(os.dup(descriptor), path)


class Wire(asyncio.Transport):
    """A transport whose peer takes everything at once."""

    def __init__(self, connection: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._connection = connection
        self.reading = True
        self.closed = False
        self.answered = 0  # bytes
        self.last = b""

    def write(self, data: Buffer) -> None:
        self.answered += len(data)
        self.last = bytes(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    close = abort

    async def turn(self) -> None:
        """Let the broker's loop go on."""
        if self.closed:
            raise RuntimeError("the broker closed the connection; --log tells why")
        await asyncio.sleep(0)


class Given:
    """Requests given to the connection as its transport would."""

    def __init__(self, connection: asyncio.BufferedProtocol, requests: Requests) -> None:
        self._connection = connection
        self._requests = requests
        self._wire = Wire(connection)
        connection.connection_made(self._wire)

    async def one(self) -> bytes:
        """The answer to a lone request."""
        await self._give(self._requests.deliveries(1, 1), 1)
        return self._wire.last

    async def spend_s(self, count: int, answer_bytes: int) -> float:
        """CPU seconds of `count` deliveries."""
        made = self._requests.deliveries(count)
        await asyncio.sleep(0)
        began = time.thread_time()
        await self._give(made, answer_bytes * count * self._requests.run)
        return time.thread_time() - began

    async def _give(self, deliveries: list[bytes], answer_bytes: int) -> None:
        connection, wire = self._connection, self._wire
        wanted = wire.answered + answer_bytes
        for delivery in deliveries:
            view = memoryview(delivery)
            while view:
                if not wire.reading:
                    await wire.turn()
                    continue
                buffer = connection.get_buffer(-1)
                piece = view[: len(buffer)]
                buffer[: len(piece)] = piece
                connection.buffer_updated(len(piece))
                view = view[len(piece) :]
        while wire.answered < wanted:
            await wire.turn()


class Sent:
    """Requests sent through a socket pair by a child process, one delivery after the other's answers."""

    def __init__(self, connection: asyncio.BufferedProtocol, requests: Requests) -> None:
        self._connection: asyncio.BufferedProtocol | None = connection
        self._requests = requests
        self._ours, theirs = socket.socketpair()
        self._orders, orders = socket.socketpair()
        self._child = os.fork()
        if not self._child:
            with suppress(BaseException):
                self._ours.close()
                self._orders.close()
                self._produce(theirs, orders)
            os._exit(0)
        theirs.close()
        orders.close()
        self._ours.setblocking(False)
        self._orders.setblocking(False)

    async def one(self) -> bytes:
        loop = asyncio.get_running_loop()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await loop.connect_accepted_socket(lambda: connection, self._ours)
        self._requests.deliveries(1, 1)
        await self._order(1, 0)
        size = int.from_bytes(await loop.sock_recv(self._orders, 8), "big")
        return await loop.sock_recv(self._orders, size)

    async def spend_s(self, count: int, answer_bytes: int) -> float:
        self._requests.deliveries(count)  # its count; the child made its own
        await self._order(count, answer_bytes)
        began = time.thread_time()
        await self._order(0, 0)
        return time.thread_time() - began

    async def _order(self, count: int, answer_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._orders, struct.pack(">qq", count, answer_bytes))
        await loop.sock_recv(self._orders, 1)

    def _produce(self, wire: socket.socket, orders: socket.socket) -> None:
        requests, made = self._requests, [b""]
        run_bytes = 0
        while True:
            count, answer_bytes = struct.unpack(">qq", orders.recv(16, socket.MSG_WAITALL))
            if count and answer_bytes:
                made = requests.deliveries(count)
                run_bytes = answer_bytes * requests.run
            elif count:
                wire.sendall(requests.deliveries(1, 1)[0])
                answer = wire.recv(1 << 16)
                orders.sendall(b"." + len(answer).to_bytes(8, "big") + answer)
                continue
            else:
                for delivery in made:
                    wire.sendall(delivery)
                    left = run_bytes
                    while left:
                        left -= len(wire.recv(left))
            orders.sendall(b".")


@asynccontextmanager
async def in_process(root: str) -> AsyncIterator[Broker]:
    """A broker on a directory bucket, its memory-backed disk below `root`."""
    workers = ThreadWorkers()
    syncs = KernelSyncs(workers)
    world = World(RoundDisk(), workers, syncs, SystemClock(), SystemRng(), TcpNet(), gc.freeze)
    flags = {"log.dirs": f"{root}/data", "thermocline.bucket": f"file://{root}/bucket"}
    flags |= {"listeners": "PLAINTEXT://127.0.0.1:0", "thermocline.http": ""}
    os.makedirs(f"{root}/bucket")
    broker = Broker(resolve(flags, ["thermocline.flush=os"], {}, None), world, open_configured_bucket)
    try:
        await broker.start(asyncio.Event())
        yield broker
    finally:
        await broker.close()
        syncs.close()
        workers.close()


async def produce_us(broker: Broker, topic: str, size: int, run: int, options: argparse.Namespace) -> list[float]:
    """µs of CPU a request, a run of CHUNK_S each."""
    server = broker.components.server
    assert server is not None
    controller = server._shared.dispatcher.context.controller  # type: ignore[attr-defined]
    await controller.create_topic(topic, options.partitions, {"segment.bytes": str((1 << 31) - 1)})
    requests = Requests(topic, size, run, options)
    way = (Sent if options.sockets else Given)(server._connection(Bind("PLAINTEXT", "", 0)), requests)
    answer = await way.one()
    check(answer, 0, options.version)
    count, found = 10, []
    while len(found) < options.chunks:
        spent_s = await way.spend_s(count, len(answer))
        wanted = round(count * CHUNK_S / max(spent_s, 1e-4))
        wanted = max(5, min(wanted, CHUNK_BYTES // (requests.frame_bytes * run)))
        if wanted > 2 * count:
            count = wanted  # was not warm, or too short to be measured
        else:
            found.append(spent_s / count / run * 1e6)
    written = requests.records
    check(await way.one(), written, options.version)
    await controller.delete_topic(topic)
    return found


def check(answer: bytes, base_offset: int, version: int) -> None:
    """RuntimeError unless it says that the batch lies at that offset, so that all before it were written."""
    body = memoryview(answer)[4:]
    _, start = parse_response_header(body, ApiKey.PRODUCE, version)
    for partition in codec.decode_response(ApiKey.PRODUCE, version, body[start:]).responses[0].partition_responses:
        if (partition.error_code, partition.base_offset) != (0, base_offset):
            raise RuntimeError(f"offset {base_offset} was wanted, this came: {partition}")


async def produce_rows(options: argparse.Namespace) -> dict[str, list[float]]:
    """The figures of each row that was asked for."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="thermocline-produce-path-") as root:
        async with in_process(root) as broker:
            return {
                f"{name} in runs of {run}": await produce_us(broker, f"bench-{size}-{run}", size, run, options)
                for name, size in SIZES.items()
                for run in options.runs
                if name in (options.only or SIZES)
            }


def compare(beside: Path, arguments: list[str]) -> None:
    """Both versions in turns, ROUNDS processes each."""
    found: dict[str, list[dict[str, float]]] = {"": [], str(beside.resolve()): []}
    for _ in range(ROUNDS):
        for checkout, rounds in found.items():
            code = {"PYTHONSAFEPATH": "1", "PYTHONPATH": checkout or str(Path(__file__).resolve().parent.parent)}
            words = [sys.executable, __file__, *arguments, "--json"]
            done = subprocess.run(words, env={**os.environ, **code}, stdout=subprocess.PIPE, check=True)
            rounds.append(json.loads(done.stdout))
    ours, theirs = found.values()
    for row in ours[0]:
        a, b = ([one[row] for one in side] for side in (theirs, ours))
        ratio = statistics.median(b) / statistics.median(a)
        print(f"{row:24} {beside.name}: {told(a)}   this: {told(b)}   {ratio:.3f}×")


def told(figures: Sequence[float]) -> str:
    """Median, and the quarters around it."""
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive")
    return f"{middle:8.2f} µs ({low:.2f}–{high:.2f})"


def main() -> None:
    """Print one line per row."""
    beside = argparse.ArgumentParser(add_help=False)
    beside.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another version of ours, in turns")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[beside]
    )
    parser.add_argument("--sockets", action="store_true", help="through a socket pair")
    parser.add_argument("--only", action="append", choices=SIZES, metavar="SIZE", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS, help="requests that arrive at once")
    parser.add_argument("--idempotent", action="store_true", help="with producer id and sequences")
    parser.add_argument("--partitions", type=int, default=1, help="of the topic, a batch for each in every request")
    parser.add_argument("--acks", choices=("1", "all"), default="1", help="all: the disk never waits (flush=os)")
    parser.add_argument("--version", type=int, default=7, help="of the Produce request")
    parser.add_argument("--no-write", action="store_true", help="pwrite left out")
    parser.add_argument("--chunks", type=int, default=15, help="runs of 30 ms a row")
    parser.add_argument("--log", action="store_true", help="the broker's log on stderr")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside is not None:
        compare(options.beside, beside.parse_known_args()[1])
        return
    if not options.no_write:
        RoundFile.ring = touched_ring()
    logging.basicConfig(level="INFO" if options.log else "CRITICAL")
    found = asyncio.run(produce_rows(options))
    if options.json:
        print(json.dumps({row: statistics.median(figures) for row, figures in found.items()}))
        return
    print(f"Python {platform.python_version()}: {sysconfig.get_config_var('CONFIG_ARGS')}")
    for row, figures in found.items():
        print(f"{row:24} {told(figures)}")


if __name__ == "__main__":
    main()
