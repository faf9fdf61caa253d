"""Scenes of an operator's life with a real broker: a full disk, a full cache, a bucket that is away.

Each scene returns what was to be seen while it lasted: `tier status`, `/metrics`, the log, what producers were told.
docs/operations.md quotes from it. Everything it starts or mounts is gone when it returns.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.wire.apis import ApiKey
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from logformat.records import Record, encode_batch
from tests.support.processes.broker_process import BrokerProcess, await_ready, running_broker, start_broker
from tests.support.processes.ports import free_port
from tests.support.store.s3_servers import Fault, S3Server, StoreProxy
from tests.support.waiting import wait_until
from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.wire_client import WireClient

MIB = 1 << 20
TOPIC = "events"
SEGMENT = 4 * MIB  # moto is exact below 5 MiB
AWAY = Fault("status", status=503)
QUICK = {"log.retention.check.interval.ms": 500, "remote.log.manager.task.interval.ms": 500}
RECORDS = 40
NOISE = random.Random(7).randbytes(900_000)


@dataclass(frozen=True)
class Seen:
    """What a scene showed: `tier status`, `/metrics` and the answers while it lasted; the whole log."""

    status: str
    metrics: dict[str, float]  # by sample, labels included
    refused: str  # the error and its message, as a client gets them
    log: str
    readyz: str = ""  # while it was not ready
    seal: str = ""  # what `tier seal --wait` said on stderr


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes. Only root may mount one."""
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def cli(*arguments: str) -> str:
    """A command's standard output; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "thermocline", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def status_of(broker: BrokerProcess) -> str:
    return cli("tier", "status", "-b", broker.kafka)


def http(broker: BrokerProcess, path: str) -> str:
    """The body, of an error too."""
    try:
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        return refused.read().decode()


def metrics_of(broker: BrokerProcess) -> dict[str, float]:
    """`/metrics` by sample name with its labels as written."""
    lines = (line.rpartition(" ") for line in http(broker, "/metrics").splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def create(broker: BrokerProcess, *configs: str) -> None:
    pairs = [part for config in (f"segment.bytes={SEGMENT}", "retention.ms=-1", *configs) for part in ("-c", config)]
    cli("topic", "create", TOPIC, "-p", "1", "-b", broker.kafka, *pairs)


def produce(broker: BrokerProcess) -> tuple[int, str]:
    """Send 0.9 MB with acks=all: (error code, message) of the answer."""
    ((host, port),) = bootstrap_addresses(broker.kafka)
    batch = memoryview(bytearray(encode_batch([Record(0, 1_700_000_000_000, None, NOISE)])))
    data = ProduceRequestPartition(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[ProduceRequestTopic(name=TOPIC, partition_data=[data])]
    )
    with WireClient(host, port) as client:
        answer = client.call(ApiKey.PRODUCE, request, ProduceResponse).responses[0].partition_responses[0]
    return answer.error_code, answer.error_message or ""


def produce_until(broker: BrokerProcess, done: Callable[[int], bool], what: str) -> str:
    """Produce until an answer's error code satisfies `done`; its message."""

    def once() -> tuple[str] | None:
        code, message = produce(broker)
        return (message,) if done(code) else None

    return wait_until(once, what, 90)[0]


def lines_with(log: str, text: str) -> list[str]:
    return [line for line in log.splitlines() if text in line]


def fill(path: Path) -> None:
    """Take what is free until nothing is; to allocate what statvfs says fails when the broker takes of it meanwhile."""
    with open(path, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(MIB))


# --- scenes ---------------------------------------------------------------------------------------------------------


def disk_full(directory: Path) -> Seen:
    """Somebody else fills the disk; space returns; the broker goes on without a restart."""
    with small_disk(directory / "disk", 64 * MIB) as disk:
        with running_broker(disk / "data", f"file://{directory}/bucket", settings=QUICK) as broker:
            create(broker)
            assert produce(broker)[0] == 0
            fill(disk / "somebody-elses")
            refused = produce_until(broker, lambda code: code != 0, "refused")
            metrics = wait_until(
                lambda: (found := metrics_of(broker))["thermocline_disk_free_bytes"] == 0 and found, "seen", 30
            )
            status = status_of(broker)
            assert cli("consume", "-t", TOPIC, "-b", broker.kafka, "-o", "beginning", "-n", "1", "-f", "%o\n"), (
                "reads go on"
            )
            (disk / "somebody-elses").unlink()
            produce_until(broker, lambda code: code == 0, "goes on")
            wait_until(lambda: produce(broker)[0] == 0 and "accepted again" in broker.log(), "told", 30)
            assert metrics_of(broker)["thermocline_full_partitions"] == 0
            assert broker.stop() == 0
        return Seen(status, metrics, refused, broker.log())


def upload_lags(directory: Path, server: S3Server, proxy: StoreProxy) -> Seen:
    """The bucket refuses everything while producers go on, until local logs are too far over their limit; it heals."""
    url, environment = proxy.bucket_url("lag"), server.environment()
    settings = QUICK | {"thermocline.local.bytes.max": 24 * MIB}
    with running_broker(directory / "data", url, settings=settings, environment=environment) as broker:
        create(broker)
        assert produce(broker)[0] == 0
        proxy.faults(AWAY)
        refused = produce_until(broker, lambda code: code != 0, "refused")
        wait_until(lambda: "bucket does not answer" in broker.log(), "told", 60)
        status, metrics = status_of(broker), metrics_of(broker)
        wait_until(lambda: lines_with(broker.log(), "tiering lags"), "the line of a minute", 90)
        proxy.faults()
        produce_until(broker, lambda code: code == 0, "goes on")
        wait_until(lambda: not metrics_of(broker)[f'thermocline_copy_lag_bytes{{topic="{TOPIC}"}}'], "drained", 60)
        wait_until(lambda: produce(broker)[0] == 0 and "accepted again" in broker.log(), "told", 30)
        assert broker.stop() == 0
    return Seen(status, metrics, refused, broker.log())


def bucket_full(directory: Path) -> Seen:
    """The file system below a directory bucket has room for leases and roots, and for no segment; it is given some."""
    with small_disk(directory / "disk", 16 * MIB) as disk:
        with running_broker(directory / "data", f"file://{disk}/bucket", settings=QUICK) as broker:
            create(broker)
            free = os.statvfs(disk)
            with open(disk / "somebody-elses", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - MIB // 2)
            assert produce(broker)[0] == 0
            command = [sys.executable, "-m", "thermocline", "tier", "seal", "--wait", "-b", broker.kafka]
            with (directory / "seal.log").open("w") as log:
                sealing = subprocess.Popen(command, stderr=log)
            refuses = 'thermocline_condition{name="store_refuses"}'
            metrics = wait_until(lambda: (found := metrics_of(broker))[refuses] == 1 and found, "noticed", 60)
            status = status_of(broker)
            wait_until(lambda: "blocked by store" in (directory / "seal.log").read_text(), "said", 30)
            assert sealing.poll() is None
            (disk / "somebody-elses").unlink()
            assert sealing.wait(90) == 0
            wait_until(lambda: metrics_of(broker)[refuses] == 0, "over", 30)
            assert broker.stop() == 0
        return Seen(status, metrics, "", broker.log(), seal=(directory / "seal.log").read_text())


def cache_full(directory: Path, server: S3Server) -> Seen:
    """A replay of 36 MB through a cache of 24 MiB; then the disk is short, the cache yields, and a replay goes on."""
    url, environment = server.bucket_url("cache"), server.environment()
    settings = QUICK | {"thermocline.cache.bytes": 24 * MIB, "thermocline.prefetch.bytes": 4 * MIB}
    with (
        small_disk(directory / "disk", 128 * MIB) as disk,
        running_broker(disk / "data", url, settings=settings, environment=environment) as broker,
    ):
        create(broker, "local.retention.bytes=1")
        for _ in range(RECORDS):
            assert produce(broker)[0] == 0
        cli("tier", "seal", "--wait", "-b", broker.kafka)
        wait_until(lambda: metrics_of(broker)[f'thermocline_local_bytes{{topic="{TOPIC}"}}'] < SEGMENT, "sunk", 60)
        replay(broker)
        status = status_of(broker)
        assert "cache_reduced" not in status
        with open(disk / "somebody-elses", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 88 * MIB)  # beside the ballast and what the cache holds
        wait_until(lambda: lines_with(broker.log(), "chunk cache was reduced to"), "yields", 30)
        replay(broker)
        metrics = metrics_of(broker)
        status += status_of(broker)
        (disk / "somebody-elses").unlink()
        wait_until(lambda: lines_with(broker.log(), "chunk cache may use"), "again", 30)
        assert broker.stop() == 0
        return Seen(status, metrics, "", broker.log())


def replay(broker: BrokerProcess) -> None:
    """All there is, from the bucket."""
    out = cli("consume", "-t", TOPIC, "-b", broker.kafka, "-o", "beginning", "-e", "-f", "%o\n")
    assert len(out.split()) == RECORDS


def unreachable_at_start(directory: Path, server: S3Server, proxy: StoreProxy) -> Seen:
    """A bucket that answers 503: not ready, saying why; then ready."""
    url = proxy.bucket_url("late")
    proxy.faults(AWAY)
    http_address = f"127.0.0.1:{free_port()}"
    broker = start_broker(
        directory / "data",
        url,
        "--http",
        http_address,
        settings=QUICK,
        environment=server.environment(),
        wait_ready=False,
    )
    try:
        wait_until(lambda: len(lines_with(broker.log(), "does not answer")) >= 2, "told twice", 60)
        broker.ready = {"http": http_address}
        readyz, metrics = http(broker, "/readyz"), metrics_of(broker)
        proxy.faults()
        await_ready(broker)
        assert broker.stop() == 0
    finally:
        if broker.process.poll() is None:
            broker.kill()
    return Seen("", metrics, "", broker.log(), readyz)
