"""Rows of compaction: how fast a cleaner works through a log, and what produce feels of it.

A pass is timed from the first `.cleaned` file to the checkpoint that names the active segment's base; both brokers
write the same files. So the wait for the next look of a cleaner (log.cleaner.backoff.ms) is not measured.
"""

from __future__ import annotations

import random
import re
import time
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench import loads
from bench.sides import Side, admin, cpu_seconds, create, delete
from bench.stage import Stage
from bench.table import Floor, Measured, Row

SEGMENT_BYTES: Final = 64 << 20
NOT_YET: Final = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1.0"}  # no log is as dirty
POLL_S: Final = 0.005
START_S: Final = 60.0  # Kafka looks every 15 s
PASS_S: Final = 300.0
SHAPES: Final = {"1kb": (1000, 600_000, 1.0), "100b": (100, 3_000_000, 0.5)}
"""Bytes of a value, records, floor."""
DIRTY_RECORDS: Final = 4_000_000
"""Of 1000 bytes: a cleaner works through them in more than four seconds."""
PRODUCE_BYTES_PER_S: Final = 20_000_000
BATCH: Final = 16 << 10


def fill(side: Side, topic: str, value_bytes: int, records: int, keys: range | None = None) -> None:
    """Records of these keys (by default `records` / 10), in an order of chance; values do not shrink."""
    keys = range(records // 10) if keys is None else keys
    rng = random.Random(keys.start)
    noise = rng.randbytes(1 << 20)
    settings = {"bootstrap.servers": side.address, "acks": 1, "linger.ms": 20, "batch.size": 100_000, "log_level": 0}
    producer = Producer({**settings, "queue.buffering.max.messages": 200_000})
    for _ in range(records):
        at = rng.randrange(len(noise) - value_bytes)
        key = b"key-%09d" % rng.choice(keys)
        while True:
            try:
                producer.produce(topic, noise[at : at + value_bytes], key=key, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"{side.name}: {topic} is not filled")


def set_ratio(side: Side, topic: str, ratio: str) -> None:
    entry = ConfigEntry("min.cleanable.dirty.ratio", ratio, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(side)  # its futures die with it
    client.incremental_alter_configs([resource])[resource].result(30)


def _log_dir(side: Side, topic: str) -> Path:
    return next(path for path in side.root.rglob(f"{topic}-0") if path.is_dir())


def _cleaned(log_dir: Path, topic: str) -> int:
    checkpoint = log_dir.parent / "cleaner-offset-checkpoint"
    found = re.search(rf"^{topic} 0 (\d+)$", checkpoint.read_text(), re.MULTILINE) if checkpoint.exists() else None
    return int(found[1]) if found else 0


def _cpu(side: Side) -> float:
    """Of the broker and its children: our cleaner is one."""
    total = 0.0
    for pid in side.pids:
        children = {
            int(child) for each in Path(f"/proc/{pid}/task").glob("*/children") for child in each.read_text().split()
        }
        total += sum(map(cpu_seconds, {pid, *children}))
    return total


def begin_pass(side: Side, topic: str) -> None:
    """Return once the cleaner works on the topic."""
    log_dir = _log_dir(side, topic)
    set_ratio(side, topic, "0.01")
    deadline = time.monotonic() + START_S
    while not any(log_dir.glob("*.cleaned")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name} did not begin to clean {topic}")
        time.sleep(POLL_S)


def clean(side: Side, topic: str) -> Measured:
    """Have the topic's sealed segments cleaned: MB of them a second."""
    log_dir = _log_dir(side, topic)
    segments = sorted(log_dir.glob("*.log"))
    dirty_bytes, end = sum(path.stat().st_size for path in segments[:-1]), int(segments[-1].stem)
    begin_pass(side, topic)
    began, cpu_s = time.monotonic(), _cpu(side)
    while _cleaned(log_dir, topic) < end:
        if time.monotonic() > began + PASS_S:
            raise RuntimeError(f"{side.name} did not finish {topic}")
        time.sleep(POLL_S)
    took_s = time.monotonic() - began
    return Measured(dirty_bytes / 1e6 / took_s, (_cpu(side) - cpu_s) / (dirty_bytes / 1e9))


def passes(name: str, stage: Stage) -> list[Row]:
    """One thread each, 10 % of the keys distinct."""
    value_bytes, records, floor = SHAPES[name]
    ours = stage.synced
    peer = stage.peer_of(ours)
    row = Row(f"compact-{name}", f"a cleaner's pass over {records:,} records of {value_bytes} B", "MB/s", Floor(floor))

    def run(side: Side) -> Measured:
        def filled(topic: str) -> Measured:
            fill(side, topic, value_bytes, records)
            return clean(side, topic)

        return stage.writing(side, row.name, 1, filled, **NOT_YET, segment_bytes=SEGMENT_BYTES)

    return stage.compare(row, lambda: run(peer), lambda: run(ours))


def produce_beside(stage: Stage) -> list[Row]:
    """p99 of produce, ours with a pass under way against ours without. The pass takes longer than the produce.

    Both are measured beside the same filled log, one at once after the other: the fill takes most of what a host lets a
    virtual disk write at full speed, so a turn without it would find another disk."""
    ours = stage.synced
    row = Row(
        "compact-produce",
        f"p99 of produce at 20 MB/s while a cleaner works through {DIRTY_RECORDS // 1000:,} MB; beside: without",
        "ms",
        Floor(1.3, lower_is_better=True),
    )
    ends: list[str] = []

    def p99(topic: str) -> Measured:
        rate = PRODUCE_BYTES_PER_S / BATCH
        return Measured.p99(loads.produce(ours, topic, 4, BATCH, 1024, acks="all", rate=rate, seconds=3.0, warm=0.5))

    def both() -> None:
        dirty = create(ours, "dirty", 1, **NOT_YET, segment_bytes=SEGMENT_BYTES)

        def beside_a_pass(topic: str) -> Measured:
            begin_pass(ours, dirty)
            found = p99(topic)
            ends.append("under way" if _cleaned(_log_dir(ours, dirty), dirty) == 0 else "over")
            return found

        try:
            fill(ours, dirty, 1000, DIRTY_RECORDS)
            row.peer.append(stage.writing(ours, row.name, 4, p99))
            row.ours.append(stage.writing(ours, row.name, 4, beside_a_pass))
        finally:
            delete(ours, dirty)

    stage.rounds_of([row], both)
    row.notes = f"at the end of the produce the pass was {', '.join(ends[-len(row.ours) :])}"
    return [row]


BENCHMARKS: Final = {
    **{f"compact-{name}": partial(passes, name) for name in SHAPES},
    "compact-produce": produce_beside,
}
