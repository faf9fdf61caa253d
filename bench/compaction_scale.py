"""A compacted topic of many keys on three brokers, half of it in the bucket, with a key map for a tenth of the keys.

    bench/compaction_scale.py                   10,000,000 keys, 20 GB; prints the figures
    bench/compaction_scale.py --keys 500000 --gigabytes 1    a look

Each key is written as often as every other, in another order each time, so that all records but the newest of each key
are stale. Figures: memory of a broker and of its cleaner's process, time until no pass finds work, requests to the
store, and p99 of produce (another topic, acks=all) before and during the cleaning. The end is checked: a consumer of
everything must see the newest value of each key.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import loads
from bench.clusters import ClusterSide, create_replicated, our_cluster
from bench.rows.compact import set_ratio
from bench.sides import local_starts, metrics

PARTITIONS: Final = 3
REPLICAS: Final = 2
ENTRY_BYTES: Final = 24  # of the key map: 16 bytes of hash, 8 of offset
SEGMENT_BYTES: Final = 64 << 20
QUIET_S: Final = 150.0  # no pass for so long: nothing is left to clean; a pass over the bucket takes a minute
LIMIT_S: Final = 3600.0
MEASURE_S: Final = 20.0


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def order(keys: int, turn: int) -> Iterator[int]:
    """All keys once, in an order of their own for each turn."""
    step = 7_919 + 2 * turn
    while np.gcd(step, keys) != 1:
        step += 2
    at = turn * 104_729 % keys
    for _ in range(keys):
        yield at
        at = (at + step) % keys


def fill(side: ClusterSide, topic: str, keys: int, turns: int, value_bytes: int) -> None:
    """`turns` values of each key; a value begins with its turn. A key's partition is the key modulo the partitions."""
    padding = np.random.default_rng(1).bytes(1 << 20)
    settings = {"bootstrap.servers": side.address, "acks": "all", "linger.ms": 50, "batch.size": 500_000}
    producer = Producer({**settings, "queue.buffering.max.messages": 500_000, "log_level": 0})
    for turn in range(turns):
        for key in order(keys, turn):
            at = key * 31 % (len(padding) - value_bytes)
            value = struct.pack(">I", turn) + padding[at : at + value_bytes - 4]
            while True:
                try:
                    producer.produce(topic, value, key=struct.pack(">Q", key), partition=key % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.2)
        if producer.flush(300):
            raise RuntimeError(f"{topic} is not filled")
        say(f"turn {turn + 1} of {turns} is written")


@dataclass
class Peaks:
    """Highest resident memory, in MB."""

    broker: float = 0.0
    cleaner: float = 0.0
    ends: threading.Event = field(default_factory=threading.Event)


def _rss_mb(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")
    except FileNotFoundError:
        return 0.0
    return int(fields[1].split()[0]) / 1024 if len(fields) > 1 else 0.0


@contextmanager
def watched(side: ClusterSide) -> Iterator[Peaks]:
    """Measure memory each half second for the length of the block."""
    peaks = Peaks()

    def watch() -> None:
        while not peaks.ends.wait(0.5):
            for pid in side.pids:
                peaks.broker = max(peaks.broker, _rss_mb(pid))
                for path in Path(f"/proc/{pid}/task").glob("*/children"):
                    try:
                        children = path.read_text().split()
                    except (FileNotFoundError, ProcessLookupError):
                        continue
                    peaks.cleaner = max([peaks.cleaner, *(_rss_mb(int(child)) for child in children)])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        peaks.ends.set()
        thread.join()


def total(side: ClusterSide, prefix: str) -> float:
    """Sum of a metric's samples on all brokers."""
    lines = (line for http in side.all_http for line in metrics(http))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefix))


def requests(side: ClusterSide) -> float:
    return total(side, "thermocline_store_requests_total")


def wait_quiet(side: ClusterSide) -> float:
    """Until no broker finished a pass for `QUIET_S`; seconds from now to the last pass."""
    began = last = time.monotonic()
    seen = -1.0
    while time.monotonic() < last + QUIET_S:
        if time.monotonic() > began + LIMIT_S:
            raise RuntimeError(f"still cleaning after {LIMIT_S:g} s")
        cold = total(side, "thermocline_cold_cleaner_passes_total")
        passes = total(side, "thermocline_cleaner_passes_total") + cold
        if passes != seen:
            seen, last = passes, time.monotonic()
            read_bytes = total(side, "thermocline_cleaner_read_bytes_total")
            say(f"{passes:.0f} passes, {cold:.0f} of the bucket, {read_bytes / 1e9:.2f} GB read")
        time.sleep(2)
    return last - began


def check(side: ClusterSide, topic: str, keys: int, turns: int) -> int:
    """Consume all; records seen. RuntimeError where a key's last value is not its newest."""
    newest = np.full(keys, -1, dtype=np.int8)
    settings = {"bootstrap.servers": side.address, "group.id": "check", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": False, "fetch.queue.backoff.ms": 10})
    parts = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts]
    consumer.assign(parts)
    records = 0
    while any(part.offset < ends[part.partition] for part in consumer.position(parts)):
        messages = consumer.consume(20_000, timeout=30)
        if not messages:
            raise RuntimeError(f"the topic ends early: {consumer.position(parts)} of {ends}")
        records += len(messages)
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
            newest[struct.unpack(">Q", message.key())[0]] = message.value()[3]
    consumer.close()
    if lost := int((newest != turns - 1).sum()):
        raise RuntimeError(f"{lost} of {keys} keys do not have their newest value")
    return records


def p99(side: ClusterSide, topic: str) -> float:
    """Milliseconds, acks=all at 4 MB/s."""
    return loads.produce(side, topic, 3, 16 << 10, 1024, acks="all", rate=250, seconds=MEASURE_S, warm=2.0).p99_ms


def run(root: Path, keys: int, gigabytes: float) -> None:
    turns = 2
    value_bytes = int(gigabytes * 1e9 / keys / turns) - 20
    settings = {
        "log.cleaner.dedupe.buffer.size": keys // 10 * ENTRY_BYTES,
        "log.cleaner.backoff.ms": 1000,
        "thermocline.cold.compaction.bytes.per.hour": 1 << 40,  # the default would spread the passes over hours
        "thermocline.cold.compaction.grace.ms": 60_000,  # a day of replaced objects would fill the disk
    }
    with our_cluster(root, "scale", 3, settings) as side:
        configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1.0", "segment_bytes": SEGMENT_BYTES}
        half = int(gigabytes * 1e9 / PARTITIONS / 2)
        tiered = {"remote_storage_enable": "true", "local_retention_bytes": half}
        topic = create_replicated(side, "table", PARTITIONS, REPLICAS, **configs, **tiered)
        beside = create_replicated(side, "beside", PARTITIONS, REPLICAS)
        began = time.monotonic()
        fill(side, topic, keys, turns, value_bytes)
        say(f"filled in {time.monotonic() - began:.0f} s; local starts {local_starts(side, topic)}")
        before_ms, before_requests = p99(side, beside), requests(side)
        with watched(side) as peaks:
            set_ratio(side, topic, "0.01")
            began = time.monotonic()
            time.sleep(5)
            during_ms = p99(side, beside)
            took_s = time.monotonic() - began + wait_quiet(side)
        print(
            f"{keys:,} keys, {turns} values of {value_bytes} B each, {REPLICAS} replicas on three brokers, half local"
        )
        print(f"key map: {keys // 10:,} entries; cleaned in {took_s:.0f} s")
        print(f"memory: a broker {peaks.broker:.0f} MB at most, a cleaner's process {peaks.cleaner:.0f} MB")
        print(f"requests to the store: {requests(side) - before_requests:.0f}")
        print(f"p99 of produce: {before_ms:.1f} ms before, {during_ms:.1f} ms during")
        size = sum(path.stat().st_size for path in (side.root / "bucket").rglob("*") if path.is_file()) / 1e9
        print(f"bucket: {size:.2f} GB")
        print(f"consumed from 0: {check(side, topic, keys, turns):,} records; each key's newest value was there")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thermocline-compaction-") as root:
        run(Path(root), options.keys, options.gigabytes)


if __name__ == "__main__":
    main()
