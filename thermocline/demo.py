"""`make demo`: the main job in under a minute, with real processes and a stock client.

A broker on files takes a gigabyte from confluent-kafka, its segments sink into the bucket, the local copies go, the
broker is killed with -9 in the middle, everything is replayed from offset 0 with every byte checked; then a planned
replacement: seal, stop, delete the data directory, and a new broker on the bucket alone replays it all again.

Always true: what is compared was computed here, never read back; every figure in the table was measured in this run.
Must not know the broker's code: it sees a command, a Kafka port and an HTTP port, as a user does.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

TOPIC = "events"
PARTITIONS = 4
VALUE_BYTES = 4096
RECORDS = 250_000  # 1 GB in all
KILL_AFTER = 100_000  # records produced when the broker is killed
BLOCK_BYTES = 1 << 20
STALL_S = 30.0
TICK_S = 0.25

SETTINGS = {
    "log.segment.bytes": 16 << 20,
    "log.local.retention.ms": 1000,
    "log.retention.check.interval.ms": 500,
    "log.retention.ms": -1,
    "num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
}


class Failed(Exception):
    """The demo saw something it must not see."""


@dataclass
class Broker:
    """A `thermocline serve` in a process of its own."""

    process: subprocess.Popen[str]
    kafka: str
    http: str

    @classmethod
    def start(cls, data_dir: Path, bucket: Path, kafka: str = "127.0.0.1:0") -> Broker:
        command = [sys.executable, "-m", "thermocline", "serve", "--data-dir", str(data_dir)]
        command += ["--bucket", f"file://{bucket}", "--listen", kafka, "--http", "127.0.0.1:0"]
        for name, value in SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        with (data_dir.parent / "broker.log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise Failed(f"the broker did not come up; see {data_dir.parent / 'broker.log'}")
        ready = dict(part.split("=", 1) for part in line.split()[1:])
        return cls(process, ready["kafka"], ready["http"])

    def status(self) -> list[dict[str, int]]:
        """Every partition of the topic, as `tier status` sees it."""
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=10) as answer:
            return [partition for partition in json.load(answer) if partition["topic"] == TOPIC]

    def metric(self, name: str) -> float:
        """The sum over all labels of one metric."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def seal(self) -> None:
        """Seal and copy everything, as `thermocline tier seal --wait` does."""
        request = urllib.request.Request(
            f"http://{self.http}/tier/seal",
            data=json.dumps({"wait": True}).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=120).read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            raise Failed("the broker did not stop cleanly")


class Payload:
    """Values that can be checked byte by byte without keeping them: a slice of one random block per sequence number."""

    def __init__(self) -> None:
        self._block = random.Random(2026).randbytes(BLOCK_BYTES + VALUE_BYTES)

    def value(self, sequence: int) -> bytes:
        at = sequence * 7919 % BLOCK_BYTES
        return sequence.to_bytes(8, "big") + self._block[at : at + VALUE_BYTES - 8]


@dataclass
class Picture:
    """Two tiers, drawn over one another on a terminal, a line now and then elsewhere."""

    started: float = field(default_factory=time.monotonic)
    drawn: float = 0.0
    live: bool = field(default_factory=sys.stdout.isatty)

    def say(self, text: str) -> None:
        self._clear()
        print(f"[{time.monotonic() - self.started:5.1f} s] {text}", flush=True)

    def draw(self, broker: Broker, what: str) -> None:
        now = time.monotonic()
        if now - self.drawn < (TICK_S if self.live else 3.0):
            return
        self.drawn = now
        partitions = broker.status()
        local = sum(partition["local_bytes"] for partition in partitions)
        cold = sum(partition["cold_bytes"] for partition in partitions)
        text = f"{what}  disk {_bar(local, '█')} {local / 1e6:6.0f} MB   bucket {_bar(cold, '░')} {cold / 1e6:6.0f} MB"
        if self.live:
            print(f"\r\033[K[{now - self.started:5.1f} s] {text}", end="", flush=True)
        else:
            print(f"[{now - self.started:5.1f} s] {text}", flush=True)

    def _clear(self) -> None:
        if self.live:
            print("\r\033[K", end="")


def _bar(size: int, mark: str) -> str:
    return mark * min(round(size / 50e6), 24)


def produce(broker: Broker, payload: Payload, first: int, end: int, watch: Callable[[], None]) -> float:
    """Produce records [first, end) with a stock idempotent client; every one acknowledged by all. Seconds taken."""
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    began = time.monotonic()
    for sequence in range(first, end):
        while True:
            try:
                producer.produce(TOPIC, payload.value(sequence), partition=sequence % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if sequence % 4096 == 0:
            producer.poll(0)
            watch()
    if producer.flush(STALL_S) or failures:
        raise Failed(f"not acknowledged: {failures[:1] or 'some records'}")
    return time.monotonic() - began


def replay(broker: Broker, payload: Payload, count: int, watch: Callable[[], None]) -> float:
    """Read every partition from offset 0 and check every byte of `count` records. Seconds taken."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    expected = list(range(PARTITIONS))  # the next sequence number of each partition
    began = last = time.monotonic()
    left = count
    while left:
        for message in consumer.consume(2000, timeout=1.0):
            if message.error():
                raise KafkaException(message.error())
            partition = message.partition()
            assert partition is not None
            sequence = expected[partition]
            if message.value() != payload.value(sequence) or message.offset() != sequence // PARTITIONS:
                raise Failed(f"partition {partition} offset {message.offset()}: not what was produced")
            expected[partition] += PARTITIONS
            left -= 1
            last = time.monotonic()
        if time.monotonic() - last > STALL_S:
            raise Failed(f"the replay stalled {left} records before the end")
        watch()
    consumer.close()
    return time.monotonic() - began


def wait_sunk(broker: Broker, picture: Picture) -> None:
    """Until every sealed segment is in the bucket and only active segments are left on disk."""
    deadline = time.monotonic() + STALL_S
    limit = PARTITIONS * SETTINGS["log.segment.bytes"]
    while any(p["copy_lag_bytes"] for p in broker.status()) or _local_bytes(broker) > limit:
        if time.monotonic() > deadline:
            raise Failed("segments did not sink into the bucket")
        picture.draw(broker, "sinking   ")
        time.sleep(TICK_S)


def _local_bytes(broker: Broker) -> int:
    return sum(partition["local_bytes"] for partition in broker.status())


def run(root: Path) -> None:
    """All acts, then the table."""
    payload, picture = Payload(), Picture()
    data_dir, bucket = root / "broker", root / "bucket"
    megabytes = RECORDS * VALUE_BYTES / 1e6
    broker = Broker.start(data_dir, bucket)
    try:
        picture.say(f"a broker on {data_dir}, its bucket the directory {bucket}")
        taken = produce(broker, payload, 0, KILL_AFTER, lambda: picture.draw(broker, "producing "))
        broker.kill()
        picture.say(f"kill -9 after {KILL_AFTER:,} acknowledged records; starting it again")
        broker = Broker.start(data_dir, bucket, broker.kafka)
        taken += produce(broker, payload, KILL_AFTER, RECORDS, lambda: picture.draw(broker, "producing "))
        picture.say(f"{RECORDS:,} records, {megabytes:.0f} MB, acknowledged by acks=all with fsync")
        wait_sunk(broker, picture)
        local, cold = _local_bytes(broker), sum(p["cold_bytes"] for p in broker.status())
        picture.say(
            f"sunk: {local / 1e6:.0f} MB left on disk, {cold / 1e6:.0f} MB in the bucket; replaying from offset 0"
        )
        cold_s = replay(broker, payload, RECORDS, lambda: picture.draw(broker, "replaying "))
        picture.say("every byte as it was produced")
        broker.seal()
        requests = broker.metric("thermocline_store_requests_total")
        dollars = broker.metric("thermocline_estimated_dollars_per_day")
        broker.stop()
        shutil.rmtree(data_dir)
        picture.say("sealed, stopped, and the whole data directory deleted; a new broker on the bucket alone")
        began = time.monotonic()
        broker = Broker.start(data_dir, bucket, broker.kafka)
        replaced_s = time.monotonic() - began
        again_s = replay(broker, payload, RECORDS, lambda: picture.draw(broker, "replaying "))
        picture.say("every byte again, no gap")
        rows = [
            ("produced, acks=all, fsync", f"{megabytes / taken:.0f} MB/s"),
            ("replayed from the bucket", f"{megabytes / cold_s:.0f} MB/s"),
            ("replayed by the replacement", f"{megabytes / again_s:.0f} MB/s"),
            ("replacement ready after", f"{replaced_s:.1f} s"),
            ("local bytes after sinking", f"{local / 1e6:.0f} MB"),
            ("bytes in the bucket", f"{cold / 1e6:.0f} MB"),
            ("store requests of the first broker since its restart", f"{requests:.0f}"),
            ("estimated cost at S3 list prices", f"${dollars:.4f} a day"),
            ("records lost, changed, doubled", "0, 0, 0"),
        ]
        width = max(len(name) for name, _ in rows)
        print("\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows))
        print(f"\n  all of it in {time.monotonic() - picture.started:.0f} s")
    finally:
        if broker.process.poll() is None:
            broker.kill()


def main() -> int:
    """Run in a temporary directory that is removed afterwards."""
    root = Path(tempfile.mkdtemp(prefix="thermocline-demo-"))
    try:
        run(root)
    except (Failed, KafkaException) as failure:
        print(f"\nthe demo failed: {failure}\n{(root / 'broker.log').read_text()[-2000:]}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
