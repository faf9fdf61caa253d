"""One log for every stock client, whichever tier it lies in.

Each client writes one topic with a partition for every codec it can do, idempotent and not; each client reads every
topic from 0: all of it local, then with its older part only in the bucket, then with nothing but the bucket. What they
read is compared with what was written. Local files count as gone when the data directory lists them no more.
`stock_clients.WRITES` and `READS` say which client can which codec; `SAYS` what else each can put into a record.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.clients.stock_clients import (
    CODECS,
    READS,
    WRITES,
    Record,
    Written,
    alter_topic,
    create_topic,
    digest,
    missing_clients,
    read_confluent,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, seal, status, wait_copied
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

RECORDS = 120  # a partition: about 40 KB, so two or three sealed segments and an active one
SEGMENT_BYTES = 20_480  # above the largest batch a client makes of these records: librdkafka's 50 records, 17 KB


class Says(NamedTuple):
    """What a writer can put into a record. Every one of them can do keys, null keys and null values."""

    timestamps: bool = True  # of the record's own
    headers: bool = True  # other ones in each record
    null_headers: bool = True
    binary: bool = True  # any byte, and empty apart from null


SAYS = {
    "confluent-kafka": Says(),
    "kafka-python": Says(null_headers=False),  # it refuses them
    "aiokafka": Says(),
    "kcat": Says(timestamps=False, headers=False, binary=False),  # it reads lines of text
}


class Lane(NamedTuple):
    """One partition of a writer's topic."""

    partition: int
    codec: str
    idempotent: bool


def lanes(writer: str) -> list[Lane]:
    _, codecs, idempotences = WRITES[writer]
    return [Lane(at, *lane) for at, lane in enumerate((codec, sure) for codec in codecs for sure in idempotences)]


def records(writer: str, lane: Lane) -> list[Written]:
    """Incompressible values of 300 bytes, so that segments fill whatever the codec; now and then something missing."""
    says, rng = SAYS[writer], random.Random(f"{writer} {lane}")
    found = []
    for n in range(RECORDS):
        value: bytes | None = rng.randbytes(300) if says.binary else base64.b64encode(rng.randbytes(225))
        key: bytes | None = f"{writer}-{n}".encode()
        if n % 7 == 3:
            value = None  # a tombstone
        elif n % 7 == 5:
            key = None
        elif says.binary and n % 7 == 6:
            key, value = b"", b""
        at = 1_700_000_000_000 + 1000 * n - 5000 * (n % 3) if says.timestamps else None  # in no order
        found.append(Written(key, value, at, headers_of(says, n)))
    return found


def headers_of(says: Says, n: int) -> tuple[tuple[str, bytes | None], ...]:
    """kcat, as a reader, prints headers as text: no comma and no line end in them, but UTF-8, twice a name, nulls."""
    if not says.headers:
        return (("source", b"kcat"), ("empty", None))
    if n % 4 == 0:
        return ()
    return (
        ("n", b"%d" % n),
        ("größe", "größer=ja".encode()),
        ("n", b""),
        ("last", None if says.null_headers else b"-"),
    )[: n % 4 + 1]


Expected = dict[str, dict[int, str]]  # writer → partition → digest


def write_all(broker: BrokerProcess) -> Expected:
    """Every lane of every writer; what a reader must see."""
    expected: Expected = {}
    for writer, (write, _, _) in WRITES.items():
        create_topic(
            broker.kafka, writer, len(lanes(writer)), internal_segment_bytes=SEGMENT_BYTES, local_retention_ms=-1
        )
        wrote = {}
        for lane in lanes(writer):
            wrote[lane.partition] = records(writer, lane)
            write(broker.kafka, writer, lane.partition, wrote[lane.partition], lane.codec, lane.idempotent)
        expected[writer] = {p: digest(as_read(broker, writer, p, these)) for p, these in wrote.items()}
    return expected


def as_read(broker: BrokerProcess, writer: str, partition: int, wrote: list[Written]) -> list[Record]:
    """The records with their offsets; a timestamp that the client chose is what one read of it says, once for all."""
    chosen = {}
    if not SAYS[writer].timestamps:
        chosen = {r.offset: r.timestamp_ms for r in read_confluent(broker.kafka, writer, {partition: RECORDS})}
        assert len(chosen) == RECORDS and min(chosen.values()) > 1_700_000_000_000
    return [
        Record(partition, at, w.key, w.value, chosen.get(at, w.timestamp_ms or 0), w.headers)
        for at, w in enumerate(wrote)
    ]


def differences(broker: BrokerProcess, expected: Expected, reader: str) -> Iterator[str]:
    """Topic by topic: each lane that `reader` can decode and that has not the written digest for it."""
    read, codecs = READS[reader]
    for writer in WRITES:
        readable = [lane for lane in lanes(writer) if lane.codec in codecs]
        found = read(broker.kafka, writer, {lane.partition: RECORDS for lane in readable})
        for lane in readable:
            if digest(r for r in found if r.partition == lane.partition) != expected[writer][lane.partition]:
                yield f"{reader} reads another {writer} {lane.codec} idempotent={lane.idempotent}"


def assert_all_read_from_the_bucket(site: Site, expected: Expected) -> None:
    """Each reader has a broker that just started: what another one read is nowhere at hand, neither in the chunk cache
    nor in the files it holds open. On S3 the store's log shows every partition's segments fetched, each time."""
    for reader, (_, codecs) in READS.items():
        with site.broker() as broker:
            if site.bucket.proxy is not None:
                site.bucket.proxy.forget()
            assert list(differences(broker, expected, reader)) == [], "cold"
            if site.bucket.proxy is not None:
                partitions = {
                    r.key.partition("segments/")[0]
                    for r in site.bucket.proxy.requests()
                    if r.method == "GET" and "segments/" in r.key and r.range and r.received
                }
                readable = sum(lane.codec in codecs for writer in WRITES for lane in lanes(writer))
                assert len(partitions) == readable, reader
            assert broker.stop() == 0


def local_starts(site: Site, writer: str) -> dict[int, list[int]]:
    """Partition → base offsets of the non-empty `.log` files that the data directory lists."""
    found: dict[int, list[int]] = {lane.partition: [] for lane in lanes(writer)}
    for file in site.local_log_files(writer):
        found[int(file.parent.name.rpartition("-")[2])].append(int(file.stem))
    return found


def sink_the_older_part(site: Site, broker: BrokerProcess) -> None:
    """Until every partition has lost its first segment, and kept a sealed or active one with records."""
    for writer in WRITES:
        assert all(starts[0] == 0 for starts in local_starts(site, writer).values()), "hot is not all of it local"
        wait_copied(broker, writer)
        alter_topic(broker.kafka, writer, local_retention_bytes=SEGMENT_BYTES // 3)
    for writer in WRITES:
        wait_until(
            lambda writer=writer: all(starts[0] > 0 for starts in local_starts(site, writer).values()),
            f"the first segments of {writer} gone from the disk",
        )
        assert all(p["local_log_start_offset"] < RECORDS for p in status(broker, writer))


def sink_everything(site: Site, broker: BrokerProcess) -> None:
    """Until no `.log` file of the topics has a byte."""
    seal(broker)
    for writer in WRITES:
        alter_topic(broker.kafka, writer, local_retention_ms=1)
    for writer in WRITES:
        wait_until(lambda writer=writer: not site.local_log_files(writer), f"{writer} gone from the disk")


def test_every_client_reads_what_every_client_wrote_in_either_tier(site: Site) -> None:
    """Same digest over (partition, offset, key, value, timestamp, headers): hot, across the seam, cold."""
    site.settings["thermocline.cache.bytes"] = sum(map(len, map(lanes, WRITES))) * RECORDS * 340 // 10
    with site.broker() as broker:
        expected = write_all(broker)
        for reader in READS:
            assert list(differences(broker, expected, reader)) == [], "hot"
        sink_the_older_part(site, broker)
        for reader in READS:
            assert list(differences(broker, expected, reader)) == [], "seam"
        sink_everything(site, broker)
        assert broker.stop() == 0
    assert_all_read_from_the_bucket(site, expected)
    assert not any(map(site.local_log_files, WRITES))


def test_the_matrix_has_every_client() -> None:
    """A smaller matrix is a skip with its reason, never silence; without a reason it is the whole one."""
    assert set(WRITES) == set(READS) <= set(SAYS)
    if missing := missing_clients():
        pytest.skip("; ".join(missing))
    assert set(WRITES) == set(SAYS)
    assert all(WRITES[client][1] == READS[client][1] == CODECS for client in SAYS)
