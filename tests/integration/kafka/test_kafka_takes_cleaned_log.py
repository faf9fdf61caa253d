"""Apache Kafka 4.3.1 takes over a log that our cleaner has cleaned: its tools, its broker and its own cleaner.

The segments, indexes and `cleaner-offset-checkpoint` of a data directory of ours are put into one of Kafka's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka.kafka_peer import kafka_peers
from tests.support.kafka.kafka_tools import SCRIPT, kafka_tool, require_kafka
from tests.support.processes.broker_lives import brokers, passes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

TOPIC = "kept"
CONFIG = {"cleanup.policy": "compact", "internal.segment.bytes": "4000", "min.cleanable.dirty.ratio": "0.01"}
CHECKPOINT = "cleaner-offset-checkpoint"
QUIET = {"log_level": 0}


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])[TOPIC].result(30)


def write(bootstrap: str, rounds: range, newest: dict[bytes, bytes]) -> None:
    """Nine keys a round, in a batch; every fifth round has a key of its own, so other batches vanish as a whole."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 200, **QUIET})
    for number in rounds:
        for key in [f"key{at}".encode() for at in range(9)] + [f"round{number}".encode()] * (number % 5 == 0):
            newest[key] = value = b"%d" % number + bytes(20)
            producer.produce(TOPIC, value, key=key, partition=0)
        assert producer.flush(60) == 0


def read(bootstrap: str) -> list[tuple[int, bytes, bytes]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", **QUIET})
    try:
        end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)[1]
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[tuple[int, bytes, bytes]] = []
        while not found or found[-1][0] < end - 1:
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} records, of up to {end}"
            if message.error() is None:
                found.append((message.offset(), message.key(), message.value()))
        return found
    finally:
        consumer.close()


def newest_of(records: list[tuple[int, bytes, bytes]]) -> dict[bytes, bytes]:
    return {key: value for _, key, value in records}


def checkpoint(data_dir: Path) -> dict[str, int]:
    lines = (data_dir / CHECKPOINT).read_text().splitlines()
    assert lines[0] == "0"
    assert int(lines[1]) == len(lines) - 2
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines[2:])}


def test_kafka_goes_on_with_a_log_that_we_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DumpLogSegments has no complaint; Kafka serves the same records, and cleans on from our checkpoint."""
    require_kafka()
    newest: dict[bytes, bytes] = {}
    with brokers(tmp_path, 1) as ours:
        create(ours.bootstrap)
        write(ours.bootstrap, range(60), newest)
        wait_until(lambda: passes(ours.log()) and passes(ours.log())[-1].end > 400, "the log is cleaned")
        served = read(ours.bootstrap)
        ours.broker.stop()
        print(*passes(ours.log()), sep="\n")
    source = ours.data_dir / f"{TOPIC}-0"
    assert newest_of(served) == newest
    assert len(served) < 300
    cleaned = checkpoint(ours.data_dir)
    assert cleaned[f"{TOPIC}-0"] == passes(ours.log())[-1].end
    dumped = {path.name: dump(path) for path in sorted(source.glob("*.log"))}
    print(*(f"--- {name}\n{text[:1500]}" for name, text in list(dumped.items())[:1]), sep="\n")

    monkeypatch.setenv("KAFKA_PEER_SETTINGS", "log.cleaner.backoff.ms=200\nlog.cleaner.min.cleanable.ratio=0.01")
    run = tmp_path / "kafka"
    with kafka_peers(run, 1) as (address, (pid,)):
        create(address)
        write(address, range(1), {})
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid), "Kafka ends")
        target = run / "data" / f"{TOPIC}-0"
        for old in target.iterdir():
            if old.name != "partition.metadata":  # its topic id
                old.unlink()
        for ending in ("*.log", "*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint"):
            for path in source.glob(ending):
                shutil.copy(path, target)
        shutil.copy(ours.data_dir / CHECKPOINT, run / "data" / CHECKPOINT)
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            shutil.copy(ours.data_dir / name, run / "data" / name)
        environment = {**os.environ, "KAFKA_PEER_RUN": str(run), "KAFKA_PEER_HEAP": "-Xmx512m"}
        subprocess.run([str(SCRIPT), "restart", "1"], check=True, timeout=120, env=environment, capture_output=True)
        wait_until(lambda: len(read(address)) > 0, "Kafka serves")
        assert read(address) == served

        write(address, range(60, 90), newest)
        wait_until(
            lambda: checkpoint(run / "data").get(f"{TOPIC}-0", 0) > cleaned[f"{TOPIC}-0"] + 150,
            "Kafka has cleaned more",
            30,
        )
        after = read(address)
        print(f"ours {cleaned}, Kafka's {checkpoint(run / 'data')}: {len(served)} records, now {len(after)}")
        assert newest_of(after) == newest


def dump(path: Path) -> str:
    found = kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", str(path))
    assert not re.search(r"mismatch|invalid|corrupt|exception", found.replace("isvalid: true", ""), re.IGNORECASE), (
        found
    )
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
