"""A broker of three is killed with its disk, and replaced by an empty one: bytes between brokers, time, what is felt.

Always true: the broker that is lost holds a replica of every partition (RF 2, so that its 20 GB lie on the disks twice
and not thrice); a cluster is filled once and its broker replaced once a round; one cluster is gone before the next is
filled. Bytes are those of the loopback interface, where nothing else goes on, from the start of the process on an empty
directory to its being in every in-sync set, and so is the time. `Stage.scale` is of the sizes here.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench import loads
from bench.clusters import ClusterSide, add_property, create_replicated, kafka_cluster, our_cluster
from bench.sides import admin, delete, metrics
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row


class Size(NamedTuple):
    """Bytes of what a topic holds, of what of it is in no bucket yet, and of what leaders' disks keep of it."""

    nbytes: float
    hot: float
    local: float

    def times(self, scale: float) -> Size:
        return Size(*(part * scale for part in self))

    def text(self, *, tiered: bool = True) -> str:
        local = f", {self.hot / 1e9:g} hot, {self.local / 1e9:g} on its disk" if tiered else ""
        return f"{self.nbytes / 1e9:g} GB of partitions{local}, RF 2"


WHOLE: Final = Size(20e9, 1e9, 5e9)
SHORT: Final = Size(5e9, 1e9, 2e9)  # as hot: what lies cold moves nowhere
PARTITIONS: Final = 6
REPLICAS: Final = 2
SEGMENTS: Final = 24  # cold ones of each partition: of 126 MiB at the full size (our default is 128)
SEGMENT_BYTES_MIN: Final = 1 << 20  # Kafka takes no less
OPEN_BYTES: Final = (1 << 31) - 1  # a segment that is not full by what is hot
VICTIM: Final = 1  # the place of the broker that is lost
SETTINGS: Final = {**PAGED, "log.retention.check.interval.ms": 1000}  # as the peer's
CONNECTIONS: Final = 24
BATCH: Final = 64 << 10
PIECE_BYTES: Final = 2e9  # written before the next look whether the bucket follows
FILL_S: Final = 900.0
SINK_S: Final = 300.0
IN_SYNC_S: Final = 600.0
FIRST_S: Final = 20.0  # longer than a replacement beside a producer
TELL_S: Final = 10.0
KIP_1023: Final = "follower.fetch.last.tiered.offset.enable"


class Replaced(NamedTuple):
    """What one took. `hot_bytes`: of all partitions together, above what the bucket holds, before it died; `counted`:
    bytes of log that the new broker says it copied, nan of Kafka's."""

    seconds: float
    nbytes: float
    hot_bytes: float
    counted: float


def say(side: ClusterSide, what: str) -> None:
    """Progress, for whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {side.name}: {what}", file=sys.stderr, flush=True)


class Deadline:
    """RuntimeError with what was waited for when `seconds` are over; tells it now and then before."""

    def __init__(self, side: ClusterSide, seconds: float) -> None:
        self._side, self._seconds = side, seconds
        self._began = self._told = time.monotonic()

    def check(self, what: str) -> None:
        now = time.monotonic()
        if now - self._began > self._seconds:
            raise RuntimeError(f"{self._side.name}: after {self._seconds:g} s still {what}")
        if now - self._told > TELL_S:
            self._told = now
            say(self._side, what)


class Log:
    """A topic that holds so much, and what of it is where."""

    def __init__(self, side: ClusterSide, size: Size, *, tiered: bool) -> None:
        self.side, self.size, self.tiered = side, size, tiered
        self.segment_bytes = max(SEGMENT_BYTES_MIN, int((size.nbytes - size.hot) / PARTITIONS / SEGMENTS))
        self._written = 0.0
        tiering: dict[str, object] = {"remote_storage_enable": "true", "local_retention_bytes": self._kept}
        self.topic = create_replicated(
            side, f"t{time.monotonic_ns()}", PARTITIONS, REPLICAS, holder=VICTIM + 1,
            segment_bytes=self.segment_bytes, **(tiering if tiered else {}),
        )  # fmt: skip

    @property
    def _kept(self) -> int:
        return int(self.size.local / PARTITIONS)

    def fill(self) -> None:
        """All of it, from then on in sync; what is hot lies in segments that stay open."""
        began = time.monotonic()
        if self.tiered:
            self._write(self.size.nbytes - self.size.hot)
            self._wait_sunk()
            self._keep_open()
            self._write(self.size.hot - self.hot_bytes())
        else:
            self._write(self.size.nbytes)
        wait_in_sync(self.side, self.topic)
        say(self.side, f"filled with {self._written / 1e9:.2f} GB in {time.monotonic() - began:.0f} s")

    def hot_bytes(self) -> float:
        """Of all partitions, above the end of what the bucket holds: records there, each as long as the others."""
        rows = self._rows()
        each = self._written / sum(row["high_watermark"] for row in rows)
        return each * sum(row["high_watermark"] - row["remote_end_offset"] for row in rows)

    def _write(self, nbytes: float) -> None:
        deadline, end = Deadline(self.side, FILL_S), self._written + nbytes
        while (left := end - self._written) > 0:
            flags = {"c": CONNECTIONS, "N": PARTITIONS, "k": 5, "b": BATCH, "s": loads.RECORD, "A": "all", "w": 0}
            piece = int(min(left, PIECE_BYTES))
            with loads.Loadgen(self.side, self.topic, "produce", 100, B=piece, **flags) as load:
                self._written += load.finish().nbytes
            deadline.check(f"writing: {self._written / 1e9:.2f} GB of {self.size.nbytes / 1e9:g}")
            if self.tiered:
                self._wait_copied(PIECE_BYTES)

    def _wait_copied(self, hot_max: float) -> None:
        deadline = Deadline(self.side, SINK_S)
        while (hot := self.hot_bytes()) > hot_max:
            deadline.check(f"copying to the bucket: {hot / 1e9:.2f} GB are not there, wanted {hot_max / 1e9:.2f}")
            time.sleep(0.5)

    def _wait_sunk(self) -> None:
        """Until all sealed segments are in the bucket, and the disks keep what they are to keep."""
        self._wait_copied(self.segment_bytes * PARTITIONS)
        deadline, local_max = Deadline(self.side, SINK_S), (self._kept + 2 * self.segment_bytes) * PARTITIONS
        while True:
            rows = self._rows()
            each = self._written / sum(row["high_watermark"] for row in rows)
            local = each * sum(row["high_watermark"] - row["local_log_start_offset"] for row in rows)
            if local <= local_max:
                return
            deadline.check(f"sinking: leaders keep {local / 1e9:.2f} GB, wanted {local_max / 1e9:.2f}")
            time.sleep(0.5)

    def _keep_open(self) -> None:
        entry = ConfigEntry("segment.bytes", str(OPEN_BYTES), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        client = admin(self.side)
        client.incremental_alter_configs([resource])[resource].result(30)
        time.sleep(1)

    def _rows(self) -> list[dict[str, int]]:
        words = ["tier", "status", "-b", self.side.address, "--topic", self.topic, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "thermocline", *words], capture_output=True, text=True, check=True, timeout=60
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


def wait_in_sync(side: ClusterSide, topic: str, lost: int = 0) -> None:
    """Until all partitions are led, with all of their replicas in sync, but for the `lost` ones."""
    deadline, client, bytes_before = Deadline(side, IN_SYNC_S), admin(side), loopback_bytes()
    while True:
        try:
            partitions = client.list_topics(topic, timeout=5).topics[topic].partitions.values()
            behind = [one for one in partitions if len(one.isrs) != len(one.replicas) - lost or one.leader < 0]
            if partitions and not behind:
                return
            left = f"{len(behind)} of {len(partitions)} partitions wait to have all but {lost} in sync"
        except KafkaException as error:
            left = str(error)
        deadline.check(f"{left}; {mb([loopback_bytes() - bytes_before])} MB on the loopback since")
        time.sleep(0.05)


def loopback_bytes() -> int:
    """Received on it since the machine began, by everybody."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    raise RuntimeError("no lo in /proc/net/dev")


def replaced(stage: Stage, log: Log) -> Replaced:
    """Once, on a machine that has settled since the death."""
    hot_bytes = log.hot_bytes() if log.tiered else log.size.nbytes
    log.side.lose(VICTIM)
    wait_in_sync(log.side, log.topic, lost=1)

    def begin_anew() -> Replaced:
        bytes_before, began = loopback_bytes(), time.monotonic()
        log.side.begin_anew(VICTIM)
        wait_in_sync(log.side, log.topic)
        seconds, nbytes = time.monotonic() - began, loopback_bytes() - bytes_before
        return Replaced(seconds, nbytes, hot_bytes, copied_bytes(log.side))

    found = stage.settled(begin_anew)
    amounts = f"{mb([found.nbytes])} MB moved, {mb([found.counted])} by its own count, {mb([hot_bytes])} hot"
    say(log.side, f"replaced in {found.seconds:.1f} s: {amounts}")
    return found


def copied_bytes(side: ClusterSide) -> float:
    """By the count of the broker that was lost, since its start."""
    name = "thermocline_replication_bytes_in_total "
    lines = metrics(side.all_http[VICTIM]) if side.all_http else []
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)) if lines else math.nan


def mb(found: Sequence[float]) -> str:
    return ", ".join(f"{nbytes / 1e6:,.0f}" for nbytes in found)


@contextmanager
def ours_filled(stage: Stage, size: Size, *, tiered: bool) -> Iterator[Log]:
    """A cluster of ours that holds it, for the length of the block."""
    need_room(stage, size)
    with our_cluster(stage.root, f"tiered-{tiered}", settings=SETTINGS, python=stage.python) as side:
        log = Log(side, size, tiered=tiered)
        log.fill()
        yield log


def need_room(stage: Stage, size: Size) -> None:
    """RuntimeError where a cluster would fill the disk: untiered it holds everything twice, which is the most."""
    wanted, free = 1.1 * REPLICAS * size.nbytes, shutil.disk_usage(stage.root).free
    if free < wanted:
        raise RuntimeError(f"needs {wanted / 1e9:.1f} GB below {stage.root}, {free / 1e9:.1f} are free: --scale")


def ours_against_itself(stage: Stage) -> list[Row]:
    """What moved against what is hot; the time against copying everything, tiering off, by the same code."""
    size = WHOLE.times(stage.scale)
    moved = Row("replace/bytes", f"replace a broker of 3: {size.text()}: bytes between brokers ÷ hot bytes", "×",
                Floor(value=1.1, lower_is_better=True))  # fmt: skip
    took = Row("replace/time", "the same: time; beside it ours without tiering, which copies all (ours ÷ ours)", "s",
               Floor(ratio=0.1, lower_is_better=True))  # fmt: skip
    with ours_filled(stage, size, tiered=True) as log:
        hot = [replaced(stage, log) for _ in range(stage.rounds)]
    with ours_filled(stage, size, tiered=False) as log:
        whole = [replaced(stage, log) for _ in range(stage.rounds)]
    moved.ours += [Measured(one.nbytes / one.hot_bytes) for one in hot]
    moved.notes = f"MB moved: {mb([one.nbytes for one in hot])}, hot: {mb([one.hot_bytes for one in hot])}, "
    moved.notes += f"copied by the new broker's own count: {mb([one.counted for one in hot])}"
    took.ours += [Measured(one.seconds) for one in hot]
    took.peer += [Measured(one.seconds) for one in whole]
    took.notes = f"MB moved without tiering: {mb([one.nbytes for one in whole])}"
    return [moved, took]


def beside_kafka(stage: Stage) -> list[Row]:
    """Kafka's follower copies what its leader has on its disk, or with KIP-1023, which is off by default, what is hot
    and follows; LocalTieredStorage is a directory, too."""
    size = WHOLE.times(stage.scale)
    rows: dict[str, tuple[Row, Row]] = {}
    for kind, set_to in (("", "false, its default"), ("-kip1023", "true")):
        work = f"replace a broker of 3: {size.text()}, tiered on both sides; Kafka with {KIP_1023}={set_to} (reported)"
        rows[kind] = (
            Row(f"replace-kafka/bytes{kind}", work, "MB", Floor()),
            Row(f"replace-kafka/time{kind}", "the same: time until in every in-sync set (reported)", "s", Floor()),
        )
    need_room(stage, size)
    with kafka_cluster() as kafka:
        log = Log(kafka, size, tiered=True)
        log.fill()
        for kind, (moved, took) in rows.items():
            if kind:
                add_property(kafka, VICTIM, f"{KIP_1023}=true")
            found = [replaced(stage, log) for _ in range(stage.rounds)]
            moved.peer += [Measured(one.nbytes / 1e6) for one in found]
            took.peer += [Measured(one.seconds) for one in found]
            moved.notes = f"MB hot: Kafka {mb([one.hot_bytes for one in found])}"
    with ours_filled(stage, size, tiered=True) as log:
        found = [replaced(stage, log) for _ in range(stage.rounds)]
    for moved, took in rows.values():
        moved.ours += [Measured(one.nbytes / 1e6) for one in found]
        took.ours += [Measured(one.seconds) for one in found]
        moved.notes += f"; Thermocline {mb([one.hot_bytes for one in found])}"
    return [row for pair in rows.values() for row in pair]


def felt(stage: Stage) -> list[Row]:
    """p99 of a steady producer, acks=all, on partitions that one broker leads, while another is replaced and without.

    It begins when the dead one has left the in-sync sets: what its death costs is what any death costs. It lasts as
    long as a replacement does beside it, as the round to warm up shows, so that none of it is a quiet time after.
    """
    size = SHORT.times(stage.scale)
    row = Row("replace-p99", f"produce p99, acks=all, 200 × 16 KB/s at RF 3, while a broker of 3 is replaced "
              f"({size.text()}); beside it without (ours ÷ ours)", "ms",
              Floor(ratio=2.0, lower_is_better=True))  # fmt: skip
    rate, warm_s = 200.0, 1.0
    took: list[float] = []
    with ours_filled(stage, size, tiered=True) as log:
        side = log.side
        first = ClusterSide(side.name, side.port, side.pid, root=side.root, all_ports=side.ports[:1],
                            all_pids=side.pids[:1])  # fmt: skip
        seconds = FIRST_S

        def load(topic: str) -> loads.Loadgen:
            flags = {"c": 4, "k": 5, "b": 16 << 10, "s": loads.RECORD, "A": "all", "R": rate, "w": warm_s}
            return loads.Loadgen(first, topic, "produce", seconds, **flags)

        def without(topic: str) -> Measured:
            with load(topic) as running:
                return Measured.p99(running.finish())

        def beside(topic: str) -> Measured:
            began = time.monotonic()
            with load(topic) as running:
                side.begin_anew(VICTIM)
                wait_in_sync(side, log.topic)
                took.append(time.monotonic() - began)
                return Measured.p99(running.finish())

        for number in range(stage.rounds + 1):
            topic = create_replicated(side, f"t{time.monotonic_ns()}", 4, 3, leader=1, min_insync_replicas=2)
            row.peer.append(stage.settled(lambda topic=topic: without(topic)))
            side.lose(VICTIM)
            for one in (topic, log.topic):
                wait_in_sync(side, one, lost=1)
            row.ours.append(stage.settled(lambda topic=topic: beside(topic)))
            wait_in_sync(side, topic)
            say(side, f"p99 {row.peer[-1].value:.1f} ms, {row.ours[-1].value:.1f} beside {took[-1]:.1f} s of replacing")
            delete(side, topic)
            if number == 0:  # to warm up
                seconds = max(1.0, took[0] - warm_s)
                row.forget()
                took.clear()
    each = ", ".join(f"{one:.1f}" for one in took)
    row.notes = f"over {seconds:.1f} s, {rate * seconds:,.0f} requests; replacing took {each} s"
    return [row]


BENCHMARKS: Final = {
    "replace": ours_against_itself,
    "replace-kafka": beside_kafka,
    "replace-p99": felt,
}
