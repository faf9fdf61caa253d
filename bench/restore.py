"""A cluster that is gone, restored from its bucket: how long until every partition serves, and what it takes.

    bench/restore.py                          1 000 partitions with 10 000 segments; writes its section of RESULTS.md
    bench/restore.py --topics 20 --dry        200 partitions; nothing is written

The bucket is a directory, made by coldstore's own writers: topics of ten partitions, ten segments each, every segment a
real object with its footer, ten batches of ten records. Its brokers were killed: the lease stands, reservations too.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent))
from crc32c import crc32c

from bench.many import BENCH, Figures, cpu_s, replace_section
from broker.metadata.cluster_content import (
    CLUSTER_FORMAT,
    PAGE_SUFFIX,
    ClusterContent,
    ClusterPage,
    Controller,
    encode_page,
)
from broker.metadata.image import ClusterImage, Topic, check
from broker.metadata.records import Endpoint, Node, Row
from coldstore.keys import CLUSTER_KEY, SegmentKey, manifest_key, metadata_key
from coldstore.manifest.manifest import new_manifest
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.object_store import Got
from coldstore.roots.root import RootCodec
from coldstore.segments.segment_object import SegmentFooter, build_footer, entry_from_footer
from coldstore.segments.segment_scanner import SegmentScanner
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.support.processes.broker_process import BrokerProcess, start_broker
from thermocline.cli.clients.wire_client import EARLIEST, LATEST, BrokerUnreachable, WireClient

SECTION: Final = "## A cluster restored from its bucket"
PARTITIONS: Final = 10  # of a topic
SEGMENTS: Final = 10  # of a partition
BATCHES, RECORDS = 10, 10  # of a segment, of a batch
OFFSETS: Final = BATCHES * RECORDS
CONFIGS: Final = {"remote.storage.enable": "true", "retention.ms": "-1"}
EPOCH: Final = 3
LEASE_S: Final = 5.0
READY_S: Final = 120.0


class Bucket:
    """The bucket of brokers `nodes`, with so many topics of as many replicas as there were brokers."""

    def __init__(self, path: Path, topics: int, nodes: Sequence[int]) -> None:
        self.path = path
        self.url = f"file://{path}"
        self._rng = SeededRng(7)
        self._logs = [self._log(number * OFFSETS) for number in range(SEGMENTS)]
        names = {UUID(int=(1 << 80) + number): f"topic-{number:03d}" for number in range(topics)}
        for topic_id, name in names.items():
            for partition in range(PARTITIONS):
                self._partition(topic_id, name, partition)
        self._cluster(names, nodes)

    def _log(self, base: int) -> bytes:
        def batch(first: int) -> bytes:
            records = [Record(n, 1_700_000_000_000 + n, b"k%d" % n, b"v" * 60) for n in range(first, first + RECORDS)]
            return encode_batch(records, base_offset=first, leader_epoch=EPOCH)

        return b"".join(batch(base + number * RECORDS) for number in range(BATCHES))

    def _partition(self, topic_id: UUID, name: str, partition: int) -> None:
        manifest = new_manifest(topic_id, partition, EPOCH, name, CONFIGS).reserve(1 << 20)
        for number, log in enumerate(self._logs):
            base = number * OFFSETS
            key = SegmentKey(topic_id, partition, base, EPOCH, self._rng.uuid())
            scanner = SegmentScanner(base, len(log), chunk_bytes=1 << 20, index_interval_bytes=4096)
            scanner.feed(log)
            end = base + OFFSETS
            lineage = LeaderEpochs((EpochStart(EPOCH, 0),))
            footer = build_footer(key, name, scanner.finish(end), lineage=lineage, producers=ProducerState(end, ()))
            self._put(str(key), log + footer)
            manifest = manifest.add(entry_from_footer(SegmentFooter.parse(footer, len(log) + len(footer)), key))
        manifest.check()
        self._put(manifest_key(topic_id, partition), self._root(RootCodec(MANIFEST_FORMAT), 1, EPOCH, manifest))

    def _cluster(self, names: dict[UUID, str], nodes: Sequence[int]) -> None:
        turns = [tuple(nodes[at:]) + tuple(nodes[:at]) for at in range(len(nodes))]
        rows = tuple(
            Row(assigned, assigned[0], EPOCH, 1, assigned, EPOCH)
            for assigned in (turns[partition % len(nodes)] for partition in range(PARTITIONS))
        )
        image = ClusterImage(
            topics={
                str(topic_id): Topic(str(topic_id), name, rows, CONFIGS, False) for topic_id, name in names.items()
            },
            nodes={
                node_id: Node(node_id, node_id, f"gone{node_id}", "0" * 32, "gone", (Endpoint("PLAINTEXT", "h", 1),))
                for node_id in nodes
            },
            next_broker_epoch=max(nodes) + 1,
        )
        check(image)
        page, json_bytes = encode_page(image)
        key = metadata_key(0, EPOCH, self._rng.uuid(), PAGE_SUFFIX)
        self._put(key, page)
        pointer = ClusterPage(key, len(page), crc32c(page), json_bytes)
        content = ClusterContent("bench-restore-cluster0", Controller(nodes[0], "0" * 32), pointer, len(names))
        self._put(CLUSTER_KEY, self._root(RootCodec(CLUSTER_FORMAT), 1, EPOCH, content))

    def _root(self, codec: RootCodec, version: int, epoch: int, content: object) -> bytes:  # type: ignore[type-arg]
        data = codec.encode(version, epoch, ((1, self._rng.uuid().hex),), content)
        codec.decode("", Got(data, "", len(data)))
        return data

    def _put(self, key: str, data: bytes) -> None:
        place = self.path / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def served(address: str, topics: int) -> int:
    """How many partitions a broker serves from their first record to their reserved end."""
    host, _, port = address.rpartition(":")
    with WireClient(host, int(port), 30) as client:
        asked = {f"topic-{number:03d}": list(range(PARTITIONS)) for number in range(topics)}
        starts, ends = client.offsets(asked, EARLIEST), client.offsets(asked, LATEST)
    return sum(starts.get(place) == 0 and end == 1 << 20 for place, end in ends.items())


def all_serve_s(brokers: Sequence[BrokerProcess], topics: int, began_s: float) -> float:
    """Seconds from `began_s` until they do."""
    while True:
        try:
            if sum(served(broker.kafka, topics) for broker in brokers) >= topics * PARTITIONS:
                return time.monotonic() - began_s
        except BrokerUnreachable:
            pass
        if time.monotonic() - began_s > READY_S:
            raise RuntimeError("not all partitions serve")
        time.sleep(0.1)


def peak_mib(pid: int) -> int:
    """The most memory it ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def one_broker(root: Path, topics: int, figures: Figures) -> None:
    """A broker of a cluster of one, killed; an empty directory under its node id: nothing has to be said."""
    bucket = Bucket(root / "one", topics, (1,))
    with ExitStack() as over:
        began_s = time.monotonic()
        broker = start_broker(root / "data-1", bucket.url, "--node-id", "1")
        over.callback(broker.kill)
        took_s = all_serve_s([broker], topics, began_s)
        what = f"{topics * PARTITIONS:,} partitions, {topics * PARTITIONS * SEGMENTS:,} segments"
        figures.add(f"{what}, one broker, empty directory: start to all serve", f"{took_s:.1f} s", "10 s")
        figures.add("of that, CPU of the broker", f"{cpu_s(broker.pid):.1f} s")
        figures.add("memory at most", f"{peak_mib(broker.pid)} MiB", "300 MiB")


def three_brokers(root: Path, topics: int, figures: Figures) -> None:
    """Three brokers, three replicas; three others under other node ids, and `cluster restore`."""
    bucket = Bucket(root / "three", topics, (1, 2, 3))
    with ExitStack() as over:
        began_s = time.monotonic()
        brokers = [
            start_broker(root / f"data-{node_id}", bucket.url, "--node-id", str(node_id), wait_ready=False)
            for node_id in (11, 12, 13)
        ]
        for broker in brokers:
            over.callback(broker.kill)
        for broker in brokers:
            broker.await_ready()
        ready_s = time.monotonic() - began_s
        figures.add("three brokers of three replicas, under other node ids: until they are there", f"{ready_s:.1f} s")
        began_s = time.monotonic()
        command = [sys.executable, "-m", "thermocline", "cluster", "restore", "--bucket", bucket.url]
        subprocess.run(command, check=True, capture_output=True)
        figures.add("the plan of `cluster restore`", f"{time.monotonic() - began_s:.1f} s")
        began_s = time.monotonic()
        done = subprocess.Popen([*command, "--yes"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        took_s = all_serve_s(brokers, topics, began_s)
        figures.add("`cluster restore --yes`: until every partition has a leader that serves", f"{took_s:.1f} s")
        _, said = done.communicate(timeout=READY_S)
        if done.returncode:
            raise RuntimeError(said)
        figures.add("and until every replica is in sync, and the command ends", f"{time.monotonic() - began_s:.1f} s")
        figures.add("memory of a broker at most", f"{max(peak_mib(broker.pid) for broker in brokers)} MiB", "300 MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100, help=f"of {PARTITIONS} partitions each")
    parser.add_argument("--only", choices=("one", "three"))
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="thermocline-restore-"))
    figures = Figures()
    try:
        if options.only != "three":
            one_broker(root, options.topics, figures)
        if options.only != "one":
            three_brokers(root, options.topics, figures)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if not options.dry and options.only is None:
        lines = [f"| {what} | {figure} | {bound} |" for what, figure, bound in figures.rows]
        text = "\n".join(
            [SECTION, "", __doc__.split("\n\n")[2].strip(), "", "| what | figure | bound |", "|---|---|---|"]
        )
        replace_section(BENCH / "RESULTS.md", SECTION, text + "\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
