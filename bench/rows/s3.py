"""Rows with a bucket on S3 (versitygw): cold reads against bare GETs, produce beside uploads, and what is billed.

Beside another version of ours, that one does the same in the place of bare GETs, and of produce without uploads."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from bench import loads
from bench.sides import BENCH, Side, Thermocline, create, wait_cold
from bench.stage import Stage
from bench.table import Floor, Measured, Row
from coldstore.stores.s3 import S3Store
from coldstore.url import S3Url
from seams.clock import SystemClock
from seams.loop.workers import ThreadWorkers
from tests.support.store.s3_servers import S3Server, versitygw_server

DELAY_MS: Final = 20
RANGE: Final = 4 << 20
RANGES_AT_ONCE: Final = 4
COLD_BYTES: Final = 1 << 30


@contextmanager
def range_server(directory: str, upstream: S3Server) -> Iterator[S3Server]:
    """bench/range_server.py in front of `upstream`, which keeps its buckets in `directory`."""
    words = [
        sys.executable,
        str(BENCH / "range_server.py"),
        directory,
        urlsplit(upstream.endpoint).netloc,
        str(DELAY_MS),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield S3Server(f"http://127.0.0.1:{process.stdout.readline().strip()}")
        finally:
            process.stdin.close()


def large_objects(server: S3Server, bucket: str) -> dict[str, int]:
    """Keys and sizes of the segment objects."""
    client: Any = server.client()  # type: ignore[no-untyped-call]
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    found = {entry["Key"]: int(entry["Size"]) for page in pages for entry in page.get("Contents", [])}
    client.close()
    return {key: size for key, size in found.items() if size >= 1 << 20}


def bare_gets(server: S3Server, bucket: str, objects: dict[str, int]) -> Measured:
    """The objects in ranges of 4 MiB, four at once, through the broker's own store client, dropped as they come."""
    ranges = [(key, at, min(RANGE, size - at)) for key, size in sorted(objects.items()) for at in range(0, size, RANGE)]
    ranges.reverse()

    async def run() -> Measured:
        workers = ThreadWorkers()
        store = S3Store(S3Url(bucket, "", endpoint=server.endpoint, region="us-east-1"), workers, SystemClock())
        await store.get(*ranges[-1])  # opens the client

        async def take() -> None:
            while ranges:
                await store.get(*ranges.pop())

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(take() for _ in range(RANGES_AT_ONCE)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        await store.close()
        workers.close()
        nbytes = sum(objects.values())
        return Measured(nbytes / seconds / 1e6, cpu / (nbytes / 1e9))

    return asyncio.run(run())


@contextmanager
def broker(
    stage: Stage, name: str, server: S3Server, *, peer: bool = False, **settings: object
) -> Iterator[tuple[Side, str]]:
    """One of ours on a bucket of its own, and the bucket's name; `peer`: the version that we are compared with."""
    bucket = f"{name}-peer" if peer else name
    checkout, python = (stage.beside, stage.peer_python) if peer else (None, stage.python)
    dotted = {key.replace("_", "."): value for key, value in settings.items()}
    ours = Thermocline(stage.root, bucket, server.bucket_url(bucket), server.environment(), dotted, checkout, python)
    with ours.running() as side:
        yield side, bucket


class Replay:
    """A log in the bucket, for readers that begin at its start."""

    def __init__(self, side: Side, bucket: str, upstream: S3Server) -> None:
        create(side, "cold", 1, remote_storage_enable="true")
        end = loads.fill(side, "cold", 1, COLD_BYTES + (140 << 20))
        [self._start] = wait_cold(side, "cold", int(end * 0.8))
        self._side = side
        self.objects = large_objects(upstream, bucket)
        self.nbytes = int(sum(self.objects.values()) * 0.97)

    def run(self) -> Measured:
        return Measured.speed(loads.fetch(self._side, "cold", 1, self._start, w=0, B=self.nbytes, seconds=60.0))


def cold_s3(stage: Stage) -> list[Row]:
    """One partition replayed in order, the chunk cache a quarter of it, against the same GETs without a broker."""
    work = f"fetch 1 MB cold from S3, {DELAY_MS} ms to first byte, 1 partition; beside: the same GETs without a broker"
    row = Row("cold-s3", work, "MB/s", Floor(0.8))
    settings = {"thermocline_cache_bytes": COLD_BYTES // 4, "log_local_retention_ms": 1}
    with (
        tempfile.TemporaryDirectory() as directory,
        versitygw_server(directory) as upstream,
        range_server(directory, upstream) as server,
        ExitStack() as sides,
    ):
        os.environ.update(server.environment())  # of bare_gets
        side, bucket = sides.enter_context(broker(stage, "cold-s3", server, **settings))
        ours = Replay(side, bucket, upstream)
        if stage.beside is None:
            peer = partial(bare_gets, server, bucket, ours.objects)
        else:
            other = sides.enter_context(broker(stage, "cold-s3", server, peer=True, **settings))
            peer = Replay(*other, upstream).run
        before = side.store_requests()
        stage.rounds_of(
            [row],
            lambda: row.peer.append(stage.settled(peer)),
            lambda: row.ours.append(stage.settled(ours.run)),
            warm_up=False,
        )
        gets = side.store_requests().get("get", 0) - before.get("get", 0)
        row.notes = f"{gets / len(row.ours) / (ours.nbytes / (1 << 30)):.0f} GETs per GiB"
    return [row]


def uploading(load: str, stage: Stage) -> list[Row]:
    """Produce while sealed segments of 64 MiB go to S3 in the same broker, against the same broker with tiering off."""
    shape = "ProducerPerformance 1 KB, acks=1" if load == "perf" else "produce 16 KB × 4 connections × 5 in flight"
    work = f"{shape} while its segments upload to S3; beside: tiering off"
    row = Row(f"upload-{load}", work, "MB/s", Floor(0.85 if load == "perf" else 0.72))
    uploaded: dict[str, list[float]] = {}  # by bucket

    def stored(server: S3Server, bucket: str) -> int:
        return sum(large_objects(server, bucket).values())

    def run(side: Side, server: S3Server, bucket: str | None) -> Measured:
        """`bucket`: where the topic is tiered to; None: it is not."""

        def produced(topic: str) -> Measured:
            before, began = 0 if bucket is None else stored(server, bucket), time.monotonic()
            if load == "perf":
                found = loads.producer_performance(side, topic, 400_000, 100_000, acks="1")
            else:
                found = loads.produce(side, topic, 4, 16 << 10, 1024, seconds=6.0)
            if bucket is not None:
                rate = (stored(server, bucket) - before) / (time.monotonic() - began) / 1e6
                uploaded.setdefault(bucket, []).append(rate)
            return Measured.speed(found)

        configs = {"remote_storage_enable": str(bucket is not None).lower(), "segment_bytes": 64 << 20}
        return stage.writing(side, row.name, 4, produced, 8 << 30, **configs)  # its uploads end with the topic

    with versitygw_server() as server, ExitStack() as sides:
        ours, bucket = sides.enter_context(broker(stage, "uploading", server))
        other: tuple[Side, str | None] = ours, None
        if stage.beside is not None:
            other = sides.enter_context(broker(stage, "uploading", server, peer=True))
        stage.compare(row, lambda: run(other[0], server, other[1]), lambda: run(ours, server, bucket))
    row.notes = f"uploaded meanwhile: {', '.join(f'{rate:.0f}' for rate in uploaded[bucket][-len(row.ours) :])} MB/s"
    return [row]


class Bill(NamedTuple):
    """Requests by operation, and of those that count so many a GiB."""

    tiered: dict[str, int]
    up: float
    replayed: dict[str, int]
    down: float


def bill(side: Side, bucket: str, server: S3Server) -> Bill:
    """Tiered in 128 MiB segments and replayed in order."""
    create(side, "bill", 1, remote_storage_enable="true")
    before = side.store_requests()
    end = loads.fill(side, "bill", 1, COLD_BYTES + (140 << 20))
    [start] = wait_cold(side, "bill", int(end * 0.9))
    middle = side.store_requests()
    nbytes = sum(large_objects(server, bucket).values())
    read = loads.fetch(side, "bill", 1, start, w=0, B=int(nbytes * 0.97), seconds=60.0)
    tiered, replayed = _difference(middle, before), _difference(side.store_requests(), middle)
    up = sum(count for name, count in tiered.items() if name != "get_if_changed") / (nbytes / (1 << 30))
    down = sum(count for name, count in replayed.items() if name in ("get", "head")) / (read.nbytes / (1 << 30))
    return Bill(tiered, up, replayed, down)


def billed(stage: Stage) -> list[Row]:
    """Billed requests per GiB."""
    bills = []
    with versitygw_server() as server:
        for peer in (False, True)[: 1 if stage.beside is None else 2]:
            with broker(stage, "billed", server, peer=peer, log_local_retention_ms=1000) as (side, bucket):
                bills.append(bill(side, bucket, server))
    ours, others = bills[0], bills[1:]
    floors = Floor(value=40, lower_is_better=True), Floor(value=280, lower_is_better=True)
    return [
        Row(
            "requests/tiered",
            "requests per GiB tiered (S3, 128 MiB segments)",
            "requests",
            floors[0],
            None,
            [Measured(other.up) for other in others],
            [Measured(ours.up)],
            json.dumps(ours.tiered),
        ),
        Row(
            "requests/replayed",
            "requests per GiB replayed cold from S3",
            "requests",
            floors[1],
            None,
            [Measured(other.down) for other in others],
            [Measured(ours.down)],
            json.dumps(ours.replayed),
        ),
    ]


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items()}


BENCHMARKS: Final[dict[str, Callable[[Stage], list[Row]]]] = {
    "cold-s3": cold_s3,
    "upload-loadgen": partial(uploading, "loadgen"),
    "upload-perf": partial(uploading, "perf"),
    "requests": billed,
}
