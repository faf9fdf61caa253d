"""Many partitions and many connections on one real broker: memory, start-up, idle CPU, fetches of sessions.

    bench/many.py                          5 000 partitions, 2 000 connections; writes its section of bench/RESULTS.md
    bench/many.py --partitions 500 --connections 400 --idle 10   quickly; nothing is written

Everything is read from outside: /proc of the broker's process, and raw requests on sockets. The broker runs with its
default settings on a directory bucket.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import parse_response_header, request_frame
from broker.wire.message import Message
from broker.wire.messages import (
    ApiVersionsRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from logformat.records import Record, encode_batch
from tests.support.processes.broker_process import BrokerProcess, await_ready, start_broker

BENCH: Final = Path(__file__).parent
TICKS: Final = os.sysconf("SC_CLK_TCK")
SECTION: Final = "## Many partitions, many connections"
TOPIC_PARTITIONS: Final = 100
FETCHES: Final = 2_000
SESSIONS: Final = 10


class Figures:
    """What was measured, a line each, in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, what: str, figure: str, bound: str = "–") -> None:
        self.rows.append((what, figure, bound))
        print(f"{what:<72} {figure:>16}   {bound}", flush=True)


def private_kib(pid: int) -> int:
    """Memory that is this process's alone, in KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(found) for found in re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", text, re.MULTILINE))


def cpu_s(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def idle_cpu(pid: int, seconds: float) -> float:
    """Share of a core over a time in which nobody asks anything."""
    began, spent = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - spent) / (time.monotonic() - began)


class Wire:
    """A raw connection."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, key: ApiKey, version: int, request: Message) -> Any:
        frame = self.exchange(b"".join(request_frame(key, version, 1, "many", encode_request(key, version, request))))
        _, start = parse_response_header(frame, key, version)
        return decode_response(key, version, frame[start:])

    def exchange(self, frame: bytes) -> memoryview:
        """The answer to a request, both as bytes."""
        self.socket.sendall(frame)
        return memoryview(self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@contextmanager
def serving(data: Path, bucket: Path) -> Iterator[tuple[BrokerProcess, float]]:
    """A broker, and the seconds until it was ready."""
    began = time.monotonic()
    broker = start_broker(data, f"file://{bucket}", wait_ready=False)
    await_ready(broker, 600)
    try:
        yield broker, time.monotonic() - began
    finally:
        if broker.process.poll() is None:
            broker.kill()


def topics_of(partitions: int) -> list[tuple[str, int]]:
    whole, rest = divmod(partitions, TOPIC_PARTITIONS)
    sizes = [TOPIC_PARTITIONS] * whole + ([rest] if rest else [])
    return [(f"many-{at:03}", size) for at, size in enumerate(sizes)]


def create(address: str, topics: list[tuple[str, int]]) -> float:
    """Seconds until all of them serve."""
    admin = AdminClient({"bootstrap.servers": address})
    began = time.monotonic()
    for at in range(0, len(topics), 10):
        wanted = [NewTopic(name, num_partitions=size, replication_factor=1) for name, size in topics[at : at + 10]]
        for created in admin.create_topics(wanted, request_timeout=120, operation_timeout=120).values():
            created.result(180)
    return time.monotonic() - began


def partitions(figures: Figures, broker: BrokerProcess, topics: list[tuple[str, int]], idle_s: float) -> None:
    """What they cost while nobody uses them."""
    count = sum(size for _, size in topics)
    before = private_kib(broker.pid)
    empty = idle_cpu(broker.pid, idle_s)
    took = create(broker.kafka, topics)
    time.sleep(5)
    each = (private_kib(broker.pid) - before) / count
    figures.add(f"create {count} partitions", f"{took:.1f} s")
    figures.add(f"memory of an idle partition ({count})", f"{each:.1f} KiB", "≤ 40 KiB")
    figures.add("idle CPU without partitions, share of a core", f"{empty:.2%}")
    figures.add(f"idle CPU with {count} partitions just created", f"{idle_cpu(broker.pid, idle_s):.2%}")


def connections(figures: Figures, broker: BrokerProcess, count: int) -> None:
    """What each costs after its first request."""
    hello = b"".join(request_frame(ApiKey.API_VERSIONS, 3, 1, "many", encode_request(ApiKey.API_VERSIONS, 3, HELLO)))
    warm = Wire(broker.kafka)
    warm.exchange(hello)
    warm.socket.close()
    time.sleep(1)  # max.connections.per.ip counts it until it is seen closed
    before = private_kib(broker.pid)
    opened = []
    began = time.monotonic()
    for _ in range(count):
        opened.append(Wire(broker.kafka))
        opened[-1].exchange(hello)
    took = time.monotonic() - began
    time.sleep(1)
    each = (private_kib(broker.pid) - before) / count
    figures.add(f"memory of an idle connection ({count})", f"{each:.1f} KiB", "≤ 20 KiB")
    figures.add(f"open {count} connections, one request each", f"{took:.1f} s")
    figures.add(f"idle CPU with {count} connections", f"{idle_cpu(broker.pid, 10):.2%}")
    for wire in opened:
        wire.socket.close()


HELLO: Final = ApiVersionsRequest(client_software_name="many", client_software_version="1")


def sessions(figures: Figures, broker: BrokerProcess, topics: list[tuple[str, int]]) -> None:
    """Full and incremental fetches over all partitions of all topics."""
    count = sum(size for _, size in topics)
    wanted = [
        FetchRequestTopic(
            topic=name,
            partitions=[FetchRequestPartition(partition=at, partition_max_bytes=1 << 20) for at in range(size)],
        )
        for name, size in topics
    ]
    wire = Wire(broker.kafka)
    before, ids = private_kib(broker.pid), []
    for _ in range(SESSIONS):
        begun = wire.call(ApiKey.FETCH, 12, FetchRequest(max_bytes=1 << 26, session_epoch=0, topics=wanted))
        assert begun.session_id, "no session"
        ids.append(begun.session_id)
    asks = [_Incremental(session_id) for session_id in ids]
    for ask in asks:
        wire.exchange(ask.next())
    each = (private_kib(broker.pid) - before) / count / SESSIONS
    figures.add(f"memory of a partition in a session ({SESSIONS} sessions of {count})", f"{each * 1024:.0f} B")
    full = b"".join(_fetch(FetchRequest(max_bytes=1 << 26, session_epoch=-1, topics=wanted)))
    figures.add(f"full fetch of {count} partitions, nothing new", _each(wire, [full] * 30, broker.pid))
    quiet = _each(wire, [ask.next() for _ in range(FETCHES)], broker.pid)
    figures.add(f"incremental fetch over {count} partitions, nothing new", quiet, "≤ 5 ms")
    record = encode_batch([Record(0, int(time.time() * 1000), None, b"v" * 100)])
    data = ProduceRequestPartition(index=0, records=memoryview(record))
    produce = ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[ProduceRequestTopic(name=topics[0][0], partition_data=[data])]
    )
    waits = []
    other = Wire(broker.kafka)
    for at in range(100):
        wire.socket.sendall(ask.next(wait_ms=10_000, taken=(topics[0][0], at)))
        time.sleep(0.002)
        began = time.perf_counter()
        other.call(ApiKey.PRODUCE, 9, produce)
        wire._read(int.from_bytes(wire._read(4), "big"))
        waits.append(time.perf_counter() - began)
    figures.add(
        "produce acks=1 to the answer of the long poll that waits for it", f"{statistics.median(waits) * 1e3:.2f} ms"
    )
    wire.socket.close()
    other.socket.close()


class _Incremental:
    """The frames of a session's next fetches."""

    def __init__(self, session_id: int) -> None:
        self._session_id = session_id
        self._epoch = 0

    def next(self, wait_ms: int = 0, taken: tuple[str, int] | None = None) -> bytes:
        self._epoch += 1
        topics = []
        if taken is not None:
            part = FetchRequestPartition(partition=0, fetch_offset=taken[1], partition_max_bytes=1 << 20)
            topics = [FetchRequestTopic(topic=taken[0], partitions=[part])]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 26,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=topics,
        )
        return b"".join(_fetch(request))


def _fetch(request: FetchRequest) -> list[Any]:
    return request_frame(ApiKey.FETCH, 12, 1, "many", encode_request(ApiKey.FETCH, 12, request))


def _each(wire: Wire, frames: list[bytes], pid: int) -> str:
    """Median time of an exchange, and the broker's CPU for one."""
    spent, times = cpu_s(pid), []
    for frame in frames:
        began = time.perf_counter()
        wire.exchange(frame)
        times.append(time.perf_counter() - began)
    cpu_us = (cpu_s(pid) - spent) / len(frames) * 1e6
    return f"{statistics.median(times) * 1e6:.0f} µs ({cpu_us:.0f} µs CPU)"


def run(figures: Figures, root: Path, count: int, connection_count: int, idle_s: float, settle_s: float) -> None:
    data, bucket = root / "data", root / "bucket"
    bucket.mkdir()
    topics = topics_of(count)
    with serving(data, bucket) as (broker, took):
        figures.add("start to ready, nothing there", f"{took:.2f} s")
        connections(figures, broker, connection_count)
        partitions(figures, broker, topics, idle_s)
        sessions(figures, broker, topics)
        began = time.monotonic()
        broker.process.terminate()
        broker.wait(600)
        figures.add(f"clean stop with {count} partitions", f"{time.monotonic() - began:.1f} s")
    with serving(data, bucket) as (broker, took):
        figures.add(f"start to ready with {count} partitions, after a clean stop", f"{took:.1f} s")
        figures.add("resident memory then", f"{private_kib(broker.pid) / 1024:.0f} MiB")
        figures.add(f"idle CPU with {count} partitions, first minute: claims, gc", f"{idle_cpu(broker.pid, 60):.2%}")
        time.sleep(settle_s)
        figures.add(f"idle CPU with {count} partitions", f"{idle_cpu(broker.pid, idle_s):.2%}")
        broker.kill()
    with serving(data, bucket) as (broker, took):
        figures.add(f"start to ready with {count} partitions, after kill -9", f"{took:.1f} s")


def write(figures: Figures, command: str) -> None:
    """Replace our section of bench/RESULTS.md."""
    lines = [SECTION, "", f"`{command}`, {time.strftime('%Y-%m-%d')}; default settings, directory bucket.", ""]
    lines += ["| what | figure | bound |", "|---|---|---|"]
    lines += [f"| {what} | {figure} | {bound} |" for what, figure, bound in figures.rows]
    replace_section(BENCH / "RESULTS.md", SECTION, "\n".join(lines))


def replace_section(path: Path, heading: str, text: str) -> None:
    """Put `text`, which begins with `heading`, where that section is, else at the end."""
    sections = re.split(r"(?m)^(?=## )", path.read_text())
    ours = text.rstrip("\n") + "\n"
    found = [at for at, section in enumerate(sections) if section.startswith(heading + "\n")]
    if found:
        last = found[0] == len(sections) - 1
        sections[found[0]] = ours if last else ours + "\n"
    else:
        sections[-1] = sections[-1].rstrip("\n") + "\n\n"
        sections.append(ours)
    path.write_text("".join(sections))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--connections", type=int, default=2_000)
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long idleness is measured")
    parser.add_argument("--settle", type=float, default=150.0, metavar="SECONDS", help="gc runs within two graces")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="thermocline-many-"))
    figures = Figures()
    with ExitStack() as over:
        over.callback(shutil.rmtree, root, ignore_errors=True)
        run(figures, root, options.partitions, options.connections, options.idle, options.settle)
    if (options.partitions, options.connections) == (5_000, 2_000) and not options.dry:
        write(figures, "bench/many.py")


if __name__ == "__main__":
    main()
