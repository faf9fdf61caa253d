"""A broker of three is killed with its disk, and replaced by an empty one: bytes between brokers, time, what is felt.

Always true: of what the partitions hold a twentieth is in no bucket yet (hot), and a quarter lies on the leaders' disks
(local.retention.bytes); bytes are those of the loopback interface, where nothing else goes on, from the start of the
new process to full in-sync sets, and so is the time. `Stage.scale` is of 20 GB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench import loads
from bench.clusters import ClusterSide, create_replicated, kafka_cluster, our_cluster
from bench.sides import admin, delete
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row

DATA_BYTES: Final = 20e9
HOT_SHARE: Final = 0.05
LOCAL_SHARE: Final = 0.25
PARTITIONS: Final = 6
SEGMENT_BYTES: Final = 16 << 20
FILL_BYTES: Final = 2e9
SETTINGS: Final = {**PAGED, "log.retention.check.interval.ms": 1000}  # as the peer's
VICTIM: Final = 1  # the place of the broker that is lost: it leads a third of the partitions
IN_SYNC_S: Final = 900.0


class Replaced(NamedTuple):
    """What it took. `hot_bytes`: of all partitions together, above what the bucket holds."""

    seconds: float
    nbytes: float
    hot_bytes: float


def filled(side: ClusterSide, topic: str, stage: Stage, *, tiered: bool) -> float:
    """Write the data into a topic; how many bytes of it are hot, by what lies on disk above the last copied segment."""
    data_bytes = DATA_BYTES * stage.scale
    kept = int(LOCAL_SHARE * data_bytes / PARTITIONS)
    tiering: dict[str, object] = {"remote_storage_enable": "true", "local_retention_bytes": kept} if tiered else {}
    create_replicated(side, topic, PARTITIONS, 3, segment_bytes=SEGMENT_BYTES, **tiering)
    write(side, topic, (1 - HOT_SHARE) * data_bytes)
    if tiered:
        wait_local(side, topic, int(kept + 3 * SEGMENT_BYTES) * PARTITIONS)
    entry = ConfigEntry("segment.bytes", str(1 << 30), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(side)
    client.incremental_alter_configs([resource])[resource].result(30)
    write(side, topic, HOT_SHARE * data_bytes)
    time.sleep(5)
    return sum(max(sizes) for sizes in last_segments(side, topic).values())


def write(side: ClusterSide, topic: str, nbytes: float) -> None:
    """In pieces that the load generator's time is enough for."""
    while nbytes > 0:
        loads.fill(side, topic, PARTITIONS, int(min(nbytes, FILL_BYTES)))
        nbytes -= FILL_BYTES


def logs_of(side: ClusterSide, topic: str) -> Iterator[Path]:
    bucket = side.root / ("remote" if side.name == "Kafka" else "bucket")
    for log in side.root.rglob(f"{topic}-*/*.log"):
        if bucket not in log.parents:
            yield log


def last_segments(side: ClusterSide, topic: str) -> dict[str, list[int]]:
    """Sizes of the newest file of each copy, by partition."""
    newest: dict[Path, Path] = {}
    for log in logs_of(side, topic):
        newest[log.parent] = max(newest.get(log.parent, log), log)
    found: dict[str, list[int]] = {}
    for directory, log in newest.items():
        found.setdefault(directory.name, []).append(log.stat().st_size)
    return found


def wait_local(side: ClusterSide, topic: str, bytes_max: int) -> None:
    """Until the leaders' disks hold no more than that: the rest is in the bucket."""
    deadline = time.monotonic() + 600
    while sum(log.stat().st_size for log in logs_of(side, topic)) > 3 * bytes_max:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name}: {topic} does not sink")
        time.sleep(1)


def wait_in_sync(side: ClusterSide, topic: str, count: int) -> None:
    """Until all partitions have so many in sync."""
    deadline, client = time.monotonic() + IN_SYNC_S, admin(side)
    while True:
        partitions = client.list_topics(topic, timeout=30).topics[topic].partitions.values()
        if all(len(partition.isrs) == count and partition.leader >= 0 for partition in partitions):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name}: not {count} in sync: {[sorted(one.isrs) for one in partitions]}")
        time.sleep(0.05)


def loopback_bytes() -> int:
    """Received on it so far, by everybody."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    raise RuntimeError("no lo in /proc/net/dev")


def replaced(side: ClusterSide, topic: str, hot_bytes: float, victim: int = VICTIM) -> Replaced:
    side.lose(victim)
    wait_in_sync(side, topic, 2)
    bytes_before, began = loopback_bytes(), time.monotonic()
    side.begin_anew(victim)
    wait_in_sync(side, topic, 3)
    return Replaced(time.monotonic() - began, loopback_bytes() - bytes_before, hot_bytes)


@contextmanager
def with_data(side: ClusterSide, stage: Stage, *, tiered: bool) -> Iterator[tuple[str, float]]:
    topic = f"t{time.monotonic_ns()}"
    try:
        yield topic, filled(side, topic, stage, tiered=tiered)
    finally:
        delete(side, topic)


def ours_against_itself(stage: Stage) -> list[Row]:
    """What moved against what is hot; the time against copying everything, tiering off, by the same code."""
    size = f"{DATA_BYTES * stage.scale / 1e9:g} GB, {HOT_SHARE:.0%} hot, {LOCAL_SHARE:.0%} on disks, RF 3"
    moved = Row("replace/bytes", f"replace a broker of 3: {size}: bytes between brokers ÷ hot bytes", "×",
                Floor(value=1.1, lower_is_better=True))  # fmt: skip
    took = Row("replace/time", "the same: time; beside it ours without tiering, which copies all (ours ÷ ours)", "s",
               Floor(ratio=0.1, lower_is_better=True))  # fmt: skip

    def run(tiered: bool) -> Replaced:
        with (
            our_cluster(stage.root, f"tiered-{tiered}", settings=SETTINGS, python=stage.python) as side,
            with_data(side, stage, tiered=tiered) as (topic, hot_bytes),
        ):
            return replaced(side, topic, hot_bytes)

    def both() -> None:
        found = run(True)
        moved.ours.append(Measured(found.nbytes / found.hot_bytes))
        took.ours.append(Measured(found.seconds))
        took.peer.append(Measured(run(False).seconds))

    for _ in range(stage.rounds):
        both()
    return [moved, took]


def beside_kafka(stage: Stage) -> list[Row]:
    """Kafka's follower copies what its leader has on its disk (no KIP-1023); LocalTieredStorage is a directory, too."""
    size = f"{DATA_BYTES * stage.scale / 1e9:g} GB, {HOT_SHARE:.0%} hot, {LOCAL_SHARE:.0%} on disks, RF 3"
    moved = Row("replace-kafka/bytes", f"replace a broker of 3: {size}, tiered on both sides (reported)", "MB",
                Floor(1.0, lower_is_better=True))  # fmt: skip
    took = Row("replace-kafka/time", "the same: time to full in-sync sets (reported)", "s",
               Floor(1.0, lower_is_better=True))  # fmt: skip

    def run(side: ClusterSide, bytes_of: list[Measured], times: list[Measured]) -> None:
        with with_data(side, stage, tiered=True) as (topic, hot_bytes):
            found = replaced(side, topic, hot_bytes)
        bytes_of.append(Measured(found.nbytes / 1e6))
        times.append(Measured(found.seconds))

    for _ in range(stage.rounds):
        with kafka_cluster() as kafka:
            run(kafka, moved.peer, took.peer)
        with our_cluster(stage.root, "beside", settings=SETTINGS, python=stage.python) as ours:
            run(ours, moved.ours, took.ours)
    return [moved, took]


def felt(stage: Stage) -> list[Row]:
    """p99 of a steady producer, acks=all, on partitions that one broker leads, while another is replaced and without.
    It begins when the dead one has left the in-sync sets: what its death costs is what any death costs."""
    row = Row("replace-p99", "produce p99, acks=all, 200 × 16 KB/s, while a broker of 3 is replaced; beside it without "
              "(ours ÷ ours)", "ms", Floor(ratio=2.0, lower_is_better=True))  # fmt: skip
    rate, seconds = 200.0, 20.0
    with our_cluster(stage.root, "felt", settings=SETTINGS, python=stage.python) as side:
        first = ClusterSide(side.name, side.port, side.pid, root=side.root, all_ports=side.ports[:1],
                            all_pids=side.pids[:1])  # fmt: skip

        def load(topic: str) -> loads.Loadgen:
            flags = {"c": 4, "k": 5, "b": 16 << 10, "s": 1000, "A": "all", "R": rate, "w": 1.0}
            return loads.Loadgen(first, topic, "produce", seconds, **flags)

        def measured(topic: str, meanwhile: Callable[[], None]) -> Measured:
            with load(topic) as running:
                meanwhile()
                return Measured.p99(running.finish())

        for _ in range(stage.rounds):
            with with_data(side, stage, tiered=True) as (data, _):
                topic = create_replicated(side, f"t{time.monotonic_ns()}", 4, 3, leader=1, min_insync_replicas=2)
                stage.settled(lambda topic=topic: row.peer.append(measured(topic, lambda: None)) or Measured(0))  # type: ignore[misc]
                side.lose(2)
                wait_in_sync(side, topic, 2)
                wait_in_sync(side, data, 2)
                row.ours.append(measured(topic, lambda: side.begin_anew(2)))
                wait_in_sync(side, data, 3)
                delete(side, topic)
    return [row]


BENCHMARKS: Final = {
    "replace": ours_against_itself,
    "replace-kafka": beside_kafka,
    "replace-p99": felt,
}
