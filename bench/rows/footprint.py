"""Rows of memory under load, of starting, and of coming back after kill -9."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from bench import loads
from bench.sides import READY_S, KafkaPeer, Side, Thermocline, admin, create
from bench.stage import Stage
from bench.table import Floor, Measured, Row

ACTIVE_BYTES: Final = 1 << 30
PARTITIONS: Final = 8
Broker = KafkaPeer | Thermocline


def resident(stage: Stage) -> list[Row]:
    """The most resident memory while produce of 1 MB and fetches of 1 MB run at once."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    row = Row(
        "rss",
        "resident memory, produce 1 MB × 4 beside fetch 1 MB × 8: the most",
        "MB",
        Floor(0.25, lower_is_better=True),
    )
    logs = {side.name: stage.log(side, 8, cold=False) for side in (kafka, ours)}

    def run(side: Side, topic: str) -> Measured:
        log, seconds, most = logs[side.name], 4.0, 0.0
        flags = {"c": 4, "k": 5, "b": 1 << 20, "s": 1024}
        with (
            loads.fetching(side, log.topic, 8, log.end, seconds=seconds) as readers,
            loads.Loadgen(side, topic, "produce", seconds, **flags) as writers,
        ):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                most = max(most, side.rss_mb())
                time.sleep(0.1)
            writers.finish()
            readers.finish()
        return Measured(most)

    def turn(side: Side) -> Measured:
        return stage.writing(side, "rss", 4, lambda topic: run(side, topic))

    return stage.compare(row, lambda: turn(kafka), lambda: turn(ours))


def starting(stage: Stage) -> list[Row]:
    """A fresh directory to the first answer."""
    row = Row("start", "start to first answer, format included", "s", Floor(0.4, lower_is_better=True))

    return compare_fresh(stage, row, lambda broker: broker.start().started_s)


def restarting(stage: Stage) -> list[Row]:
    """kill -9 with 1 GiB in active segments, to the first answer with the end of every partition."""
    work = f"restart after kill -9, 1 GiB in {PARTITIONS} active segments: to the ends of all partitions"
    row = Row("restart", work, "s", Floor(0.5, lower_is_better=True))

    def restart_s(broker: Broker) -> float:
        side = broker.start()
        create(side, "log", PARTITIONS, segment_bytes=1 << 30)
        end = loads.fill(side, "log", PARTITIONS, ACTIVE_BYTES, acks="all")
        broker.kill()
        began = time.monotonic()
        if isinstance(broker, KafkaPeer):
            broker.start("restart")
        else:
            broker.start()
        wait_ends(side, "log", end)
        return time.monotonic() - began

    return compare_fresh(stage, row, restart_s)


def compare_fresh(stage: Stage, row: Row, seconds: Callable[[Broker], float]) -> list[Row]:
    """Each turn a broker that nobody ran before: its own folder, and for ours a bucket without a dead one's lease."""

    def turn(*, peer: bool) -> Measured:
        root = Path(tempfile.mkdtemp(dir=stage.root))
        broker = stage.fresh(root, peer=peer)
        try:
            return Measured(seconds(broker))
        finally:
            broker.kill()
            shutil.rmtree(root, ignore_errors=True)

    return stage.compare(
        row,
        lambda: stage.settled(lambda: turn(peer=True)),
        lambda: stage.settled(lambda: turn(peer=False)),
        warm_up=False,
    )


def wait_ends(side: Side, topic: str, end: int) -> None:
    """Until every partition says that it is `end` or above; a fresh client a try, because a client backs off."""
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        client = admin(side)
        try:
            futures = client.list_offsets(wanted, request_timeout=0.5)
            if all(future.result(1).offset >= end for future in futures.values()):
                return
        except KafkaException:
            time.sleep(0.01)
    raise RuntimeError(f"{side.name}: {topic} did not come back")


BENCHMARKS: Final = {"rss": resident, "start": starting, "restart": restarting}
