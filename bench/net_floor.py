"""The floor of the TCP side: `broker.net` alone under the load generator, beside two loops that do less.

Servers: `thermocline` = broker.net.Server; `bare` = a BufferedProtocol without limits, queues or flow control, the most
asyncio can do; `naive` = data_received and bytes joined. All answer Produce v7 the same way (CRC checked, offset
stamped, one pwrite) and Fetch v11 from one file (`thermocline` by sendfile, the others by pread).

    python bench/net_floor.py [--seconds 3] [--rounds 3] [--only PART] [--servers thermocline,bare]

Servers take turns within a round, so that other work on the machine meets all of them. Needs gcc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import crc32c

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker.net.dispatch import Part, Peer  # noqa: E402
from broker.net.limits import NetLimits  # noqa: E402
from broker.net.server import Bind, Server  # noqa: E402
from seams.files.disk import FileRange  # noqa: E402
from seams.files.posix_disk import PosixDisk  # noqa: E402
from seams.loop.tasks import log_failure  # noqa: E402
from seams.net import TcpNet  # noqa: E402
from tests.support.workers import InlineWorkers  # noqa: E402

TOPIC = b"bench"
FILE_BYTES = 64 << 20  # read and written round and round: the page cache is measured, neither disk nor fresh memory

CASES: dict[str, list[str]] = {
    "100 B x 16 x 5": ["-m", "produce", "-c", "16", "-k", "5", "-b", "100", "-s", "20"],
    "1 KB x 16 x 5": ["-m", "produce", "-c", "16", "-k", "5", "-b", "1024", "-s", "100"],
    "16 KB x 4 x 5": ["-m", "produce", "-c", "4", "-k", "5", "-b", "16384", "-s", "1000"],
    "128 KB x 4 x 5": ["-m", "produce", "-c", "4", "-k", "5", "-b", "131072", "-s", "1000"],
    "1 MB x 4 x 5": ["-m", "produce", "-c", "4", "-k", "5", "-b", "1048576", "-s", "1000"],
    "1 MB x 1 x 5": ["-m", "produce", "-c", "1", "-k", "5", "-b", "1048576", "-s", "1000"],
    "1 KB at 4000/s": ["-m", "produce", "-c", "4", "-k", "5", "-b", "1024", "-s", "100", "-R", "4000"],
    "fetch 64 KB x 1": ["-m", "fetch", "-c", "1", "-k", "1", "-F", "65536", "-S", str(FILE_BYTES), "-D"],
    "fetch 1 MB x 1": ["-m", "fetch", "-c", "1", "-k", "1", "-F", "1048576", "-S", str(FILE_BYTES), "-D"],
    "fetch 10 MB x 1": ["-m", "fetch", "-c", "1", "-k", "1", "-F", "10485760", "-S", str(FILE_BYTES), "-D"],
    "fetch 1 MB x 4": ["-m", "fetch", "-c", "4", "-k", "2", "-F", "1048576", "-S", str(FILE_BYTES), "-D"],
}

_HEADER = struct.Struct(">hhih")
_PRODUCE = struct.Struct(">hhiih")  # transactional id length, acks, timeout, topics, topic name length
_PARTITION = struct.Struct(">iii")  # partitions, partition, records length
_ANSWER = struct.Struct(f">iiih{len(TOPIC)}siihqqqi")
_FETCH_ANSWER = struct.Struct(f">iiihiih{len(TOPIC)}siihqqqiii")
_INT64 = struct.Struct(">q")


class Floor:
    """The least a broker must do for a produce or a fetch."""

    def __init__(self, directory: str) -> None:
        disk = PosixDisk()
        self.log = disk.open(f"{directory}/produce.log", write=True, create=True)
        self.log_fd = self.log.descriptor()
        self.fetched = disk.open(f"{directory}/fetch.log", write=True, create=True)
        chunk = os.urandom(1 << 20)
        for position in range(0, FILE_BYTES, len(chunk)):
            self.fetched.write_at(position, [chunk])
            self.log.write_at(position, [chunk])
        self.position = 0
        self.offset = 0

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, list[Part] | None]:
        return 0, pos, None

    def dispatch(self, peer: Peer, frame: memoryview) -> list[Part]:
        key, _version, correlation_id, name_length = _HEADER.unpack_from(frame)
        if key == 1:
            return self.fetch(correlation_id, frame)
        return [self.produce(correlation_id, frame, 10 + name_length)]

    def produce(self, correlation_id: int, frame: memoryview, at: int) -> bytes:
        _, _, _, _, topic_length = _PRODUCE.unpack_from(frame, at)
        at += _PRODUCE.size + topic_length
        _, partition, length = _PARTITION.unpack_from(frame, at)
        at += _PARTITION.size
        batch = frame[at : at + length]
        (crc,) = struct.unpack_from(">I", batch, 17)
        if crc32c.crc32c(batch[21:]) != crc:
            raise ValueError("crc")
        self.offset += 1
        _INT64.pack_into(batch, 0, self.offset)
        if self.position + length > FILE_BYTES:
            self.position = 0
        os.pwrite(self.log_fd, batch, self.position)
        self.position += length
        size = _ANSWER.size - 4
        return _ANSWER.pack(size, correlation_id, 1, len(TOPIC), TOPIC, 1, partition, 0, self.offset, -1, 0, 0)

    def fetch(self, correlation_id: int, frame: memoryview) -> list[Part]:
        at = len(frame) - 6 - 28
        position, _, length = struct.unpack_from(">qqi", frame, at + 8)
        size = _FETCH_ANSWER.size - 4 + length
        head = _FETCH_ANSWER.pack(
            size, correlation_id, 0, 0, 0, 1, len(TOPIC), TOPIC, 1, 0, 0, 1 << 40, 1 << 40, 0, -1, -1, length
        )
        return [head, FileRange(self.fetched, position, length)]


class Bare(asyncio.BufferedProtocol):
    """A receive buffer a connection, nothing else."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.view = memoryview(bytearray(2 << 20))
        self.end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view[self.end :]

    def buffer_updated(self, nbytes: int) -> None:
        self.end += nbytes
        view, end, position = self.view, self.end, 0
        out: list[bytes] = []
        while end - position >= 4:
            stop = position + 4 + int.from_bytes(view[position : position + 4])
            if stop > end:
                break
            answer = self.floor.dispatch(None, view[position + 4 : stop])  # type: ignore[arg-type]
            out += (p if isinstance(p, bytes) else p.file.read_at(p.position, p.length) for p in answer)
            position = stop
        rest = end - position
        if position and rest:
            view[:rest] = bytes(view[position:end])
        self.end = rest
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))


class Naive(asyncio.Protocol):
    """data_received, pieces joined."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.pieces = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces += data
        while len(self.pieces) >= 4:
            stop = 4 + int.from_bytes(self.pieces[:4])
            if len(self.pieces) < stop:
                return
            frame = self.pieces[4:stop]
            del self.pieces[:stop]
            for part in self.floor.dispatch(None, memoryview(frame)):  # type: ignore[arg-type]
                self.transport.write(
                    part if not isinstance(part, FileRange) else part.file.read_at(part.position, part.length)
                )


async def serve(kind: str, directory: str, profile: str | None) -> None:
    floor = Floor(directory)
    if kind == "thermocline":
        server = Server(TcpNet(), floor, NetLimits(), log_failure, workers=InlineWorkers())
        await server.bind([Bind("PLAINTEXT", "127.0.0.1", 0)])
        await server.accept()
        port = server.addresses["PLAINTEXT"][1]
    else:
        made = Bare if kind == "bare" else Naive
        listening = await asyncio.get_running_loop().create_server(lambda: made(floor), "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
    print(port, flush=True)
    if profile:
        import cProfile

        profiler = cProfile.Profile()
        profiler.enable()
        asyncio.get_running_loop().call_later(float(profile), asyncio.get_running_loop().stop)
        asyncio.get_running_loop().call_later(float(profile) - 0.1, profiler.print_stats, "tottime")
    await asyncio.get_running_loop().create_future()


def load_generator() -> Path:
    build = HERE / ".build"
    build.mkdir(exist_ok=True)
    program = build / "loadgen"
    source = HERE / "peers" / "loadgen.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-msse4.2", "-o", program, source, "-lm"], check=True)
    return program


def measure(kind: str, case: str, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, "--directory", directory], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            options = ["-p", port, "-T", TOPIC.decode(), "-t", str(seconds), "-w", "0.5", "-P", str(server.pid)]
            run = subprocess.run([load_generator(), *CASES[case], *options], capture_output=True, text=True)
            if run.returncode:
                raise SystemExit(f"{kind} {case}: {run.stderr}")
            return json.loads(run.stdout)
        finally:
            server.kill()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--servers", default="thermocline,bare,naive")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve, arguments.directory, arguments.profile))
        return
    kinds = arguments.servers.split(",")
    print(
        f"{'case':18} {'server':12} {'req/s':>9} {'MB/s':>7} {'p50 ms':>8} {'p99 ms':>8} {'CPU s/GB':>9} {'µs/req':>7}"
    )
    for case in [name for name in CASES if arguments.only in name]:
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(arguments.rounds):
            for kind in kinds:
                found[kind].append(measure(kind, case, arguments.seconds))
        for kind in kinds:
            figures = {
                key: statistics.median(run[key] for run in found[kind]) for key in found[kind][0] if key != "mode"
            }
            print(
                f"{case:18} {kind:12} {figures['rps']:9.0f} {figures['MBps']:7.0f} {figures['p50']:8.3f} "
                f"{figures['p99']:8.3f} {figures['cpu_s_GB']:9.3f} {figures['cpu_s_1k'] * 1000:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
